"""Token ids as displayable tokens: their readable spelling, and which word each belongs to.

Each id is decoded together with the one before it, so that the space before a word and the tokenizer's markers come
out as they do in the text. The decoded text is split into words, and a token belongs to the word that contains its
first character.
"""

import re
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Protocol

from regard.data.tokenizers.token_bytes import token_bytes
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.trees.linearization import TreeVocabulary
from regard.errors import UserError
from regard.look.schema import Token

WORD = re.compile(r"[\w�]+(?:['’][\w�]+)*|\S")
"""A word of a text, or one of its other characters, such as a punctuation mark."""
_VISIBLE_WHITESPACE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})
_TREE_SPECIALS = 3


class Detokenizer(Protocol):
    """Turns token ids into displayable tokens and text."""

    def tokens(self, ids: Sequence[int]) -> list[Token]:
        """A token for each id of a sequence."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """The text of a sequence."""
        ...

    def encode_after(self, ids: Sequence[int], text: str) -> list[int]:
        """The ids of a text that follows a sequence."""
        ...


class TextDetokenizer:
    """The detokenizer of a text tokenizer."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        self.special_ids = tokenizer.special_ids - {tokenizer.unk}

    def text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)

    def encode_after(self, ids: Sequence[int], text: str) -> list[int]:
        before = self.tokenizer.encode(self.text(ids))
        whole = self.tokenizer.encode(f"{self.text(ids)} {text.strip()}".strip())
        known = whole[: len(before)] == before and len(whole) > len(before)
        return whole[len(before) :] if known else self.tokenizer.encode(text)

    def tokens(self, ids: Sequence[int]) -> list[Token]:
        spellings = self._spellings(ids)
        shown = self._characters(ids) if any("�" in spelling for spelling in spellings) else [None] * len(spellings)
        words = [match.span() for match in WORD.finditer("".join(spellings))]
        tokens, offset, index = [], 0, 0
        word = -1
        for token_id, spelling, characters in zip(ids, spellings, shown, strict=True):
            if spelling:
                first = offset + len(spelling) - len(spelling.lstrip())
                offset += len(spelling)
                while index < len(words) and words[index][1] <= first:
                    index += 1
                word = index if spelling.strip() and index < len(words) else -1
            special = token_id in self.special_ids
            piece = self.piece(token_id)
            tokens.append(
                Token(
                    id=token_id,
                    piece=piece,
                    text=piece if special else _readable(spelling, piece) if characters is None else characters,
                    word=-1 if special else word,
                    special=special,
                )
            )
        return tokens

    def piece(self, token_id: int) -> str:
        """The tokenizer's own spelling of an id."""
        piece: str | None = self.tokenizer.tokenizer.id_to_token(token_id)
        return f"⟨{token_id}⟩" if piece is None else piece  # a vocabulary padded for speed has ids without a piece

    def edited_ids(
        self,
        pieces: Sequence[str] | None,
        ids: Sequence[int],
        frame: tuple[int, int] = (0, 0),
        allowed: Collection[int | None] = (),
    ) -> list[int]:
        """The ids of a text whose tokens were edited; `ids` themselves if `pieces` is None.

        `frame` is the number of special tokens before and after the text in `pieces`. Inside the text only the special
        ids in `allowed` may appear. If the pieces spell the text, they are those of a trace that is repeated, and keep
        their ids even where the text by itself would be tokenized differently.
        """
        if pieces is None:
            return list(ids)
        inner = pieces[frame[0] : len(pieces) - frame[1]]
        known = [each for each in map(self.tokenizer.tokenizer.token_to_id, inner) if each is not None]
        is_repeated = len(known) == len(inner) and self.text(known) == self.text(ids)
        edited = known if is_repeated else self.encode_pieces(inner, ids)
        wrong = next((each for each in edited if each in self.special_ids and each not in allowed), None)
        if wrong is not None:
            raise UserError(f"{self.piece(wrong)} is a special token and cannot be part of a text; use a word instead.")
        return edited

    def encode_pieces(self, pieces: Sequence[str], original_ids: Sequence[int]) -> list[int]:
        """The ids of tokens some of which were edited: known pieces keep their id, all else is tokenized as text.

        If there are as many pieces as `original_ids`, an edited token starts a new word if the original one did.
        """
        original = self.tokens(original_ids)
        aligned = len(original) == len(pieces)
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            if aligned and piece == original[index].piece:
                ids.append(original[index].id)
                continue
            token_id = self.tokenizer.tokenizer.token_to_id(piece)
            if token_id is not None and not (aligned and piece.isalnum()):  # a typed word is text, not a piece
                ids.append(int(token_id))
                continue
            starts_word = aligned and index > 0
            starts_word = starts_word and (original[index].special or original[index].word != original[index - 1].word)
            text = piece.strip()
            ids += self.tokenizer.encode(f" {text}" if starts_word and self._includes_space else text)
        return ids

    @cached_property
    def _includes_space(self) -> bool:
        """Whether the space before a word is part of its token."""
        return len(self.tokenizer.encode(" a")) == len(self.tokenizer.encode("a"))

    def _spellings(self, ids: Sequence[int]) -> list[str]:
        """What each id adds to the text; empty for special tokens."""
        known = [token_id for token_id in ids if token_id not in self.special_ids and self._has_text(token_id)]
        previous = [known[index - 1 : index] for index in range(len(known))]
        alone = self.tokenizer.decode_batch(previous)
        pairs = self.tokenizer.decode_batch([[*before, each] for before, each in zip(previous, known, strict=True)])
        added = iter([both[len(first) :] for first, both in zip(alone, pairs, strict=True)])
        return ["" if token_id in self.special_ids or not self._has_text(token_id) else next(added) for token_id in ids]

    def _characters(self, ids: Sequence[int]) -> list[str | None]:
        """What tokens are displayed as that begin or end within a character; None for all others."""
        known = token_bytes(self.tokenizer)
        shown: list[str | None] = []
        started = b""  # a character that tokens before have begun
        for token_id in ids:
            data = known[token_id] if token_id not in self.special_ids and token_id < len(known) else b""
            before, (text, started) = started, _decode_bytes(started, data)
            is_part = bool(data) and (bool(before) or bool(started) or "‹" in text)
            shown.append((text.strip() or text.translate(_VISIBLE_WHITESPACE)) if is_part else None)
        return shown

    def _has_text(self, token_id: int) -> bool:
        return self.tokenizer.tokenizer.id_to_token(token_id) is not None


