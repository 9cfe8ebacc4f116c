"""What heads do, over a dev set: every measure of every head, with its baseline and whether the head gets a tag."""

from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path

from regard.data.text.pairs import Pair
from regard.errors import UserError
from regard.look.analysis.attention_maps import attention_modules
from regard.look.analysis.dev_set import DevSet, load_dev_set, training_items
from regard.look.analysis.head_roles.alignment import SIDES, AlignmentCounts, Side
from regard.look.analysis.head_roles.counts import RULE, Score, ShareCounts
from regard.look.analysis.head_roles.find_treebank import Treebank, find_treebank
from regard.look.analysis.head_roles.recording import RecordedExample, record_example
from regard.look.analysis.head_roles.syntax import ALL, SyntaxCounts, syntax_example
from regard.look.analysis.head_roles.tokens import TOKEN_MEASURES, wanted_keys
from regard.look.analysis.head_roles.word_alignment import Aligner
from regard.look.analysis.head_roles.words import split_words, words_of
from regard.look.models.tasks import TracedParser
from regard.look.models.traced_model import TracedModel
from regard.look.schema import AttentionType, HeadRole, HeadRoles, HeadRolesRequest, RoleMeasure

RESULT_INTERVAL = 10
"""Results are computed anew after so many examples."""
NO_TEXT = "What heads do is measured on tokens of text, and this model reads images."
NO_ATTENTION = "This model has no attention, so there are no heads to measure."


def measure_roles(
    traced_model: TracedModel, request: HeadRolesRequest, folder: Path | None = None
) -> Iterator[tuple[int, HeadRoles]]:
    """Yield the number of steps and the results so far: before the first example, and after each."""
    check_roles(traced_model)
    dev_set = load_dev_set(traced_model, request.lines, folder, traced_model.attention_example)
    measurement = _Measurement(traced_model, dev_set, folder)
    steps = measurement.steps()
    total = next(steps)
    results = measurement.results()
    yield total, results
    for number, _ in enumerate(steps, start=1):
        if number % RESULT_INTERVAL == 0 or number == total:
            results = measurement.results()
        yield total, results


def measure_head_roles(
    traced_model: TracedModel, request: HeadRolesRequest | None = None, folder: Path | None = None
) -> HeadRoles:
    """What all heads do."""
    *_, (_, roles) = measure_roles(traced_model, request or HeadRolesRequest(), folder)
    return roles


def check_roles(traced_model: TracedModel) -> None:
    """Refuse a model whose heads cannot be measured."""
    if traced_model.input != "text":
        raise UserError(NO_TEXT)
    if not attention_modules(traced_model.model):
        raise UserError(NO_ATTENTION)


