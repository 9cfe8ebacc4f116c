"""Text to token ids and back.

`TextTokenizer` is a thin wrapper around a `tokenizers.Tokenizer`, trained by regard (training.py) or imported. It adds
three guarantees:

- User input is plain text. Special tokens are only added to a sequence by their ids: `encode` neither recognizes
  their names nor adds them. Adding them is up to the task.
- Invalid ids are an error, and special tokens are left out of decoded text, except the unknown token, which stands for
  a word.
- The JSON determines the tokenizer: the same JSON gives the same ids, and its SHA-256 is the `fingerprint`.

The names of our special tokens contain the brackets ⟨ and ⟩, which no other token of ours can contain: all others
consist of the 256 characters that stand for bytes, of one character, or of a word without brackets.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from tokenizers import Tokenizer

from regard.errors import UserError
from regard.files import write_text

SPECIAL_NAMES = {
    "pad": "⟨pad⟩",
    "bos": "⟨bos⟩",
    "eos": "⟨eos⟩",
    "unk": "⟨unk⟩",
    "mask": "⟨mask⟩",
    "sep": "⟨sep⟩",
    "cls": "⟨cls⟩",
}
"""The names of our special tokens in tokenizer.json; the last three are for encoders."""
MAX_FILE_BYTES = 100_000_000
"""The largest tokenizer.json that is opened; vocabularies of 250,000 tokens take about a third of it."""
MAX_VOCAB_SIZE = 10_000_000
"""The most ids of a tokenizer."""


@dataclass(frozen=True)
class RoundTripLoss:
    """The changes made by encoding and decoding a text; false if there are none."""

    unknown: tuple[str, ...] = ()
    """The words that became the unknown token, in order."""
    altered: bool = False
    """Whether the rest is changed too, such as spaces or line breaks."""

    def __bool__(self) -> bool:
        return bool(self.unknown) or self.altered

    def __str__(self) -> str:
        parts = []
        if self.unknown:
            distinct = list(dict.fromkeys(self.unknown))
            shown = ", ".join(distinct[:5]) + (", …" if len(distinct) > 5 else "")
            parts.append(f"words not in the vocabulary: {len(self.unknown)} ({shown})")
        if self.altered:
            parts.append("spaces or line breaks are changed")
        return "; ".join(parts) if parts else "nothing is lost"


class TextTokenizer:
    """A tokenizer with the ids of its special tokens.

    By default the special tokens are found by our own names. For an imported tokenizer, give the ids that its model
    uses; special tokens that it does not have are None. `tokenizer` is copied and not modified.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        pad: int | None = None,
        bos: int | None = None,
        eos: int | None = None,
        unk: int | None = None,
        mask: int | None = None,
        sep: int | None = None,
        cls: int | None = None,
    ) -> None:
        self._known = _checked_ids(tokenizer)
        self.vocab_size = max(self._known, default=-1) + 1
        """The number of ids."""
        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())
        # Plain encoding needs none of these, which an imported tokenizer may have set.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = True
        self.pad = self._special_id("pad", pad)
        self.bos = self._special_id("bos", bos)
        self.eos = self._special_id("eos", eos)
        self.unk = self._special_id("unk", unk)
        self.mask = self._special_id("mask", mask)
        self.sep = self._special_id("sep", sep)
        self.cls = self._special_id("cls", cls)
        added = self.tokenizer.get_added_tokens_decoder()
        named = {number for number in self.special_roles.values() if number is not None}
        self.special_ids = frozenset({number for number, token in added.items() if token.special} | named)
        """The ids of all special tokens, including the unknown token."""
        self._hidden = self.special_ids - {self.unk}
        self._split_names = {token: ids for token in self._known & self._hidden if (ids := self._split_name(token))}

    def __repr__(self) -> str:
        return f"TextTokenizer(vocab_size={self.vocab_size}, fingerprint={self.fingerprint[:12]!r})"

    def __reduce__(self) -> tuple[object, ...]:
        # The library's own pickling would lose `encode_special_tokens`.
        return _from_json, (type(self), self.json, self.special_roles)

    @property
    def json(self) -> str:
        """The contents of tokenizer.json."""
        return self.tokenizer.to_str()

    @property
    def ids(self) -> list[int]:
        """All ids, in ascending order; there may be gaps."""
        return sorted(self._known)

    @property
    def special_roles(self) -> dict[str, int | None]:
        """The id of each special token by its role, or None."""
        return {role: getattr(self, role) for role in SPECIAL_NAMES}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the JSON: tokenizers with the same fingerprint give the same ids."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without BOS and EOS."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, computed on several threads."""
        try:
            with _explain_panics():
                encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            for text in texts:
                check_text(text)
            raise
        rows = [encoding.ids for encoding in encodings]
        if self._split_names:
            rows = [[part for token in row for part in self._split_names.get(token, (token,))] for row in rows]
        return rows

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, and the span of characters that each of them covers."""
        check_text(text)
        with _explain_panics():
            encoding = self.tokenizer.encode(text, add_special_tokens=False)
        pairs = [
            (part, span)
            for token, span in zip(encoding.ids, encoding.offsets, strict=True)
            for part in self._split_names.get(token, (token,))
        ]
        return [token for token, _ in pairs], [span for _, span in pairs]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, without special tokens; bytes that are not UTF-8 become �."""
        return self.tokenizer.decode(self._visible(ids), skip_special_tokens=False)

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of ids, computed on several threads."""
        return self.tokenizer.decode_batch([self._visible(ids) for ids in rows], skip_special_tokens=False)

    def round_trip_loss(self, text: str) -> RoundTripLoss:
        """How `decode(encode(text))` differs from the text."""
        check_text(text)
        with _explain_panics():
            encoding = self.tokenizer.encode(text, add_special_tokens=False)
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        unknown = tuple(text[first:last] for token, (first, last) in spans if token == self.unk)
        decoded = self.decode(self.encode(text))
        if self.unk is not None and unknown:
            between = decoded.split(self.tokenizer.id_to_token(self.unk))
            decoded = "".join(part for pair in zip(between, (*unknown, ""), strict=False) for part in pair)
        return RoundTripLoss(unknown, decoded != text)

    def save(self, path: str | Path) -> Path:
        """Write tokenizer.json atomically."""
        path = Path(path)
        write_text(path, self.json)
        return path

    @classmethod
    def load(cls, path: str | Path, **special: int | None) -> Self:
        """Read a tokenizer.json, our own or (with the ids of its special tokens) any other."""
        return cls(read_tokenizer(Path(path)), **special)

    def _special_id(self, role: str, given: int | None) -> int | None:
        """The id of a special token: the given one, or that of our name for it."""
        if given is None:
            number: int | None = self.tokenizer.token_to_id(SPECIAL_NAMES[role])
            return number
        if given not in self._known:
            raise UserError(f"The tokenizer has no id {given}, which was given for the {role} token.")
        return given

    def _split_name(self, token: int) -> list[int]:
        """The ids that replace a special token if an imported model produces it from its name in plain text.

        Such a model (usually a unigram model) has the name in its vocabulary and finds it even though the library no
        longer looks for it. Then the first character and the rest are encoded separately. Our own names cannot occur.
        """
        name = self.tokenizer.id_to_token(token)
        if name is None or name in SPECIAL_NAMES.values():
            return []
        try:
            if [piece.id for piece in self.tokenizer.model.tokenize(name)] != [token]:
                return []
            return [piece.id for part in (name[:1], name[1:]) for piece in self.tokenizer.model.tokenize(part)]
        except Exception:  # the library raises plain Exception if there is no token for a part and no unknown token
            return []

    def _visible(self, ids: Sequence[int]) -> list[int]:
        """The ids that are not hidden in text; invalid ids are refused."""
        for number in ids:
            if number not in self._known:
                raise UserError(
                    f"The id {number} is not in this tokenizer's vocabulary, whose ids go from 0 to "
                    f"{self.vocab_size - 1}; does it come from another tokenizer?"
                )
        return [int(number) for number in ids if number not in self._hidden]


