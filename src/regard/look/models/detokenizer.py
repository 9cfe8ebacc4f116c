"""Token ids as displayable tokens: their readable spelling, and which word each belongs to.

Each id is decoded together with the one before it, so that the space before a word and the tokenizer's markers come
out as they do in the text. The decoded text is split into words, and a token belongs to the word that contains its
first character.
"""

import re
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Protocol

from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.trees.linearization import TreeVocabulary
from regard.errors import UserError
from regard.look.schema import Token

_WORD = re.compile(r"[\w�]+(?:['’][\w�]+)*|\S")
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
        words = [match.span() for match in _WORD.finditer("".join(spellings))]
        tokens, offset, index = [], 0, 0
        word = -1
        for token_id, spelling in zip(ids, spellings, strict=True):
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
                    text=piece if special else _readable(spelling, piece),
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
        ids in `allowed` may appear.
        """
        if pieces is None:
            return list(ids)
        edited = self.encode_pieces(pieces[frame[0] : len(pieces) - frame[1]], ids)
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


def _readable(spelling: str, piece: str) -> str:
    """A token's display text: whitespace made visible; the piece itself for part of a character."""
    if not spelling or "�" in spelling:
        return piece
    return spelling.strip() or spelling.translate(_VISIBLE_WHITESPACE)
