"""A translator and a generator whose search is CTranslate2's: everything around the search stays ours.

Greedy search gives the same outputs. Beam search ranks what it found by the model's own length penalty, but
CTranslate2 decides by its own when to stop looking, and knows only a power of the length. What it cannot do is refused,
never done differently. Where it draws words it does so by chance of its own, so `numbers` change nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from regard.data.stream import TextStream
from regard.decode import DecodeConfig, Hypothesis, Wish
from regard.errors import UserError
from regard.interop.ctranslate2_engine import GenerationEngine, Output, TranslationEngine, longest_text
from regard.model import EncoderDecoder
from regard.model.language_model import EMPTY_PROMPT
from regard.run import Loaded
from regard.task.generator import SAMPLING, Generated, Generator
from regard.task.translate import BATCH_TOKENS, Translation
from regard.task.translator import Translator

_ALIKE = 20
"""The length at which CTranslate2's penalty is made to grow as fast as the paper's."""


class CTranslate2Translator(Translator):
    """A translator from a run folder, with CTranslate2 as what searches.

    With `scored`, every translation has the log-probabilities of its tokens; that costs a pass more.
    """

    def __init__(
        self, translator: Translator, folder: Path | str, device: torch.device | str = "cpu", *, scored: bool = True
    ) -> None:
        if translator.worker is not translator.model:
            raise UserError("CTranslate2 cannot join models in an ensemble; leave out --with, or use --engine regard.")
        if not isinstance(translator.translating, EncoderDecoder):
            raise UserError("CTranslate2 translates with an encoder–decoder only; leave out --engine.")
        super().__init__(Loaded(translator.model, translator.tokenizer, translator.target_tokenizer), translator.decode)
        self.engine = TranslationEngine(folder, device)
        self.batch_tokens = BATCH_TOKENS[torch.device(device).type]
        self.longest = longest_text(translator.translating.config)
        self.scored = scored

    def joined(self, others: Sequence[Translator]) -> Translator:
        raise UserError("CTranslate2 cannot join models in an ensemble; leave out --with, or use --engine regard.")

    def translate_sentences(
        self,
        sentences: Sequence[str],
        decode: DecodeConfig | None = None,
        progress: Callable[[int], None] | None = None,
        *,
        wish: Wish | None = None,
        alternatives: int = 0,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Translation]]:
        decode, wish = decode or self.decode, wish or Wish()
        check_possible(decode, wish, alternatives)
        sources = self.source_text.encode_batch(sentences)
        results: list[list[Translation]] = [[Translation("", 0.0, 0.0, (), ended=True)] for _ in sentences]
        wanted = [number for number, sentence in enumerate(sentences) if sentence.strip()]
        limits = {number: min(decode.limit(len(sources[number]) + 1), self.longest) for number in wanted}
        for number in wanted:
            self._check_length(sentences[number], len(sources[number]), wish, limits[number])
        groups = list(self._groups({number: len(sources[number]) for number in wanted}))
        found = self.engine.search(
            (([sources[number] for number in group], max(limits[number] for number in group)) for group in groups),
            beams=decode.beams,
            penalty=closest_power(decode),
            prefix=wish.prefix,
            forbidden=wish.forbidden,
            **_sampling(decode, self.config.vocabulary),
        )
        done = len(sentences) - len(wanted)
        for group, outputs in zip(groups, found, strict=True):
            cut = [
                [_cut(output, limits[number]) for output in each] for number, each in zip(group, outputs, strict=True)
            ]
            scored = self.scored or bool(wish.prefix) or cut != outputs  # their totals leave given tokens out
            steps = iter(self._steps([sources[number] for number in group], cut) if scored else ())
            for number, each in zip(group, cut, strict=True):
                ranked = _ranked(each, [next(steps, None) for _ in each], decode)
                results[number] = self._translations(ranked)
            done += len(group)
            if progress is not None:
                progress(done)
        return results

    def _steps(self, sources: Sequence[Sequence[int]], outputs: Sequence[Sequence[Output]]) -> list[tuple[float, ...]]:
        """The log-probabilities of the tokens of every output, one source after the other."""
        flat = [(source, output) for source, each in zip(sources, outputs, strict=True) for output in each]
        scores = self.engine.score([source for source, _ in flat], [output.tokens for _, output in flat])
        return [each[: len(output.tokens) + output.ended] for each, (_, output) in zip(scores, flat, strict=True)]

    def _translations(self, ranked: Sequence[Hypothesis]) -> list[Translation]:
        texts = self.target_text.decode_batch([one.tokens for one in ranked])
        return [
            Translation(text, one.score, one.log_probability, one.tokens, one.ended, one.steps)
            for text, one in zip(texts, ranked, strict=True)
        ]

    def _groups(self, lengths: dict[int, int]) -> Iterator[list[int]]:
        """Sentences of about equal length, as many as the budget holds; the longest come first."""
        group: list[int] = []
        for number in sorted(lengths, key=lambda number: -lengths[number]):
            if group and (lengths[group[0]] + 1) * (len(group) + 1) > self.batch_tokens:
                yield group
                group = []
            group.append(number)
        if group:
            yield group

    def _check_length(self, sentence: str, length: int, wish: Wish, limit: int) -> None:
        if length >= self.longest:
            raise UserError(
                f"A sentence has {length} tokens and CTranslate2 takes {self.longest - 1} at most: "
                f"{sentence[:40]!r} …; cut it, or use --engine regard."
            )
        if len(wish.prefix) > limit:
            raise UserError(f"The output begins with {len(wish.prefix)} given tokens and may have {limit} at most.")


class CTranslate2Generator(Generator):
    """A language model from a run folder, with CTranslate2 as what searches. `scored` as for the translator."""

    def __init__(
        self, generator: Generator, folder: Path | str, device: torch.device | str = "cpu", *, scored: bool = True
    ) -> None:
        super().__init__(Loaded(generator.model, generator.tokenizer))
        self.engine = GenerationEngine(folder, device)
        self.batch_tokens = BATCH_TOKENS[torch.device(device).type]
        self.longest = longest_text(generator.language_model.config)
        self.scored = scored

    def stream(
        self, prompt: str, *, limit: int = 200, decode: DecodeConfig = SAMPLING, stops: Sequence[str] = ()
    ) -> Iterator[str]:
        if decode.beams > 1:
            raise UserError("Beam search knows its best text only at the end; stream with one beam.")
        check_possible(decode, Wish())
        ids = self._prompt(prompt, limit)
        stream = TextStream(self.text, stops, ids)
        tokens = self.engine.stream(ids, limit, **_sampling(decode, self.config.vocabulary))
        for token in tokens:
            if piece := stream.add([token]):
                yield piece
            if stream.stopped:
                return
        if piece := stream.finish():
            yield piece

    def generate_all(
        self,
        prompts: Sequence[str],
        *,
        limit: int = 200,
        decode: DecodeConfig = SAMPLING,
        stops: Sequence[str] = (),
        wish: Wish | None = None,
        alternatives: int = 0,
        numbers: Sequence[int] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Generated]]:
        wish = wish or Wish()
        check_possible(decode, wish, alternatives)
        if wish.prefix:
            raise UserError("CTranslate2 takes no beginning of a continuation; put it at the end of the prompt.")
        ids = [self._prompt(prompt, limit) for prompt in prompts]
        groups = list(self._groups(ids))
        found = self.engine.search(
            ([ids[number] for number in group] for group in groups),
            limit,
            beams=decode.beams,
            penalty=closest_power(decode),
            forbidden=wish.forbidden,
            **_sampling(decode, self.config.vocabulary),
        )
        results: list[list[Generated]] = [[] for _ in prompts]
        done = 0
        for group, outputs in zip(groups, found, strict=True):
            for number, each in zip(group, outputs, strict=True):
                steps = self.engine.score([ids[number]] * len(each), each) if self.scored else [None] * len(each)
                ranked = _ranked(each, steps, decode)
                results[number] = [self._generated(prompts[number], ids[number], one, stops) for one in ranked]
            done += len(group)
            if progress is not None:
                progress(done)
        return results

    def _prompt(self, prompt: str, limit: int) -> list[int]:
        ids = self.prompt(self.text.encode(prompt))
        if not ids:
            raise UserError(EMPTY_PROMPT)
        if len(ids) + limit > self.longest:
            raise UserError(
                f"The prompt has {len(ids)} tokens, and with {limit} more it is longer than the {self.longest} that "
                "CTranslate2 has positions for; ask for less, or use --engine regard."
            )
        return ids

    def _groups(self, ids: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Prompts of the same length: CTranslate2 reads the rest of longer ones token by token."""
        lengths: dict[int, list[int]] = {}
        for number, each in enumerate(ids):
            lengths.setdefault(len(each), []).append(number)
        for length, numbers in sorted(lengths.items(), reverse=True):
            size = max(1, self.batch_tokens // length)
            yield from (numbers[first : first + size] for first in range(0, len(numbers), size))


def check_possible(decode: DecodeConfig, wish: Wish, alternatives: int = 0) -> None:
    """Refuse what CTranslate2 cannot do, or would do differently."""
    for asked, what in (
        (bool(wish.required), "require words"),
        (decode.groups > 1, "search in diverse groups"),
        (alternatives > 0, "tell the alternatives of every token"),
        (decode.sample and decode.min_p > 0, "leave out words by --min-p"),
        (decode.sample and decode.repetition != 1.0, "make repeated words less likely as we do"),
        (decode.sample and decode.seed != 0, "draw by a seed for each line"),
    ):
        if asked:
            raise UserError(f"CTranslate2 cannot {what}; leave that out, or use --engine regard.")
    for sequence in wish.forbidden:
        if any(wish.prefix[at : at + len(sequence)] == sequence for at in range(len(wish.prefix))):
            raise UserError(
                "What the output must not contain is part of what it begins with; leave out one of the two."
            )


def closest_power(decode: DecodeConfig) -> float:
    """The power of the length that CTranslate2 is to divide by.

    The paper's penalty grows like the power strength · length / (5 + length), which is taken at one usual length.
    """
    if decode.beams == 1 or decode.penalty == "none":
        return 0.0
    return decode.strength * (_ALIKE / (5 + _ALIKE) if decode.penalty == "paper" else 1.0)


def differs(decode: DecodeConfig) -> str | None:
    """A sentence about how its search differs from ours, where it does."""
    if decode.beams == 1 or decode.penalty != "paper" or decode.strength == 0:
        return None
    return (
        f"CTranslate2 stops its search by length^{closest_power(decode):.2f}, the closest it has to this model's "
        "length penalty (the paper's); what it finds is ranked by the model's own."
    )


def _ranked(
    outputs: Sequence[Output], steps: Sequence[tuple[float, ...] | None], decode: DecodeConfig
) -> list[Hypothesis]:
    """Outputs best first by the model's own penalty, with the log-probabilities of their tokens where known."""
    penalty = decode.length_penalty()
    found = []
    for output, each in zip(outputs, steps, strict=True):
        total = output.total if each is None else sum(each)
        divisor = 1.0 if decode.beams == 1 else penalty.at(max(len(output.tokens) + output.ended, 1))
        found.append(Hypothesis(output.tokens, total, total / divisor, output.ended, each or ()))
    return sorted(found, key=lambda one: -one.score)


def _sampling(decode: DecodeConfig, vocabulary: int) -> dict[str, float]:
    if not decode.sample or decode.temperature == 0:
        return {}
    return {
        "sampling_topk": min(decode.top_k, vocabulary),
        "sampling_topp": decode.top_p,
        "sampling_temperature": decode.temperature,
    }


def _cut(output: Output, limit: int) -> Output:
    """An output that grew longer than it may, because another in its batch was allowed to."""
    if len(output.tokens) + output.ended <= limit:
        return output
    return Output(output.tokens[:limit], False, output.total)
