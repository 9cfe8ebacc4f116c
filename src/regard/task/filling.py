"""Filling gaps: hidden words of a text, told from what stands on both sides of them (Devlin et al. 2019, §3.1)."""

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from regard.cost import Work
from regard.data.asked import AskedBatch
from regard.data.gaps import Gaps, GapsConfig, word_starts
from regard.data.rows import ChangedBatches, RowBatch
from regard.data.texts import TextConfig, fingerprint, read_texts
from regard.data.tokenizer import TextTokenizer
from regard.data.tokenizer_training import train_tokenizer
from regard.data.windows import TokenStream
from regard.errors import UserError
from regard.model import Encoder, EncoderConfig
from regard.model.experts import balance_of, gathered
from regard.score import FillScore
from regard.task.encoders import frame, load_encoder, load_encoder_tokenizer, started_from
from regard.task.filling_recipe import FillingRecipe
from regard.task.job import Score, score_sets
from regard.task.passes import passes, step_loss
from regard.task.recipe import Say
from regard.task.text_rows import Batches, make_stream, training_rows, whole_rows
from regard.train.gradient import in_precision
from regard.train.loss import Loss, word_loss
from regard.train.task import Forward, Measured
from regard.train.world import ALONE, World


class FillingTask:
    """A text in rows with gaps, an encoder, the loss of the words that are hidden."""

    def __init__(
        self,
        recipe: FillingRecipe,
        tokenizer: TextTokenizer,
        train: TokenStream,
        held: dict[str, TokenStream],
        fingerprints: dict[str, str],
        model: Encoder,
        world: World = ALONE,
    ) -> None:
        """`held` are the texts that are not learnt from, by name: "valid" and the test sets."""
        self.recipe, self.tokenizer, self.model, self.world = recipe, tokenizer, model, world
        self.held, self.fingerprints = held, fingerprints
        gaps, seed = recipe.gaps, recipe.train.seed
        judged = GapsConfig(share=gaps.share, masked=1.0, random=0.0, whole_words=gaps.whole_words)
        self._judged = _Asking(recipe, _gaps(judged, tokenizer, seed=0))
        asking = _Asking(recipe, _gaps(gaps, tokenizer, seed=seed))
        rows = training_rows(recipe.data, train, recipe.rows, seed=seed, start=_START)
        self.batches: ChangedBatches[Batches] = ChangedBatches(rows, asking, asking.gaps.key)

    @classmethod
    def begin(cls, recipe: FillingRecipe, folder: Path, say: Say, world: World) -> Self:
        """A tokenizer, ids of all parts and a model with its first weights."""
        tokenizer, first = world.in_turn(lambda: _tokenizer_and_encoder(recipe, folder, say))
        size = tokenizer.vocabulary if first is None else first.config.vocabulary
        settings = recipe.model_settings(size, {role: getattr(tokenizer, role) for role in _ROLES})
        data = recipe.data
        parts = dict(data.test) if data.valid is None else {"valid": data.valid, **data.test}
        fingerprints = {"train": " ".join(map(fingerprint, data.train))}
        fingerprints |= {name: fingerprint(part) for name, part in parts.items()}

        def stream(*texts: TextConfig) -> TokenStream:
            return _stream(recipe, texts, tokenizer, settings, say)

        train = world.in_turn(lambda: stream(*data.train))
        held = world.in_turn(lambda: {name: stream(part) for name, part in parts.items()})
        torch.manual_seed(recipe.train.seed)
        if first is None:
            model = settings.build()
        else:
            assert recipe.init_from is not None
            model = started_from(first, settings, recipe.init_from, say).train()
        return cls(recipe, tokenizer, train, held, fingerprints, model, world)

    @property
    def report(self) -> str:
        return f"{100 * self.recipe.gaps.share:g} % of {self.batches.report}"

    def work(self) -> Work:
        return self.recipe.likely_work()

    def loss(self, forward: Forward, batch: AskedBatch) -> Loss:
        """Every hidden word is told from all that is left of its row."""
        with gathered() as notes:
            scores = _scores(forward, batch.repeated(passes(self.recipe.train)))
        return step_loss(scores, batch.wanted, None, self.recipe.train.loss).also(balance_of(notes))

    def plain_loss(self, forward: Forward, batch: AskedBatch) -> Loss:
        return word_loss(_scores(forward, batch), batch.wanted)

    def validation(self) -> Iterator[AskedBatch]:
        """The whole validation part, the same words hidden each time."""
        valid = self.held.get("valid")
        return iter(()) if valid is None else self._once(valid)

    def measure(self) -> Measured | None:
        """How many of the hidden words are the likeliest to the model."""
        valid = self.held.get("valid")
        if valid is None:
            return None
        accuracy = self.score(valid).accuracy
        return Measured(accuracy, {"accuracy": accuracy})

    def test(self, say: Say) -> dict[str, Score]:
        """The test sets, each as a whole; without any, the validation part."""
        return score_sets(self.recipe, self.held, self.score, say)

    @torch.no_grad()
    def score(self, stream: TokenStream) -> FillScore:
        """How well the model, as it stands, finds hidden words; several processes share the text out."""
        self.model.eval()
        forward = in_precision(self.model, self.recipe.train.precision)
        sums = torch.zeros(3, dtype=torch.float64, device=self.model.device)  # hidden words, found ones, nats
        for number, batch in enumerate(self._once(stream)):
            if number % self.world.size == self.world.rank:
                here = batch.to(self.model.device)
                scores = _scores(forward, here)
                right = (scores.argmax(-1) == here.wanted).sum()  # -1 is no word
                loss = word_loss(scores, here.wanted)
                sums += torch.stack([loss.count.double(), right.double(), loss.plain.double()])
        asked, correct, nats = self.world.sum(sums.tolist())
        return FillScore(int(asked), int(correct), nats)

    def facts(self) -> dict[str, Any]:
        return {"data": self.fingerprints, "context": self.recipe.data.context}

    def _once(self, stream: TokenStream) -> Iterator[AskedBatch]:
        return map(self._judged, whole_rows(self.recipe.data, stream, start=_START))