class TreeDetokenizer:
    """The detokenizer of tree symbols; each symbol is a word of its own."""

    def __init__(self, symbols: TreeVocabulary) -> None:
        self.symbols = symbols

    def text(self, ids: Sequence[int]) -> str:
        return " ".join(self.symbols.decode(ids))

    def encode_after(self, ids: Sequence[int], text: str) -> list[int]:
        for symbol in text.split():
            if symbol not in self.symbols:
                raise UserError(f"{symbol!r} is no symbol of a tree of this model; give one such as '(NP' or ')'.")
        return self.symbols.encode(text.split())

    def tokens(self, ids: Sequence[int]) -> list[Token]:
        tokens, word = [], 0
        for token_id in ids:
            if not 0 <= token_id < len(self.symbols):
                raise UserError(f"There is no symbol with the id {token_id}; ids go from 0 to {len(self.symbols) - 1}.")
            special, piece = token_id < _TREE_SPECIALS, self.symbols.symbols[token_id]
            tokens.append(Token(id=token_id, piece=piece, text=piece, word=-1 if special else word, special=special))
            word += not special
        return tokens


def count_words(tokens: Sequence[Token]) -> int:
    """The number of words in some tokens."""
    return 1 + max((token.word for token in tokens), default=-1)


def token_after(detokenizer: Detokenizer, token_id: int, previous_id: int, words: int) -> Token:
    """A token after another one, where `words` is the number of words so far."""
    previous, token = detokenizer.tokens([previous_id, token_id])
    if token.word < 0:
        return token
    starts_word = previous.word != token.word
    return token.model_copy(update={"word": words if starts_word else words - 1})


def _decode_bytes(started: bytes, data: bytes) -> tuple[str, bytes]:
    """The text of a token's bytes behind the first bytes of a character, and the first bytes of one that it begins.

    Bytes that complete a character are displayed as that character, and those that are none by themselves as ‹D8›.
    """
    text, lone, position = "", b"", 0
    left = started + data
    while position < len(left):
        size = _utf8_length(left[position])
        encoded = left[position : position + size]
        is_begun = len(encoded) < size and all(0x80 <= byte < 0xC0 for byte in encoded[1:])
        if is_begun:
            return text + _bytes_text(lone + left[max(position, len(started)) :]), encoded
        try:
            character = encoded.decode()
        except UnicodeDecodeError:
            character = ""
        if character:
            text, lone = text + _bytes_text(lone) + character, b""
        elif position >= len(started):  # bytes of tokens before have been displayed with these
            lone += left[position : position + 1]
        position += size if character else 1
    return text + _bytes_text(lone), b""


def _utf8_length(first: int) -> int:
    """The number of bytes of a character by its first byte; 0 if no character begins so."""
    if first < 0x80:
        return 1
    ranges = {2: range(0xC2, 0xE0), 3: range(0xE0, 0xF0), 4: range(0xF0, 0xF5)}
    return next((size for size, first_bytes in ranges.items() if first in first_bytes), 0)


def _bytes_text(data: bytes) -> str:
    return f"‹{data.hex(' ').upper()}›" if data else ""


def _readable(spelling: str, piece: str) -> str:
    """A token's display text: whitespace made visible."""
    if not spelling:
        return piece
    return spelling.strip() or spelling.translate(_VISIBLE_WHITESPACE)
