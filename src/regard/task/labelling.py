"""Labels for texts and tags for words, by a head on an encoder: new, or fine-tuned from one that fills gaps."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor

from regard.cost import Work
from regard.data.labelled import (
    LABEL_SIDES,
    TAG_SIDES,
    Labelled,
    LabelledBatches,
    Tagged,
    label_items,
    label_set,
    tag_items,
)
from regard.data.registry import cache_folder
from regard.data.rows import RowBatch
from regard.data.store import TokenStore, cached
from regard.data.tokenizer import TextTokenizer
from regard.data.tokenizer_training import train_tokenizer
from regard.errors import UserError
from regard.model import ClassifyConfig, Encoder, EncoderConfig
from regard.model.experts import balance_of, gathered
from regard.score import AccuracyScore, score_accuracy
from regard.task.encoders import LIKELY_TOKENS, frame, load_encoder, load_encoder_tokenizer, started_from
from regard.task.job import Score, score_sets
from regard.task.labeller import text_scores, word_scores
from regard.task.labelling_recipe import LabellingRecipe
from regard.task.passes import passes, step_loss
from regard.task.recipe import Say
from regard.train.gradient import in_precision
from regard.train.loss import Loss, word_loss
from regard.train.task import Forward, Measured
from regard.train.world import ALONE, World

_VALIDATION_TOKENS = 8192

Sentence = Labelled | Tagged


class LabellingTask:
    """Labelled texts or tagged sentences, an encoder with a head for them, the loss of its labels, its accuracy."""

    def __init__(
        self,
        recipe: LabellingRecipe,
        tokenizer: TextTokenizer,
        train: TokenStore,
        valid: TokenStore | None,
        held: dict[str, list[Sentence]],
        fingerprints: dict[str, str],
        model: Encoder,
        world: World = ALONE,
    ) -> None:
        """`held` are the sentences that are not learnt from, by name: "valid" and the test sets."""
        self.recipe, self.tokenizer, self.model, self.world = recipe, tokenizer, model, world
        self.valid, self.held, self.fingerprints = valid, held, fingerprints
        config, longest = recipe.train, recipe.parts.longest
        try:
            self.batches = LabelledBatches(
                train, config.tokens, seed=config.seed, shapes=config.shapes, limit=longest
            )  # fmt: skip
        except UserError as error:
            raise UserError(f"{error} Raise data.longest ({longest}) or train.tokens ({config.tokens}).") from None

    @classmethod
    def begin(cls, recipe: LabellingRecipe, folder: Path, say: Say, world: World) -> Self:
        """Sentences, a tokenizer, stores of ids and a model with its first weights."""
        data = recipe.parts
        train = [sentence for part in data.train for sentence in recipe.sentences(part)]
        labels = label_set(train)
        parts: dict[str, Any] = dict(data.test) if data.valid is None else {"valid": data.valid, **data.test}
        held = {name: list(recipe.sentences(part, labels)) for name, part in parts.items()}
        tokenizer, first = world.in_turn(lambda: _tokenizer_and_encoder(recipe, train, folder, say))
        size = tokenizer.vocabulary if first is None else first.config.vocabulary
        settings = recipe.model_settings(size, {role: getattr(tokenizer, role) for role in LIKELY_TOKENS}, labels)

        def store(sentences: Sequence[Sentence]) -> TokenStore:
            return _store(sentences, tokenizer, settings, data.longest, say)

        train_store = world.in_turn(lambda: store(train))
        valid = held.get("valid")
        valid_store = None if valid is None else world.in_turn(lambda: store(valid))
        fingerprints = {"train": _digest(train)} | {name: _digest(part) for name, part in held.items()}
        torch.manual_seed(recipe.train.seed)
        if first is None:
            model = settings.build()
        else:
            assert recipe.init_from is not None
            model = started_from(first, settings, recipe.init_from, say).train()
        return cls(recipe, tokenizer, train_store, valid_store, held, fingerprints, model, world)

    @property
    def report(self) -> str:
        return f"{len(self.model.config.labels):,} labels, {self.batches.report}"

    def work(self) -> Work:
        config, usual = self.recipe.train, self.batches.source.usual
        return Work(
            usual.rows,
            usual.lengths[0],
            steps=config.steps,
            accumulate=config.accumulate,
            tokens=max(config.tokens, usual.lengths[0]),
            passes=passes(config),
        )

    def loss(self, forward: Forward, batch: RowBatch) -> Loss:
        with gathered() as notes:
            scores = _scores(forward, batch.repeated(passes(self.recipe.train)))
        return step_loss(scores, _wanted(batch), None, self.recipe.train.loss).also(balance_of(notes))

    def plain_loss(self, forward: Forward, batch: RowBatch) -> Loss:
        return word_loss(_scores(forward, batch), _wanted(batch))

    def validation(self) -> Iterator[RowBatch]:
        """The whole validation part, however long its sentences are."""
        if self.valid is None:
            return iter(())
        longest = int(self.valid.lengths(self.valid.sides[0]).max())
        return LabelledBatches(self.valid, max(_VALIDATION_TOKENS, longest), shapes=16).epoch()

    def measure(self) -> Measured | None:
        """How often it is right."""
        valid = self.held.get("valid")
        if valid is None:
            return None
        accuracy = self.score(valid).accuracy
        return Measured(accuracy, {"accuracy": accuracy})

    def test(self, say: Say) -> dict[str, Score]:
        """The test sets, each as a whole; without any, the validation part."""
        return score_sets(self.recipe, self.held, self.score, say)

    def score(self, sentences: Sequence[Sentence]) -> AccuracyScore:
        """How often the model, as it stands, is right; several processes share the sentences out."""
        self.model.eval()
        mine = self.world.share(sentences)
        forward = in_precision(self.model, self.recipe.train.precision)
        if isinstance(self.model.config.head, ClassifyConfig):
            texts = [cast(Labelled, one).text for one in mine]
            scores = text_scores(self.model, self.tokenizer, texts, self.recipe.parts.longest, forward=forward)
        else:
            scores = word_scores(self.model, self.tokenizer, [cast(Tagged, one).words for one in mine], forward=forward)
        labels = self.model.config.labels
        number = {label: place for place, label in enumerate(labels)}
        found: list[int] = []
        wanted: list[int] = []
        nats = 0.0
        for one, log_p in zip(mine, scores, strict=True):
            right = [number[label] for label in ((one.label,) if isinstance(one, Labelled) else one.tags)]
            nats -= float(log_p.double().gather(1, torch.tensor(right)[:, None]).sum())
            found += log_p.argmax(dim=-1).tolist()
            wanted += right
        theirs = self.world.gather([found, wanted, nats])
        return score_accuracy(
            [one for answers, _, _ in theirs for one in answers],
            [one for _, right, _ in theirs for one in right],
            labels,
            sum(part for _, _, part in theirs),
        )

    def facts(self) -> dict[str, Any]:
        """How long a text may be is what a label depends on besides the model."""
        return {"data": self.fingerprints, "longest": self.recipe.parts.longest}


def _scores(forward: Forward, batch: RowBatch) -> Tensor:
    """Scores of labels for each token; or for each row, as if it had one token.  # (rows, length or 1, labels)"""
    scores = forward(batch.tokens, lengths=batch.lengths)
    return scores[:, None] if batch.wanted.dim() == 1 else scores


