"""The fill-mask pipeline: predicts the words at `[MASK]` in a text.

A mask stands for one token of the tokenizer, or for a given number of tokens. Subword tokenizers have tokens that begin
a word and tokens that continue one (## in WordPiece), and a mask is only filled with what fits its place: after a space
or at the beginning of a text with a token that begins a word, directly after a letter with one that continues it. So
the filled text consists of whole words; a word that is not a token of the vocabulary needs several tokens.

The pipeline also gives contextual word vectors: one vector for each word of a text, which depends on all others
(`task/contextual_vectors/`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import models
from torch import Tensor

from regard.data.batching.masking import word_starts
from regard.errors import UserError, suggest_keywords
from regard.model import MaskedLMHeadConfig
from regard.run import LoadedModel
from regard.task.contextual_vectors.model import TextVectors, pool_words, tokenize_words
from regard.task.pipeline import Pipeline
from regard.task.text_encoder import encoder_and_tokenizer, length_batches, not_a_text_encoder, surrounding_tokens

MASK = "[MASK]"
"""Marks a masked word in a text. Everything else is plain text."""
_MIN_BEAMS = 8
"""The minimum beam size for a mask of several tokens."""
Texts = list[str] | tuple[str, ...]


class Guess(NamedTuple):
    """A prediction for a mask: the text to put in its place, and its probability."""

    text: str
    probability: float


class MaskedRow(NamedTuple):
    """The ids of a text with masks."""

    ids: list[int]
    masks: list[range]
    """The positions of each mask."""
    after_space: list[bool]
    """Whether a space comes before the mask, which belongs to its first token."""
    preceding: list[str]
    """The character before the mask; empty at the beginning of the text."""


class FillMask(Pipeline):
    """A masked language model with its tokenizer."""

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__(loaded)
        self.encoder, self.tokenizer = encoder_and_tokenizer(loaded)
        assert self.tokenizer.mask is not None
        self.mask_id = self.tokenizer.mask
        self.surrounding = surrounding_tokens(self.encoder.config.special_tokens)

    @classmethod
    def unsupported_reason(cls, loaded: LoadedModel) -> str | None:
        if (reason := not_a_text_encoder(loaded)) is not None:
            return reason
        encoder, text = encoder_and_tokenizer(loaded)
        if not isinstance(encoder.config.head, MaskedLMHeadConfig):
            return f"This model does not fill masks: it was trained with the head {encoder.config.head.kind!r}."
        return None if text.mask is not None else "This model does not fill masks: it has no mask token."

    @overload
    def fill(self, text: str, *, top: int, tokens_per_mask: int = 1, pieces: bool = False) -> list[list[Guess]]: ...
    @overload
    def fill(
        self,
        text: Texts,
        *,
        top: int,
        tokens_per_mask: int = 1,
        pieces: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[list[Guess]]]: ...
    @overload
    def fill(self, text: str, *, tokens_per_mask: int = 1) -> str: ...
    @overload
    def fill(
        self, text: Texts, *, tokens_per_mask: int = 1, progress: Callable[[int], None] | None = None
    ) -> list[str]: ...

    @suggest_keywords
    def fill(
        self,
        text: str | Texts,
        *,
        top: int | None = None,
        tokens_per_mask: int = 1,
        pieces: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Any:
        """Fill each `[MASK]` in a text, or in a list of texts.

            filler.fill("The [MASK] ate the mouse.")                 # "The cat ate the mouse."
            filler.fill("The [MASK] ate the mouse.", top=2)          # [[Guess("cat", 0.62), Guess("dog", 0.11)]]
            filler.fill("The [MASK] ate.", top=5, pieces=True)       # tokens as the vocabulary spells them: ##ing

        A mask is one token, or `tokens_per_mask` of them. After a space or at the beginning of a text it is filled with
        tokens that begin a word, and directly after a letter with tokens that continue it, so that the text consists of
        whole words. With `pieces` every token of the vocabulary counts, and is given as the vocabulary spells it.

        The result is the filled text. With `top` it is a list with the most likely fillers of each mask, best first, as
        `Guess(text, probability)`. A list of texts gives a list of results. `progress` is called with the number of
        finished texts.

        Each mask is filled while the others stay masked. A mask of several tokens is filled from left to right by beam
        search; its probability is the product of its tokens' probabilities, each given those before it.
        """
        if pieces and top is None:
            raise UserError("pieces: also say how many tokens to give for each mask, such as top=5.")
        count = 1 if top is None else top
        if count < 1 or tokens_per_mask < 1:
            raise UserError(f"top ({count}) and tokens_per_mask ({tokens_per_mask}) must be at least 1.")
        texts = [text] if isinstance(text, str) else list(text)
        rows = [self.encode_masked(each, tokens_per_mask) for each in texts]
        found = self.fill_rows(rows, top=count, pieces=pieces, progress=progress)
        results: list[Any] = list(found)
        if top is None:
            results = [self.filled(each, guesses) for each, guesses in zip(texts, found, strict=True)]
        return results[0] if isinstance(text, str) else results

    def encode_masked(self, text: str, tokens_per_mask: int = 1) -> MaskedRow:
        """The ids of a text with masks."""
        *parts, rest = text.split(MASK)
        if not parts:
            raise UserError(f"There is no mask in {_short(text)}; write {MASK} where a word is missing.")
        prefix, suffix = self.surrounding
        ids, masks, after_space, preceding = list(prefix), [], [], []
        for number, part in enumerate(parts):
            spaced = self._word_initial is not None and part.endswith(" ")  # the space belongs to the masked word
            ids += self.tokenizer.encode(part[:-1] if spaced else part)
            masks.append(range(len(ids), len(ids) + tokens_per_mask))
            after_space.append(spaced)
            preceding.append(part[-1:] or (MASK[-1] if number else ""))
            ids += [self.mask_id] * tokens_per_mask
        ids += [*self.tokenizer.encode(rest), *suffix]
        return MaskedRow(ids, masks, after_space, preceding)

    def fill_rows(
        self,
        rows: Sequence[MaskedRow],
        *,
        top: int,
        pieces: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[list[Guess]]]:
        """The most likely fillers of each mask, for rows whose masks all have the same number of tokens."""
        hypotheses = [one for number, row in enumerate(rows) for one in self._initial_hypotheses(number, row)]
        length = max((len(one.positions) for one in hypotheses), default=1)
        for step in range(length):
            beam_size = top if length == 1 else max(top, _MIN_BEAMS)
            hypotheses = self._extend(hypotheses, step, beam_size, pieces=pieces)
            if progress is not None:
                progress(len(rows) * (step + 1) // length)
        results: list[list[list[Guess]]] = [[[] for _ in row.masks] for row in rows]
        for one in hypotheses:
            guesses = results[one.row][one.mask]
            if len(guesses) < top:
                text = self._spelling(one) if pieces else self._text(one)
                guesses.append(Guess(text, float(np.exp(one.logprob))))
        return results

    def filled(self, text: str, guesses: Sequence[Sequence[Guess]]) -> str:
        """A text with each mask replaced by its best guess."""
        first, *rest = text.split(MASK)
        return first + "".join(best.text + part for (best, *_), part in zip(guesses, rest, strict=True))

    def vectors(self, text: str, *, layer: int | None = None) -> TextVectors:
        """Contextual word vectors: for each word of a text the mean of its tokens' hidden states.

        They are those of the last layer, or of `layer`: 1 is the first, 0 is the input of the first.
        """
        found: TextVectors = self.contextual_vectors(text, layer=layer)
        return found

    def static_vectors(self, text: str) -> TextVectors:
        """Word vectors from the embedding table, which do not depend on the context."""
        words, ids, tokens = tokenize_words(self.tokenizer, text)
        table = self.encoder.embed_tokens.weight.detach()
        return TextVectors(
            words, pool_words(table[torch.tensor(ids, device=table.device)].float(), tokens, "mean").cpu()
        )

    def _initial_hypotheses(self, number: int, row: MaskedRow) -> list["_Hypothesis"]:
        """The masks of a row, none of them filled yet."""
        masks = enumerate(zip(row.masks, row.after_space, row.preceding, strict=True))
        return [_Hypothesis(number, mask, row.ids, *place) for mask, place in masks]

    @torch.no_grad()
    def _extend(
        self, hypotheses: list["_Hypothesis"], step: int, beam_size: int, *, pieces: bool = False
    ) -> list["_Hypothesis"]:
        """Each mask's hypotheses extended by one token: the `beam_size` most likely ones, best first."""
        beams: dict[tuple[int, int], list[_Hypothesis]] = {}
        for numbers, tokens, lengths in length_batches([one.ids for one in hypotheses], self.encoder):
            batch = [hypotheses[number] for number in numbers]
            positions = torch.tensor([[one.positions[step]] for one in batch], device=tokens.device)
            possible = torch.stack([self._allowed if step or pieces else self._fitting(one) for one in batch])
            logits = self.encoder(tokens, lengths=lengths, positions=positions)[:, 0]  # (rows, vocabulary)
            logprobs = logits.double().log_softmax(dim=-1).masked_fill(~possible.to(tokens.device), -torch.inf)
            best = logprobs.topk(min(beam_size, logprobs.shape[1]))
            for one, choices, scores in zip(batch, best.indices.tolist(), best.values.tolist(), strict=True):
                extended = [one.with_token(token, score) for token, score in zip(choices, scores, strict=True)]
                beams.setdefault((one.row, one.mask), []).extend(longer for longer in extended if longer.is_possible)
        return [one for key in sorted(beams) for one in sorted(beams[key], key=lambda one: -one.logprob)[:beam_size]]

    def _fitting(self, hypothesis: "_Hypothesis") -> Tensor:
        """Which tokens can be the first of a mask, so that the text consists of whole words.  # (vocabulary,)"""
        if self._word_initial is None:  # every token is a character
            return self._allowed
        begins_word = hypothesis.after_space
        if not hypothesis.preceding:
            begins_word |= self._text_begins_with_word_initial
        elif self._marks_continuations:  # a word also begins after a bracket, for example
            begins_word |= not hypothesis.preceding.isalnum()
        fitting = self._word_initial if begins_word else self._attached
        fitting = fitting & self._allowed
        return fitting if fitting.any() else self._allowed

    def _spelling(self, hypothesis: "_Hypothesis") -> str:
        """The tokens as the vocabulary spells them."""
        return " ".join(str(self.tokenizer.tokenizer.id_to_token(token)) for token in hypothesis.tokens)

    @cached_property
    def _marks_continuations(self) -> bool:
        """Whether the tokens that continue a word are marked (##), and not those that begin one."""
        return isinstance(self.tokenizer.tokenizer.model, models.WordLevel | models.WordPiece)

    @cached_property
    def _text_begins_with_word_initial(self) -> bool:
        """Whether the first word of a text is encoded like one after a space."""
        if self._word_initial is None or self._marks_continuations:
            return True
        return bool(self._word_initial[self.tokenizer.encode("a")[:1]].all())

    def _text(self, hypothesis: "_Hypothesis") -> str:
        """The text that replaces the mask, without a space that is already before it."""
        text = self.tokenizer.decode(hypothesis.tokens)
        if isinstance(model := self.tokenizer.tokenizer.model, models.WordPiece):
            text = text.removeprefix(model.continuing_subword_prefix)
        return text.removeprefix(" ") if hypothesis.after_space else text

    @cached_property
    def _allowed(self) -> Tensor:
        """Which tokens can be predicted: all but the special ones.  # (vocabulary,)"""
        allowed = torch.zeros(self.encoder.config.vocab_size, dtype=torch.bool)
        allowed[: self.tokenizer.vocab_size] = True
        allowed[sorted(self.tokenizer.special_ids)] = False
        return allowed

    @cached_property
    def _word_starts(self) -> NDArray[np.bool_]:
        return word_starts(self.tokenizer)

    @cached_property
    def _attached(self) -> Tensor:
        """Which tokens continue a word, or come directly after it, as punctuation does.  # (vocabulary,)"""
        attached = ~self._word_starts
        if self._marks_continuations:
            names = [self.tokenizer.tokenizer.id_to_token(token) or "" for token in range(len(attached))]
            attached |= [not name[:1].isalnum() for name in names]
        padded = torch.zeros_like(self._allowed)
        padded[: len(attached)] = torch.from_numpy(attached)
        return padded

    @cached_property
    def _word_initial(self) -> Tensor | None:
        """Which tokens begin a word and include the space before it.  # (vocabulary,)

        None if spaces are tokens of their own, as in a character tokenizer.
        """
        starts = self._word_starts.copy()
        if not self._marks_continuations:
            tokens = np.flatnonzero(starts).tolist()
            blank = [not text.strip() for text in self.tokenizer.decode_batch([[token] for token in tokens])]
            starts[[token for token, is_blank in zip(tokens, blank, strict=True) if is_blank]] = False
            if not starts.any():
                return None
        word_initial = torch.zeros_like(self._allowed)
        word_initial[: len(starts)] = torch.from_numpy(starts)
        return word_initial


@dataclass(frozen=True)
class _Hypothesis:
    """A partly filled mask of a row."""

    row: int
    mask: int
    ids: list[int]
    positions: range
    after_space: bool
    preceding: str
    tokens: tuple[int, ...] = ()
    logprob: float = 0.0

    @property
    def is_possible(self) -> bool:
        return self.logprob > -np.inf

    def with_token(self, token: int, logprob: float) -> "_Hypothesis":
        ids = list(self.ids)
        ids[self.positions[len(self.tokens)]] = token
        return replace(self, ids=ids, tokens=(*self.tokens, token), logprob=self.logprob + logprob)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")