def read_tokenizer(path: Path) -> Tokenizer:
    """The `tokenizers.Tokenizer` of a tokenizer.json."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UserError(f"{path} has {path.stat().st_size:,} bytes; a tokenizer has at most {MAX_FILE_BYTES:,}.")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; give the path of a tokenizer.json.") from None
    except OSError as error:
        raise UserError(f"{path} could not be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8, so it is not a tokenizer; restore it from a copy.") from None
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{path} is not a valid tokenizer ({error}); restore it from a copy.") from None
    try:
        _checked_ids(tokenizer)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return tokenizer


def _checked_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of a tokenizer. Absurd ones are refused here: the library takes minutes to write gaps between them."""
    ids = frozenset(tokenizer.get_vocab(with_added_tokens=True).values())
    if max(ids, default=-1) >= MAX_VOCAB_SIZE:
        raise UserError(f"The tokenizer has the id {max(ids):,}; ids must be less than {MAX_VOCAB_SIZE:,}.")
    return ids


@contextmanager
def _explain_panics() -> Iterator[None]:
    """A `UserError` for regular expressions in a tokenizer.json that backtrack without end.

    Oniguruma gives up on a match after ten million steps (about a tenth of a second); the library then panics, which
    is not an `Exception` in Python.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(
            f"The tokenizer could not split this text ({error}): a regular expression of its tokenizer.json does not "
            "suit it; use another tokenizer, or shorter lines."
        ) from None


def check_text(text: str) -> None:
    """Refuse half a surrogate pair, which a Python string can contain but Unicode text cannot."""
    if not isinstance(text, str):
        raise UserError(f"Expected a string, found a value of type {type(text).__name__}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"Character {error.start + 1} of the text is half a surrogate pair ({text[error.start]!r}), which is not "
            "a character; read the text as UTF-8 or remove it."
        ) from None


def _from_json(kind: type[TextTokenizer], text: str, ids: dict[str, int | None]) -> TextTokenizer:
    return kind(Tokenizer.from_str(text), **ids)
