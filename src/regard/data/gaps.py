"""Gaps to fill: some words of a row are hidden, and the model is asked for them (Devlin et al. 2018, §3.1).

Of the words of a row a share is chosen. Most become the mask, some a random word, some stay as they are; all of them
are asked for. So the model cannot know which words to trust, and learns something of each.

What happens to a batch is a function of (seed, epoch, number) alone: a run that is taken up goes on with the same gaps,
and validation that begins anew each time has the same ones each time.
"""

import json
from collections.abc import Collection
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from tokenizers import models

from regard.config import Config, ConfigError
from regard.data.batch import Batch
from regard.data.epochs import GAPS, Dice
from regard.data.rows import AnySource, ChangedBatches, RowBatch
from regard.data.shapes import Integers
from regard.data.tokenizer import TextTokenizer
from regard.errors import UserError

Booleans = NDArray[np.bool_]


class GapsConfig(Config):
    """How gaps are made. Numbers left out are BERT's."""

    share: float = Field(default=0.15, gt=0, le=1)
    """The share of a row's words that is asked for: at least one word, and else right on average."""
    masked: float = Field(default=0.8, ge=0, le=1)
    """The share of these that becomes the mask."""
    random: float = Field(default=0.1, ge=0, le=1)
    """The share of these that becomes a random word. The rest stays."""
    whole_words: bool = False
    """Whether all tokens of a word are asked for together, instead of each token counting as a word."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.masked + self.random > 1 + 1e-9:
            raise ConfigError("random", f"found {self.random}, and {self.masked} are masked; together at most 1.")
        return self


class Gaps:
    """Makes gaps in rows of ids.

    `special` are the ids that are never asked for and never put in as a random word; the `mask` and a batch's padding
    need not be among them. With whole words, `starts` says which tokens of the vocabulary begin a word (`word_starts`),
    unless it is told for each cell.
    """

    def __init__(
        self,
        config: GapsConfig,
        *,
        mask: int,
        vocabulary: int,
        special: Collection[int] = (),
        seed: int = 0,
        starts: Booleans | None = None,
    ) -> None:
        for name, number in (("mask", mask), *(("special", number) for number in special)):
            if not 0 <= number < vocabulary:
                raise UserError(f"The {name} token {number} is outside the vocabulary of {vocabulary}.")
        if starts is not None and starts.shape != (vocabulary,):
            raise UserError(f"Word starts of the shape {starts.shape} do not fit a vocabulary of {vocabulary}.")
        self.config, self.mask, self.seed = config, mask, seed
        self._starts = starts
        self._ordinary = np.ones(vocabulary, dtype=np.bool_)
        self._ordinary[[mask, *special]] = False
        self._words = np.flatnonzero(self._ordinary)
        if not len(self._words):
            raise UserError(f"All {vocabulary} tokens of the vocabulary are special; none can be asked for.")
        self.key = json.dumps([config.plain(), mask, vocabulary, sorted(special), seed])

    def __call__(self, batch: Batch | RowBatch) -> RowBatch:
        """The words of a batch (its targets) with gaps in them."""
        documents = None
        if isinstance(batch, Batch):
            words, lengths = batch.target, batch.target_lengths
        else:
            words, lengths, documents = batch.wanted, batch.lengths, batch.documents
        tokens, wanted = self.make(
            words.numpy(),
            lengths.numpy(),
            epoch=batch.epoch,
            number=batch.number,
            documents=None if documents is None else documents.numpy(),
        )
        return RowBatch(
            tokens=torch.from_numpy(tokens),
            wanted=torch.from_numpy(wanted),
            lengths=lengths,
            documents=documents,
            count=int(np.count_nonzero(wanted >= 0)),
            epoch=batch.epoch,
            number=batch.number,
        )

    def make(
        self,
        words: Integers,
        lengths: Integers,
        *,
        epoch: int,
        number: int,
        documents: Integers | None = None,
        starts: Booleans | None = None,
    ) -> tuple[Integers, Integers]:
        """The rows with gaps, and the words that were there, -1 where none is asked for.

        words, documents: # (rows, length); lengths: # (rows,); starts: # (rows, length), whether a cell begins a word
        """
        may = self._may_be_asked(words, lengths)
        dice = Dice(self.seed, epoch, number, GAPS)
        if self.config.whole_words:
            begins = self._begins(words, may, documents, starts)
            word = np.maximum.accumulate(np.where(begins, np.arange(words.shape[1]), 0), axis=1)
            chosen = may & np.take_along_axis(self._choose(begins, dice), word, axis=1)
        else:
            chosen = self._choose(may, dice)
        wanted = np.where(chosen, words, -1)
        tokens = words.copy()
        tokens[chosen] = self._instead(words[chosen], dice)
        return tokens, wanted

    def _may_be_asked(self, words: Integers, lengths: Integers) -> Booleans:
        real = np.arange(words.shape[1]) < lengths[:, None]
        vocabulary = len(self._ordinary)
        wrong = real & ((words < 0) | (words >= vocabulary))
        if wrong.any():
            raise UserError(
                f"The id {words[wrong][0]} is not in a vocabulary of {vocabulary}; "
                "use the tokenizer that the vocabulary belongs to."
            )
        return real & self._ordinary[np.where(real, words, 0)]

    def _begins(self, words: Integers, may: Booleans, documents: Integers | None, starts: Booleans | None) -> Booleans:
        """Which cells begin a word: those said to, and those behind a special token or another document."""
        if starts is None:
            if self._starts is None:
                raise UserError("Whole words need to know where words begin; give starts, or set whole_words=false.")
            starts = self._starts[np.where(may, words, 0)]
        begins = starts.copy()
        begins[:, :1] = True
        begins[:, 1:] |= ~may[:, :-1]
        if documents is not None:
            begins[:, 1:] |= documents[:, 1:] != documents[:, :-1]
        return begins & may

    def _choose(self, able: Booleans, dice: Dice) -> Booleans:
        """The share asked for of the cells that are able, in each row; all choices of as many are equally likely.

        A share that is no whole number of words is rounded up or down at random, so that it is right on average.
        """
        rows, length = able.shape
        many = able.sum(axis=1)
        exact = self.config.share * many
        wanted = np.floor(exact + dice.uniform(rows)).astype(np.int64)
        wanted = np.minimum(np.maximum(wanted, 1), many)
        drawn = dice.words(rows * length).reshape(rows, length)
        drawn[~able] = np.iinfo(np.uint64).max
        limit = np.take_along_axis(np.sort(drawn, axis=1), np.maximum(wanted - 1, 0)[:, None], axis=1)
        return able & (drawn <= limit)

    def _instead(self, words: Integers, dice: Dice) -> Integers:
        """What stands in the place of chosen words.  # (chosen,)"""
        fate = dice.uniform(len(words))
        other = self._words[dice.below(len(self._words), len(words))]
        masked, random = self.config.masked, self.config.random
        return np.where(fate < masked, self.mask, np.where(fate < masked + random, other, words))