_START = 0  # any token: it stands before a packed document, so that its first token is one to predict, and is not read
_ROLES = ("padding", "mask", "separator", "classify")


class _Asking:
    """Makes gaps in a batch and keeps what is asked for."""

    def __init__(self, recipe: FillingRecipe, gaps: Gaps) -> None:
        self.gaps = gaps
        self._usual = recipe.usual

    def __call__(self, batch: RowBatch) -> AskedBatch:
        return AskedBatch.of(self.gaps(batch), self._usual)


def _scores(forward: Forward, batch: RowBatch) -> Tensor:
    """Scores of the words that are asked for.  # (rows, most, vocabulary)"""
    assert isinstance(batch, AskedBatch)
    return forward(batch.tokens, lengths=batch.lengths, documents=batch.documents, places=batch.places)


def _gaps(config: GapsConfig, tokenizer: TextTokenizer, seed: int) -> Gaps:
    assert tokenizer.mask is not None
    return Gaps(
        config,
        mask=tokenizer.mask,
        vocabulary=tokenizer.vocabulary,
        special=tokenizer.special,
        seed=seed,
        starts=word_starts(tokenizer) if config.whole_words else None,
    )


def _tokenizer_and_encoder(recipe: FillingRecipe, folder: Path, say: Say) -> tuple[TextTokenizer, Encoder | None]:
    """Learnt once for a run and kept in its folder, or those of an earlier model."""
    place = folder / "tokenizer.json"
    if recipe.init_from is not None:
        first, tokenizer = load_encoder(recipe.init_from)
        if tokenizer.mask is None:
            raise UserError(f"{recipe.init_from} has no token that hides a word, so it cannot learn to fill gaps.")
        tokenizer.save(place)
        return tokenizer, first
    if not place.is_file():
        texts = chain.from_iterable(read_texts(part) for part in recipe.data.train)
        train_tokenizer(recipe.tokenizer, islice(texts, recipe.tokenizer.sample), say).save(place)
    return load_encoder_tokenizer(place), None


def _stream(
    recipe: FillingRecipe, parts: tuple[TextConfig, ...], tokenizer: TextTokenizer, settings: EncoderConfig, say: Say
) -> TokenStream:
    """The ids of some texts. Packed documents each have the tokens around them that a text of its own has."""
    packed = recipe.data.rows == "packed"
    before, after = frame(settings.tokens)
    end = after[0] if after else None
    return make_stream(parts, tokenizer, say, whole=packed, before=before if packed else (), end=end)
