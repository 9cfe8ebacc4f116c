"""Text to token ids and back.

`TextTokenizer` is a thin wrapper over a `tokenizers.Tokenizer`, ours (see `tokenizer_training.py`) or an imported one.
It promises three things the library leaves open:

- Whatever a person types is plain text. A special token can be put into a sequence by its id only: `encode` never
  looks for its name, and never adds one. That belongs to the task.
- An id that means nothing is an error, and special ids leave no trace in decoded text. The unknown word does: it
  stands for a word that was there.
- The tokenizer is its JSON: the same JSON, the same ids, whose SHA-256 is the `fingerprint`.

The names of our own special tokens have brackets, ⟨ and ⟩, that no other token of ours can hold: every other token is
made of the 256 signs that stand for bytes, of one character, or of a word without brackets in it.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from tokenizers import Tokenizer

from regard.errors import UserError
from regard.files import write_text

SPECIAL_NAMES = {role: f"⟨{role}⟩" for role in ("padding", "start", "end", "unknown", "mask", "separator", "classify")}
"""What our own special tokens are called in tokenizer.json; the last three are for encoders."""


@dataclass(frozen=True)
class Lost:
    """What a text lost on its way to ids and back; false if nothing."""

    unknown: tuple[str, ...] = ()
    """Words that became the unknown token, in order."""
    altered: bool = False
    """Whether the rest comes back in another form: other spaces or line breaks, say."""

    def __bool__(self) -> bool:
        return bool(self.unknown) or self.altered

    def __str__(self) -> str:
        parts = []
        if self.unknown:
            different = list(dict.fromkeys(self.unknown))
            shown = ", ".join(different[:5]) + (", …" if len(different) > 5 else "")
            parts.append(f"words not in the vocabulary: {len(self.unknown)} ({shown})")
        if self.altered:
            parts.append("spaces or line breaks come back differently")
        return "; ".join(parts) if parts else "nothing was lost"


class TextTokenizer:
    """A tokenizer with the ids of its special tokens.

    Without given ids they are found by our own names. For an imported tokenizer give those its model uses; a role
    without an id stays None. The `tokenizer` given is copied, so that it stays as it was.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        padding: int | None = None,
        start: int | None = None,
        end: int | None = None,
        unknown: int | None = None,
        mask: int | None = None,
        separator: int | None = None,
        classify: int | None = None,
    ) -> None:
        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())
        # None of these three belongs in plain encoding; an imported tokenizer may have them set.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = True
        self._known = frozenset(self.tokenizer.get_vocab(with_added_tokens=True).values())
        self.vocabulary = max(self._known, default=-1) + 1
        """How many ids there are."""
        self.padding = self._special("padding", padding)
        self.start = self._special("start", start)
        self.end = self._special("end", end)
        self.unknown = self._special("unknown", unknown)
        self.mask = self._special("mask", mask)
        self.separator = self._special("separator", separator)
        self.classify = self._special("classify", classify)
        added = self.tokenizer.get_added_tokens_decoder()
        named = {number for number in self._ids().values() if number is not None}
        self.special = frozenset({number for number, token in added.items() if token.special} | named)
        """The ids that stand for no word of a text, the unknown one among them."""
        self._hidden = self.special - {self.unknown}
        self._instead = {number: ids for number in self._known & self._hidden if (ids := self._in_parts(number))}

    def __repr__(self) -> str:
        return f"TextTokenizer(vocabulary={self.vocabulary}, fingerprint={self.fingerprint[:12]!r})"

    def __reduce__(self) -> tuple[object, ...]:
        # The library's own pickling, which takes a tokenizer to another process, would forget `encode_special_tokens`.
        return _again, (type(self), self.json, self._ids())

    @property
    def json(self) -> str:
        """All of it, as tokenizer.json holds it."""
        return self.tokenizer.to_str()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the JSON: the same fingerprint, the same ids for every text."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without start or end."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, made on several threads."""
        try:
            encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            for text in texts:
                check_text(text)
            raise
        rows = [encoding.ids for encoding in encodings]
        if self._instead:
            rows = [[part for number in row for part in self._instead.get(number, (number,))] for row in rows]
        return rows

    def encode_placed(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, and of each from which to which of its characters it reaches."""
        check_text(text)
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        found = [
            (part, place)
            for number, place in zip(encoding.ids, encoding.offsets, strict=True)
            for part in self._instead.get(number, (number,))
        ]
        return [number for number, _ in found], [place for _, place in found]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids; special ones are left out, bytes that are no UTF-8 become �."""
        return self.tokenizer.decode(self._shown(ids), skip_special_tokens=False)

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of ids, made on several threads."""
        return self.tokenizer.decode_batch([self._shown(ids) for ids in rows], skip_special_tokens=False)

    def lost(self, text: str) -> Lost:
        """What `decode(encode(text))` does not give back."""
        check_text(text)
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        places = zip(encoding.ids, encoding.offsets, strict=True)
        unknown = tuple(text[first:last] for number, (first, last) in places if number == self.unknown)
        back = self.decode(self.encode(text))
        if self.unknown is not None and unknown:
            between = back.split(self.tokenizer.id_to_token(self.unknown))
            back = "".join(part for pair in zip(between, (*unknown, ""), strict=False) for part in pair)
        return Lost(unknown, back != text)

    def save(self, path: str | Path) -> Path:
        """Write tokenizer.json: beside its place, then renamed, so that it is there whole or not at all."""
        place = Path(path)
        write_text(place, self.json)
        return place

    @classmethod
    def load(cls, path: str | Path, **special: int | None) -> Self:
        """Open a tokenizer.json, our own or (with the ids its model uses for special tokens) any other."""
        place = Path(path)
        try:
            text = place.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise UserError(f"{place}: there is no such file; give the path of a tokenizer.json.") from None
        except OSError as error:
            raise UserError(f"{place} could not be read ({error.strerror}).") from None
        except UnicodeDecodeError:
            raise UserError(f"{place} is not UTF-8, so it is no tokenizer; restore it from a copy.") from None
        try:
            tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the library raises plain Exception
            raise UserError(f"{place} is not a tokenizer that can be read ({error}); restore it from a copy.") from None
        return cls(tokenizer, **special)

    def _ids(self) -> dict[str, int | None]:
        """The id of each role; None where it has none."""
        return {role: getattr(self, role) for role in SPECIAL_NAMES}

    def _special(self, role: str, given: int | None) -> int | None:
        """The id that plays this role: the given one, or that of our own name for it."""
        if given is None:
            number: int | None = self.tokenizer.token_to_id(SPECIAL_NAMES[role])
            return number
        if given not in self._known:
            raise UserError(f"The {role} token should have the id {given}, but the tokenizer has no such id.")
        return given

    def _in_parts(self, number: int) -> list[int]:
        """What stands for a special token's name in text, where an imported model has that name among its words.

        Such a model (a unigram model mostly) finds the name itself, though the library no longer looks for it. Then
        the first character and the rest are tokens of their own. Our own names cannot be met that way.
        """
        name = self.tokenizer.id_to_token(number)
        if name is None or name in SPECIAL_NAMES.values():
            return []
        try:
            if [token.id for token in self.tokenizer.model.tokenize(name)] != [number]:
                return []
            return [token.id for part in (name[:1], name[1:]) for token in self.tokenizer.model.tokenize(part)]
        except Exception:  # the library's plain Exception: no token for a part and no unknown one either
            return []

    def _shown(self, ids: Sequence[int]) -> list[int]:
        """The ids that have text; those that mean nothing are refused."""
        for number in ids:
            if number not in self._known:
                raise UserError(
                    f"The id {number} is no token of this tokenizer, whose ids go from 0 to {self.vocabulary - 1}; "
                    "was it made with another tokenizer?"
                )
        return [int(number) for number in ids if number not in self._hidden]


def check_text(text: str) -> None:
    """Refuse what a Python string can hold and no text can: half a surrogate pair."""
    if not isinstance(text, str):
        raise UserError(f"Expected a text, found a value of type {type(text).__name__}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"Character {error.start + 1} of the text is half a surrogate pair ({text[error.start]!r}), which stands "
            "for no character; read the text as UTF-8 or remove it."
        ) from None


def _again(kind: type[TextTokenizer], text: str, ids: dict[str, int | None]) -> TextTokenizer:
    return kind(Tokenizer.from_str(text), **ids)