class GapBatches(ChangedBatches[AnySource]):
    """The batches of a `source` (`TokenBatches`, windows, packed rows) with gaps in them."""

    def __init__(self, source: AnySource, gaps: Gaps) -> None:
        super().__init__(source, gaps, gaps.key)
        self.gaps = gaps


def word_starts(tokenizer: TextTokenizer) -> Booleans:
    """Which tokens begin a word.  # (vocabulary,)

    Words are what white space divides, with the white space before them; where a tokenizer has marks of its own for
    beginnings (▁) or continuations (##), these count, and tokens of one that only knows words are each one.
    """
    inside, many = tokenizer.tokenizer, tokenizer.vocabulary
    names = [inside.id_to_token(number) or "" for number in range(many)]
    model = inside.model
    if isinstance(model, models.WordLevel):
        return np.ones(many, dtype=np.bool_)
    if isinstance(model, models.WordPiece):
        prefix = model.continuing_subword_prefix
        return np.array([not name.startswith(prefix) for name in names])
    known = [number for number, name in enumerate(names) if name]
    starts = np.zeros(many, dtype=np.bool_)
    for number, text in zip(known, tokenizer.decode_batch([[number] for number in known]), strict=True):
        starts[number] = names[number].startswith("▁") or text[:1].isspace()
    return starts
