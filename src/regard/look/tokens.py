"""Tokens as people see them: how they read, and which word they are a part of.

Ids are spelled one behind another, each in the light of the one before it, so that the space before a word and the
signs of a tokenizer come out as they do in the text. What is written so is cut into words, and a token belongs to the
word in which its first letter stands.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from regard.data.tokenizer import TextTokenizer
from regard.data.trees import TreeSymbols
from regard.errors import UserError
from regard.look.wire import Token

_WORD = re.compile(r"[\w�]+(?:['’][\w�]+)*|\S")
_BLANKS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})
_SPECIALS = 3


class Speller(Protocol):
    """Turns ids into tokens that can be shown."""

    def tokens(self, ids: Sequence[int]) -> list[Token]:
        """All ids of a text, in their order."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """What they say together."""
        ...


class TextSpeller:
    """Spells by the tokenizer of a text."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        self.hidden = tokenizer.special - {tokenizer.unknown}

    def text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)

    def tokens(self, ids: Sequence[int]) -> list[Token]:
        spelled = self._spelled(ids)
        words = [found.span() for found in _WORD.finditer("".join(spelled))]
        shown, begin, at = [], 0, 0
        word = -1
        for number, part in zip(ids, spelled, strict=True):
            if part:
                first = begin + len(part) - len(part.lstrip())
                begin += len(part)
                while at < len(words) and words[at][1] <= first:
                    at += 1
                word = at if part.strip() and at < len(words) else -1
            special = number in self.hidden
            piece = self.piece(number)
            shown.append(
                Token(
                    id=number,
                    piece=piece,
                    text=piece if special else _readable(part, piece),
                    word=-1 if special else word,
                    special=special,
                )
            )
        return shown

    def piece(self, number: int) -> str:
        """An id as the tokenizer writes it."""
        piece: str | None = self.tokenizer.tokenizer.id_to_token(number)
        return f"⟨{number}⟩" if piece is None else piece  # a vocabulary made larger for speed has ids without a piece

    def edited(self, given: Sequence[str], usual: Sequence[int]) -> list[int]:
        """The ids of tokens of which some were edited: pieces stay what they are, all else is text that was typed.

        `usual` are the ids that there were before. Where there are as many, a token that was edited begins a word if
        the one in its place did.
        """
        before = self.tokens(usual)
        aligned = len(before) == len(given)
        ids: list[int] = []
        for place, item in enumerate(given):
            if aligned and item == before[place].piece:
                ids.append(before[place].id)
                continue
            number = self.tokenizer.tokenizer.token_to_id(item)
            if number is not None and not (aligned and item.isalnum()):  # a plain word was typed, and means itself
                ids.append(int(number))
                continue
            begins = aligned and place > 0 and (before[place].special or before[place].word != before[place - 1].word)
            ids += self.tokenizer.encode(f" {item.strip()}" if begins and self._spaces_belong else item.strip())
        return ids

    @cached_property
    def _spaces_belong(self) -> bool:
        """Whether the space before a word belongs to its token."""
        return len(self.tokenizer.encode(" a")) == len(self.tokenizer.encode("a"))

    def _spelled(self, ids: Sequence[int]) -> list[str]:
        """What each id adds to the text; nothing, where it is special."""
        known = [number for number in ids if number not in self.hidden and self._has_text(number)]
        befores = [known[at - 1 : at] for at in range(len(known))]
        alone = self.tokenizer.decode_batch(befores)
        pairs = self.tokenizer.decode_batch([[*before, one] for before, one in zip(befores, known, strict=True)])
        parts = iter([both[len(first) :] for first, both in zip(alone, pairs, strict=True)])
        return ["" if number in self.hidden or not self._has_text(number) else next(parts) for number in ids]

    def _has_text(self, number: int) -> bool:
        return self.tokenizer.tokenizer.id_to_token(number) is not None


class TreeSpeller:
    """Spells the symbols of trees; each stands for itself."""

    def __init__(self, symbols: TreeSymbols) -> None:
        self.symbols = symbols

    def text(self, ids: Sequence[int]) -> str:
        return " ".join(self.symbols.decode(ids))

    def tokens(self, ids: Sequence[int]) -> list[Token]:
        shown, word = [], 0
        for number in ids:
            if not 0 <= number < len(self.symbols):
                raise UserError(f"There is no symbol with the id {number}; ids go from 0 to {len(self.symbols) - 1}.")
            special, piece = number < _SPECIALS, self.symbols.symbols[number]
            shown.append(Token(id=number, piece=piece, text=piece, word=-1 if special else word, special=special))
            word += not special
        return shown


def _readable(part: str, piece: str) -> str:
    """How a token reads. Blanks are made visible; half a character is shown as the tokenizer writes it."""
    if not part or "�" in part:
        return piece
    return part.strip() or part.translate(_BLANKS)