def _wanted(batch: RowBatch) -> Tensor:
    """# (rows, length or 1)"""
    return batch.wanted[:, None] if batch.wanted.dim() == 1 else batch.wanted


def _tokenizer_and_encoder(
    recipe: LabellingRecipe, sentences: Sequence[Sentence], folder: Path, say: Say
) -> tuple[TextTokenizer, Encoder | None]:
    """Learnt once for a run and kept in its folder, or those of an earlier model."""
    place = folder / "tokenizer.json"
    if recipe.init_from is not None:
        first, tokenizer = load_encoder(recipe.init_from)
        tokenizer.save(place)
        return tokenizer, first
    if not place.is_file():
        texts = (one.text if isinstance(one, Labelled) else " ".join(one.words) for one in sentences)
        train_tokenizer(recipe.tokenizer, texts, say).save(place)
    return load_encoder_tokenizer(place), None


def _store(
    sentences: Sequence[Sentence], tokenizer: TextTokenizer, settings: EncoderConfig, longest: int, say: Say
) -> TokenStore:
    """The ids of sentences and the numbers of their labels, made once and found again by content."""
    before, after = frame(settings.tokens)
    labels = settings.labels
    sides = LABEL_SIDES if isinstance(settings.head, ClassifyConfig) else TAG_SIDES
    key = json.dumps([_digest(sentences), tokenizer.fingerprint, labels, before, after, longest])
    sizes = {sides[0]: settings.vocabulary, sides[1]: len(labels) + 1}

    def items() -> Iterator[tuple[list[int], list[int]]]:
        if sides == LABEL_SIDES:
            texts = cast(Sequence[Labelled], sentences)
            return label_items(texts, tokenizer, labels, before=before, after=after, longest=longest)
        return tag_items(cast(Sequence[Tagged], sentences), tokenizer, labels, before=before, after=after)

    return cached(cache_folder() / "tokens", key, items, sides, sizes, say)


def _digest(sentences: Sequence[Sentence]) -> str:
    """SHA-256 of what was read."""
    return hashlib.sha256(json.dumps(sentences, ensure_ascii=False).encode()).hexdigest()
