"""Language modelling: a text's next token, foretold from those before it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from regard.cost import Work
from regard.data.rows import RowBatch
from regard.data.texts import TextConfig, TextCounts, count_text, fingerprint, read_texts
from regard.data.tokenizer import TextTokenizer
from regard.data.tokenizer_training import train_tokenizer
from regard.data.windows import TokenStream
from regard.model import LanguageModel
from regard.model.experts import balance_of, gathered
from regard.score import LanguageScore, score_language
from regard.task.generator import load_generator
from regard.task.job import Score, score_sets
from regard.task.language_recipe import LanguageRecipe
from regard.task.passes import passes, step_loss
from regard.task.recipe import SPECIAL, Say
from regard.task.text_rows import Batches, make_stream, training_rows, whole_rows
from regard.train.gradient import in_precision
from regard.train.loss import Loss, word_loss
from regard.train.task import Forward, Measured
from regard.train.world import ALONE, World


@dataclass(frozen=True)
class Text:
    """A part of the data as ids, and how much text they stand for."""

    stream: TokenStream
    counts: TextCounts
    first: str
    """The text of the first token where it is read and never predicted: where rows are not packed."""


class LanguageTask:
    """A text in rows, a language model, the loss of its next tokens."""

    def __init__(
        self,
        recipe: LanguageRecipe,
        tokenizer: TextTokenizer,
        train: TokenStream,
        held: dict[str, Text],
        fingerprints: dict[str, str],
        model: LanguageModel,
        world: World = ALONE,
    ) -> None:
        """`held` are the texts that are not learnt from, by name: "valid" and the test sets."""
        self.recipe, self.tokenizer, self.model, self.world = recipe, tokenizer, model, world
        self.held, self.fingerprints = held, fingerprints
        rows, seed = recipe.rows, recipe.train.seed
        self.batches: Batches = training_rows(recipe.data, train, rows, seed=seed, start=SPECIAL["start"])

    @classmethod
    def begin(cls, recipe: LanguageRecipe, folder: Path, say: Say, world: World) -> Self:
        """A tokenizer, ids of all parts and a model with its first weights."""
        tokenizer, first = world.in_turn(lambda: _tokenizer_and_model(recipe, folder, say))
        data = recipe.data
        parts = dict(data.test) if data.valid is None else {"valid": data.valid, **data.test}
        fingerprints = {"train": " ".join(map(fingerprint, data.train))}
        fingerprints |= {name: fingerprint(part) for name, part in parts.items()}
        train = world.in_turn(lambda: _stream(recipe, data.train, tokenizer, say))
        held = world.in_turn(lambda: {name: _text(recipe, part, tokenizer, say) for name, part in parts.items()})
        torch.manual_seed(recipe.train.seed)
        model = recipe.model_settings(tokenizer.vocabulary).build() if first is None else first.train()
        return cls(recipe, tokenizer, train, held, fingerprints, model, world)

    @property
    def report(self) -> str:
        return str(self.batches.report)

    def work(self) -> Work:
        return self.recipe.likely_work()

    def loss(self, forward: Forward, batch: RowBatch) -> Loss:
        """Every token is predicted from the right tokens before it."""
        with gathered() as notes:
            scores = _scores(forward, batch.repeated(passes(self.recipe.train)))
        return step_loss(scores, batch.wanted, batch.lengths, self.recipe.train.loss).also(balance_of(notes))

    def plain_loss(self, forward: Forward, batch: RowBatch) -> Loss:
        return word_loss(_scores(forward, batch), batch.wanted, batch.lengths)

    def validation(self) -> Iterator[RowBatch]:
        """The whole validation part, each token but the first once."""
        valid = self.held.get("valid")
        return iter(()) if valid is None else self._windows(valid)

    def measure(self) -> Measured | None:
        """The loss is what counts, and the loop takes it already."""
        return None

    def test(self, say: Say) -> dict[str, Score]:
        """The test sets, each as a whole; without any, the validation part."""
        return score_sets(self.recipe, self.held, self.score, say)

    @torch.no_grad()
    def score(self, text: Text) -> LanguageScore:
        """How well the model, as it stands, foretells a text; several processes share it out."""
        self.model.eval()
        forward = in_precision(self.model, self.recipe.train.precision)
        nats = tokens = 0.0
        for number, batch in enumerate(self._windows(text)):
            if number % self.world.size == self.world.rank:
                loss = self.plain_loss(forward, batch.to(self.model.device))
                nats, tokens = nats + float(loss.plain), tokens + float(loss.count)
        nats, tokens = self.world.sum([nats, tokens])
        counts, first = text.counts, text.first
        return score_language(
            nats, int(tokens), bytes=counts.bytes - len(first.encode()), characters=counts.characters - len(first)
        )

    def facts(self) -> dict[str, Any]:
        return {"data": self.fingerprints, "context": self.recipe.data.context}

    def _windows(self, text: Text) -> Iterator[RowBatch]:
        return whole_rows(self.recipe.data, text.stream, start=SPECIAL["start"])


def _scores(forward: Forward, batch: RowBatch) -> Tensor:
    """Scores for the token after each.  # (rows, length, vocabulary)

    Padding stands on the right, where no token sees it, and no loss is taken of it.
    """
    if batch.documents is None:
        return forward(batch.tokens)
    return forward(batch.tokens, lengths=batch.lengths, documents=batch.documents)


def _tokenizer_and_model(recipe: LanguageRecipe, folder: Path, say: Say) -> tuple[TextTokenizer, LanguageModel | None]:
    """Learnt once for a run and kept in its folder, or those of an earlier model."""
    place = folder / "tokenizer.json"
    if recipe.init_from is not None:
        first = load_generator(recipe.init_from)
        first.text.save(place)
        say(f"Starting from the weights and the tokenizer of {recipe.init_from}.")
        return first.text, first.language_model
    if not place.is_file():
        texts = chain.from_iterable(read_texts(part) for part in recipe.data.train)
        train_tokenizer(recipe.tokenizer, islice(texts, recipe.tokenizer.sample), say).save(place)
    return TextTokenizer.load(place), None


def _stream(recipe: LanguageRecipe, parts: tuple[TextConfig, ...], tokenizer: TextTokenizer, say: Say) -> TokenStream:
    """The ids of some texts one behind the other."""
    packed, end = recipe.data.rows == "packed", tokenizer.end if recipe.data.ends else None
    return make_stream(parts, tokenizer, say, whole=packed, end=end)


def _text(recipe: LanguageRecipe, part: TextConfig, tokenizer: TextTokenizer, say: Say) -> Text:
    stream = _stream(recipe, (part,), tokenizer, say)
    first = "" if recipe.data.rows == "packed" else tokenizer.decode([int(stream.tokens[0])])
    return Text(stream, count_text(part), first)
