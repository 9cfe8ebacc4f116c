"""Masked language modeling: some tokens of a row are hidden, and the model predicts them (Devlin et al. 2019, §3.1).

A fraction of a row's tokens is selected. Most of them become the mask token, some a random token, and the rest stay as
they are; all of them are targets. So the model cannot tell which tokens are original, and learns a representation of
all of them.

The masks of a batch are a function of (seed, epoch, index) alone: a resumed run continues with the same masks, and each
pass over the validation set uses the same ones.
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
from regard.data.batching.epochs import CounterRng, Integers, Purpose
from regard.data.batching.row_batch import RowBatch
from regard.data.batching.token_batches import Batch
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.errors import UserError

Booleans = NDArray[np.bool_]


class MaskingConfig(Config):
    """How tokens are masked. The defaults are BERT's."""

    probability: float = Field(default=0.15, gt=0, le=1)
    """The fraction of a row's tokens that are targets: at least one token, and otherwise exact on average."""
    mask_fraction: float = Field(default=0.8, ge=0, le=1)
    """The fraction of the targets that is replaced by the mask token."""
    random_fraction: float = Field(default=0.1, ge=0, le=1)
    """The fraction of the targets that is replaced by a random token. The rest is left unchanged."""
    whole_word: bool = False
    """Whole-word masking: all tokens of a word are selected together. `probability` then counts words."""

    @model_validator(mode="after")
    def _fractions_sum_to_at_most_one(self) -> Self:
        if self.mask_fraction + self.random_fraction > 1 + 1e-9:
            raise ConfigError(
                "random_fraction",
                f"found {self.random_fraction} with a mask_fraction of {self.mask_fraction}; their sum must be at "
                "most 1.",
            )
        return self