class _Measurement:
    """All measures of a model, filled example by example."""

    def __init__(self, traced_model: TracedModel, dev_set: DevSet, folder: Path | None) -> None:
        self.traced_model, self.dev_set, self.folder = traced_model, dev_set, folder
        self.modules = attention_modules(traced_model.model)
        self.end_ids = _end_ids(traced_model)
        self.examples = self.sentences = 0
        self.tokens: dict[tuple[AttentionType, int, str], ShareCounts] = {}
        self.alignment: AlignmentCounts | None = None
        self.syntax = SyntaxCounts()
        self.notes: list[str] = []

    def steps(self) -> Iterator[int]:
        """First the number of steps, then one after the other is taken."""
        has_pairs = "cross" in self.modules and all(isinstance(item, Pair) for item in self.dev_set.items)
        treebank = self._treebank()
        total = has_pairs + len(self.dev_set.examples) + len(treebank.sentences)
        yield total
        if has_pairs:
            self._learn_alignment()
            yield total
        for example in self.dev_set.examples:
            self._add(record_example(self.traced_model, example))
            self.examples += 1
            yield total
        for sentence in treebank.sentences:
            found = syntax_example(self.traced_model, sentence)
            if found is not None:
                example, positions = found
                self.syntax.add(record_example(self.traced_model, example), sentence, positions)
                self.sentences += 1
            yield total

    def results(self) -> HeadRoles:
        """What has been measured so far."""
        measures: list[RoleMeasure] = []
        heads: list[HeadRole] = []
        for attention_type, layers in self.modules.items():
            scored = [*self._token_scores(attention_type), *self._word_scores(attention_type)]
            measures += [measure for measure, _ in scored]
            heads += [
                HeadRole(
                    attention_type=attention_type,
                    layer=layer,
                    head=head,
                    measure=measure.name,
                    value=score.value,
                    maximum=score.maximum,
                    baseline=score.baseline.value,
                    strategy=score.baseline.strategy,
                    tagged=score.tag,
                )
                for layer, module in enumerate(layers)
                for head in range(module.heads)
                for measure, scores in scored
                for score in [scores[layer, head]]
            ]
        return HeadRoles(
            examples=self.examples,
            sentences=self.sentences,
            rule=RULE,
            notes=list(self.notes),
            measures=measures,
            heads=heads,
        )

    def _heads(self, attention_type: AttentionType) -> list[tuple[int, int]]:
        return [
            (layer, head) for layer, module in enumerate(self.modules[attention_type]) for head in range(module.heads)
        ]

    def _token_scores(
        self, attention_type: AttentionType
    ) -> Iterator[tuple[RoleMeasure, dict[tuple[int, int], Score]]]:
        for name, about in TOKEN_MEASURES.items():
            counts = {
                layer: each
                for layer in range(len(self.modules[attention_type]))
                if (each := self.tokens.get((attention_type, layer, name))) is not None and each.count > 0
            }
            if len(counts) == len(self.modules[attention_type]):
                measure = RoleMeasure(
                    attention_type=attention_type,
                    name=name,
                    label=about.label,
                    tag=about.tag,
                    description=about.description,
                    count=max(each.count for each in counts.values()),
                    is_error=False,
                )
                yield (
                    measure,
                    {(layer, head): counts[layer].score(head) for layer, head in self._heads(attention_type)},
                )

    def _word_scores(self, attention_type: AttentionType) -> Iterator[tuple[RoleMeasure, dict[tuple[int, int], Score]]]:
        if attention_type == "cross" and self.alignment is not None and self.alignment.words > 0:
            for side in SIDES:
                measure = _alignment_measure(side, self.alignment.words)
                yield measure, {key: self.alignment.score(side, *key) for key in self._heads(attention_type)}
        if attention_type == "encoder":
            for relation, count in self.syntax.relations().items():
                measure = _syntax_measure(relation, count)
                yield measure, {key: self.syntax.score(relation, *key) for key in self._heads(attention_type)}

    def _treebank(self) -> Treebank:
        if "encoder" not in self.modules:
            return Treebank([], "")
        shown = (self.traced_model.example_tokens(example)[0] for example in self.dev_set.examples)
        words = [word.text for tokens in shown for word in words_of(tokens)]
        treebank = find_treebank(self.dev_set.items, words)
        self.notes.append(treebank.description)
        return treebank

    def _learn_alignment(self) -> None:
        """Learn the alignment from the dev set and the training pairs that are on this machine."""
        others = training_items(self.traced_model, self.dev_set.recipe, self.folder)
        known = set(self.dev_set.items)
        pairs = chain(self.dev_set.items, (item for item in others if isinstance(item, Pair) and item not in known))
        aligner = Aligner((split_words(pair.source), split_words(pair.target)) for pair in pairs)
        if not aligner.pairs:
            self.notes.append("There is no word alignment: all sentences are too long, or empty.")
            return
        aligner.learn()
        self.alignment = AlignmentCounts(aligner)
        self.notes.append(
            "The word alignment is statistical: IBM model 2 with a diagonal prior (as fast_align) in both directions, "
            f"learned from {len(aligner.pairs):,} sentence pairs. Links of both directions are sure, those of "
            "grow-diag-final-and possible."
        )

    def _add(self, example: RecordedExample) -> None:
        if self.alignment is not None:
            self.alignment.add(example)
        wanted = {}
        for (attention_type, number), layer in example.layers.items():
            keys = example.keys(attention_type)
            if attention_type not in wanted:
                has_text = attention_type != "decoder" or not isinstance(self.traced_model, TracedParser)
                wanted[attention_type] = wanted_keys(
                    attention_type, layer.weights.shape[1], keys, self.end_ids, has_text
                )
            for name, each in wanted[attention_type].items():
                key = (attention_type, number, name)
                if key not in self.tokens:
                    self.tokens[key] = ShareCounts(len(layer.weights), not TOKEN_MEASURES[name].is_relative)
                self.tokens[key].add(layer, each)


def _alignment_measure(side: Side, words: int) -> RoleMeasure:
    which = {"written": "writes", "read": "reads"}[side]
    return RoleMeasure(
        attention_type="cross",
        name=f"alignment-{side}",
        label=f"alignment error ({side})",
        tag={"written": "align", "read": "align read"}[side],
        description=(
            f"The alignment error rate of the links from the word that a step {which} to the source word that it "
            "attends to most. Less is better."
        ),
        count=words,
        is_error=True,
    )


def _syntax_measure(relation: str, count: int) -> RoleMeasure:
    is_all = relation == ALL
    what = "Words" if is_all else f"Words in the relation “{relation}”"
    return RoleMeasure(
        attention_type="encoder",
        name=relation if is_all else f"governor: {relation}",
        label="syntactic governor" if is_all else f"governor: {relation}",
        tag="governor" if is_all else relation,
        description=f"{what} that attend more to their syntactic governor than to anything else.",
        count=count,
        is_error=False,
    )


def _end_ids(traced_model: TracedModel) -> Collection[int]:
    """The ids of the tokens that end a sequence."""
    special = traced_model.model.config.special_tokens  # type: ignore[union-attr]
    return {each for name in ("eos", "sep") if (each := getattr(special, name, None)) is not None}
