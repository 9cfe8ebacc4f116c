"""A model that fills gaps, ready to use: a text with `[MASK]` in it in, the words that may have stood there out.

The same model gives words in context: one vector for every word of a text, in the light of all others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import models
from torch import Tensor

from regard.data.gaps import word_starts
from regard.data.words import split_words
from regard.errors import UserError
from regard.model import FillConfig
from regard.run import Loaded, find, load
from regard.task.encoders import frame, in_batches, reader

MASK = "[MASK]"
"""What stands for a gap in a text. Everything else that is typed is plain text."""
_BEAMS = 8
"""Beginnings of a gap of several tokens that are followed at least."""


class Guess(NamedTuple):
    """What may stand in a gap, and how likely it is. Put in the place of the mark it makes a text."""

    text: str
    probability: float


class WordVectors(NamedTuple):
    """The words of a text, and a vector for each."""

    words: tuple[str, ...]
    vectors: Tensor  # (words, width)


class GappedRow(NamedTuple):
    """What a model reads of a text with gaps."""

    ids: list[int]
    places: list[range]
    """Where each gap is."""
    spaced: list[bool]
    """Whether a space stands before it, which belongs to its first token."""


class Filler(Loaded):
    """An encoder that scores words, with its tokenizer."""

    def __init__(self, loaded: Loaded, name: str = "This model") -> None:
        self.encoder, self.text = reader(loaded, name)
        head = self.encoder.config.head
        if not isinstance(head, FillConfig):
            raise UserError(f"{name} does not fill gaps: it was trained with the head {head.kind!r}.")
        if self.text.mask is None:
            raise UserError(f"{name} does not fill gaps: it has no token that stands for a hidden word.")
        super().__init__(loaded.model, loaded.tokenizer, place=loaded.place)
        self.mask = self.text.mask
        self.frame = frame(self.encoder.config.tokens)

    def to(self, device: torch.device | str) -> "Filler":
        self.model.to(device)
        return self

    def fill(self, text: str, *, top: int = 5, pieces: int = 1) -> list[list[Guess]]:
        """For each gap of a text, marked by `[MASK]`, its `top` likeliest words, of `pieces` tokens each."""
        return self.fill_all([text], top=top, pieces=pieces)[0]

    def fill_all(
        self,
        texts: Sequence[str],
        *,
        top: int = 5,
        pieces: int = 1,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[list[Guess]]]:
        """The same for many texts. `progress` hears how many are done.

        Each gap is filled while the others are gaps. One of several tokens is filled from left to right, the likeliest
        beginnings side by side; its probability is the product of theirs, each given those before it.
        """
        if top < 1 or pieces < 1:
            raise UserError(f"A gap needs at least one word of at least one token; found {top} of {pieces}.")
        return self.fill_rows([self.row(text, pieces) for text in texts], top=top, progress=progress)

    def row(self, text: str, pieces: int = 1) -> GappedRow:
        """What the model reads of a text with gaps."""
        *parts, rest = text.split(MASK)
        if not parts:
            raise UserError(f"There is no gap in {_short(text)}; write {MASK} where a word is missing.")
        before, after = self.frame
        ids, places, spaced = list(before), [], []
        for part in parts:
            joined = self._behind_space is not None and part.endswith(" ")  # the space then belongs to what is missing
            ids += self.text.encode(part[:-1] if joined else part)
            places.append(range(len(ids), len(ids) + pieces))
            spaced.append(joined)
            ids += [self.mask] * pieces
        ids += [*self.text.encode(rest), *after]
        return GappedRow(ids, places, spaced)

    def fill_rows(
        self, rows: Sequence[GappedRow], *, top: int = 5, progress: Callable[[int], None] | None = None
    ) -> list[list[list[Guess]]]:
        """The likeliest words of each gap, of rows whose gaps are all of one length."""
        found = [gap for number, row in enumerate(rows) for gap in self._gaps(number, row)]
        pieces = max((len(gap.places) for gap in found), default=1)
        for step in range(pieces):
            found = self._filled(found, step, top if pieces == 1 else max(top, _BEAMS))
            if progress is not None:
                progress(len(rows) * (step + 1) // pieces)
        results: list[list[list[Guess]]] = [[[] for _ in row.places] for row in rows]
        for gap in found:
            guesses = results[gap.text][gap.number]
            if len(guesses) < top:
                guesses.append(Guess(self._shown(gap), float(np.exp(gap.log_probability))))
        return results

    def filled(self, text: str, guesses: Sequence[Sequence[Guess]]) -> str:
        """A text with the best guess in each of its gaps."""
        first, *rest = text.split(MASK)
        return first + "".join(best.text + part for (best, *_), part in zip(guesses, rest, strict=True))

    def vectors(self, text: str, *, layer: int | None = None) -> WordVectors:
        """Words in context: for each word of a text the mean of its tokens' vectors.

        They are those of the last layer, or of the one asked for: 1 is the first, 0 what goes into it.
        """
        return self._by_word(text, lambda ids: self._contextual(ids, layer))

    def static_vectors(self, text: str) -> WordVectors:
        """The same before any layer: a word has one vector, whatever stands around it."""
        table = self.encoder.vocabulary.weight.detach()
        return self._by_word(text, lambda ids: table[torch.tensor(ids, device=table.device)].float())

    def _gaps(self, number: int, row: GappedRow) -> list["_Gap"]:
        """The gaps of a row, none of them filled yet."""
        each = zip(row.places, row.spaced, strict=True)
        return [_Gap(number, gap, row.ids, place, space) for gap, (place, space) in enumerate(each)]

    @torch.no_grad()
    def _filled(self, gaps: list["_Gap"], step: int, kept: int) -> list["_Gap"]:
        """Every gap with one more of its tokens, in its `kept` likeliest forms, best first."""
        forms: dict[tuple[int, int], list[_Gap]] = {}
        for numbers, tokens, lengths in in_batches([gap.row for gap in gaps], self.encoder.device):
            some = [gaps[number] for number in numbers]
            places = torch.tensor([[gap.places[step]] for gap in some], device=tokens.device)
            scores = self.encoder(tokens, lengths=lengths, places=places)[:, 0]  # (rows, vocabulary)
            likely = scores.double().log_softmax(dim=-1).masked_fill(~self._possible(some, step), -torch.inf)
            best = likely.topk(min(kept, likely.shape[1]))
            for gap, choices, gains in zip(some, best.indices.tolist(), best.values.tolist(), strict=True):
                longer = [gap.with_token(token, gain) for token, gain in zip(choices, gains, strict=True)]
                forms.setdefault((gap.text, gap.number), []).extend(one for one in longer if one.is_possible)
        return [gap for key in sorted(forms) for gap in sorted(forms[key], key=lambda one: -one.log_probability)[:kept]]

    def _possible(self, gaps: list["_Gap"], step: int) -> Tensor:
        """Which tokens can come next in each gap: behind a space, one that begins a word.  # (gaps, vocabulary)"""
        spaced = torch.tensor([[gap.spaced and step == 0] for gap in gaps])
        begins = self._allowed if self._behind_space is None else self._allowed & self._behind_space
        return torch.where(spaced, begins, self._allowed).to(self.encoder.device)

    def _shown(self, gap: "_Gap") -> str:
        """What to put in the place of the mark; a space that stands before it is not said again."""
        text = self.text.decode(gap.tokens)
        return text.removeprefix(" ") if gap.spaced else text

    @cached_property
    def _allowed(self) -> Tensor:
        """Which tokens can be guessed: all that stand for text.  # (vocabulary,)"""
        allowed = torch.zeros(self.encoder.config.vocabulary, dtype=torch.bool)
        allowed[: self.text.vocabulary] = True
        allowed[sorted(self.text.special)] = False
        return allowed

    @cached_property
    def _behind_space(self) -> Tensor | None:
        """Which tokens begin a word, where the space before a word belongs to it.  # (vocabulary,)

        None where spaces are tokens of their own, as in a tokenizer of characters.
        """
        starts = word_starts(self.text)
        if not isinstance(self.text.tokenizer.model, models.WordLevel | models.WordPiece):
            numbers = np.flatnonzero(starts).tolist()
            blank = [not text.strip() for text in self.text.decode_batch([[number] for number in numbers])]
            starts[[number for number, empty in zip(numbers, blank, strict=True) if empty]] = False
            if not starts.any():
                return None
        found = torch.zeros_like(self._allowed)
        found[: len(starts)] = torch.from_numpy(starts)
        return found

    @torch.no_grad()
    def _contextual(self, ids: list[int], layer: int | None) -> Tensor:
        """The vectors of a text's tokens.  # (tokens, width)"""
        before, after = self.frame
        row = torch.tensor([[*before, *ids, *after]], device=self.encoder.device)
        blocks = self.encoder.encoder.blocks
        if layer is not None and not 0 <= layer <= len(blocks):
            raise UserError(f"There is no layer {layer}; this model has layers 1 to {len(blocks)}, and 0 before them.")
        held: list[Tensor] = []
        if layer is None:
            held.append(self.encoder.encode(row))
        else:
            hook = (
                blocks[layer - 1].register_forward_hook(lambda block, given, made: held.append(made))
                if layer
                else blocks[0].register_forward_pre_hook(lambda block, given: held.append(given[0]))
            )
            try:
                self.encoder.encode(row)
            finally:
                hook.remove()
        return held[0][0, len(before) : len(before) + len(ids)].float()

    def _by_word(self, text: str, vectors: Callable[[list[int]], Tensor]) -> WordVectors:
        words = split_words(text)
        if not words:
            raise UserError("There is no word in the text; give a sentence.")
        ids, places = self.text.encode_placed(text)
        pieces, at = vectors(ids), 0
        found = []
        for word in words:
            first = text.index(word, at)
            at = first + len(word)
            own = [number for number, (begin, end) in enumerate(places) if begin < at and end > first]
            found.append(pieces[own].mean(dim=0))
        return WordVectors(tuple(words), torch.stack(found).cpu())


@dataclass(frozen=True)
class _Gap:
    """A gap under way: the row it stands in, where, and what was put there so far."""

    text: int
    number: int
    row: list[int]
    places: range
    spaced: bool
    """Whether a space stands before it, which belongs to its first token."""
    tokens: tuple[int, ...] = ()
    log_probability: float = 0.0

    @property
    def is_possible(self) -> bool:
        return self.log_probability > -np.inf

    def with_token(self, token: int, gain: float) -> "_Gap":
        row = list(self.row)
        row[self.places[len(self.tokens)]] = token
        return replace(self, row=row, tokens=(*self.tokens, token), log_probability=self.log_probability + gain)


def load_filler(name: str | Path, device: torch.device | str = "cpu") -> Filler:
    """A model that fills gaps, from a run folder; computes in float32."""
    filler = Filler(load(name), str(find(name)))
    filler.model.float()
    return filler.to(device)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")