class Masking:
    """Masks tokens in rows of ids.

    `special_ids` are never targets and never used as random tokens; neither is the mask token or the padding of a
    batch. For whole-word masking, `starts` marks the ids of the vocabulary that begin a word (`word_starts`).
    """

    def __init__(
        self,
        config: MaskingConfig,
        *,
        mask_id: int,
        vocab_size: int,
        special_ids: Collection[int] = (),
        seed: int = 0,
        starts: Booleans | None = None,
    ) -> None:
        for name, token in (("mask", mask_id), *(("special", token) for token in special_ids)):
            if not 0 <= token < vocab_size:
                raise UserError(f"The {name} token {token} is outside the vocabulary of {vocab_size} tokens.")
        if starts is not None and starts.shape != (vocab_size,):
            raise UserError(f"Word starts of the shape {starts.shape} do not fit a vocabulary of {vocab_size} tokens.")
        self.config, self.mask_id, self.seed = config, mask_id, seed
        self._starts = starts
        self._maskable = np.ones(vocab_size, dtype=np.bool_)
        self._maskable[[mask_id, *special_ids]] = False
        self._random_ids = np.flatnonzero(self._maskable)
        if not len(self._random_ids):
            raise UserError(f"All {vocab_size} tokens of the vocabulary are special; none can be masked.")
        self.key = json.dumps([config.plain(), mask_id, vocab_size, sorted(special_ids), seed])

    def __call__(self, batch: Batch | RowBatch) -> RowBatch:
        """The targets of a batch with some of them masked."""
        documents = None
        if isinstance(batch, Batch):
            ids, lengths = batch.target, batch.target_lengths
        else:
            ids, lengths, documents = batch.targets, batch.lengths, batch.documents
        tokens, targets = self.mask(
            ids.numpy(),
            lengths.numpy(),
            epoch=batch.epoch,
            index=batch.index,
            documents=None if documents is None else documents.numpy(),
        )
        return RowBatch(
            tokens=torch.from_numpy(tokens),
            targets=torch.from_numpy(targets),
            lengths=lengths,
            documents=documents,
            count=int(np.count_nonzero(targets >= 0)),
            epoch=batch.epoch,
            index=batch.index,
        )

    def mask(
        self,
        ids: Integers,
        lengths: Integers,
        *,
        epoch: int,
        index: int,
        documents: Integers | None = None,
        starts: Booleans | None = None,
    ) -> tuple[Integers, Integers]:
        """The masked rows, and the targets: the original ids, or -1 where a token was not selected.

        ids, documents: # (rows, length); lengths: # (rows,); starts: # (rows, length), whether a word begins here, if
        the ids do not tell
        """
        maskable = self._maskable_positions(ids, lengths)
        rng = CounterRng(self.seed, epoch, index, Purpose.MASKING)
        if self.config.whole_word:
            begins = self._word_begins(ids, maskable, documents, starts)
            word = np.maximum.accumulate(np.where(begins, np.arange(ids.shape[1]), 0), axis=1)
            selected = maskable & np.take_along_axis(self._select(begins, rng), word, axis=1)
        else:
            selected = self._select(maskable, rng)
        targets = np.where(selected, ids, -1)
        tokens = ids.copy()
        tokens[selected] = self._replacements(ids[selected], rng)
        return tokens, targets

    def _maskable_positions(self, ids: Integers, lengths: Integers) -> Booleans:
        real = np.arange(ids.shape[1]) < lengths[:, None]
        vocab_size = len(self._maskable)
        invalid = real & ((ids < 0) | (ids >= vocab_size))
        if invalid.any():
            raise UserError(
                f"The id {ids[invalid][0]} is outside the vocabulary of {vocab_size} tokens; "
                "use the tokenizer that the vocabulary belongs to."
            )
        return real & self._maskable[np.where(real, ids, 0)]

    def _word_begins(
        self, ids: Integers, maskable: Booleans, documents: Integers | None, starts: Booleans | None
    ) -> Booleans:
        """Which positions begin a word: word starts, and positions after a special token or another document."""
        if starts is None:
            if self._starts is None:
                raise UserError("Whole-word masking needs to know where words begin; give starts, or turn it off.")
            starts = self._starts[np.where(maskable, ids, 0)]
        begins = starts.copy()
        begins[:, :1] = True
        begins[:, 1:] |= ~maskable[:, :-1]
        if documents is not None:
            begins[:, 1:] |= documents[:, 1:] != documents[:, :-1]
        return begins & maskable

    def _select(self, candidates: Booleans, rng: CounterRng) -> Booleans:
        """Select a fraction of the candidates in each row; all selections of the same size are equally likely.

        A fraction that is not a whole number of tokens is rounded up or down at random, so that it is exact on average.
        """
        rows, length = candidates.shape
        available = candidates.sum(axis=1)
        counts = np.floor(self.config.probability * available + rng.uniform(rows)).astype(np.int64)
        counts = np.minimum(np.maximum(counts, 1), available)
        priority = rng.raw(rows * length).reshape(rows, length)
        priority[~candidates] = np.iinfo(np.uint64).max
        threshold = np.take_along_axis(np.sort(priority, axis=1), np.maximum(counts - 1, 0)[:, None], axis=1)
        return candidates & (priority <= threshold)

    def _replacements(self, ids: Integers, rng: CounterRng) -> Integers:
        """The replacements of the selected tokens.  # (selected,)"""
        draw = rng.uniform(len(ids))
        random = self._random_ids[rng.integers(len(self._random_ids), len(ids))]
        masked, replaced = self.config.mask_fraction, self.config.random_fraction
        return np.where(draw < masked, self.mask_id, np.where(draw < masked + replaced, random, ids))


def word_starts(tokenizer: TextTokenizer) -> Booleans:
    """Which ids of a vocabulary begin a word.  # (vocab_size,)

    Words are separated by white space, and the white space before a word belongs to it. A tokenizer's own marks for
    beginnings (▁) or continuations (##) are used where it has them; in a word-level tokenizer every token is a word.
    """
    library, size = tokenizer.tokenizer, tokenizer.vocab_size
    names = [library.id_to_token(token) or "" for token in range(size)]
    model = library.model
    if isinstance(model, models.WordLevel):
        return np.ones(size, dtype=np.bool_)
    if isinstance(model, models.WordPiece):
        prefix = model.continuing_subword_prefix
        return np.array([not name.startswith(prefix) for name in names])
    known = [token for token, name in enumerate(names) if name]
    starts = np.zeros(size, dtype=np.bool_)
    for token, text in zip(known, tokenizer.decode_batch([[token] for token in known]), strict=True):
        starts[token] = names[token].startswith("▁") or text[:1].isspace()
    return starts
