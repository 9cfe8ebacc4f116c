"""Sentencepiece models (Kudo & Richardson 2018) as tokenizers.

A sentencepiece file holds pieces with scores, a compiled table of character replacements and a few rules about spaces.
All of that has its like in the tokenizers library, so text gives the same ids, with these exceptions:

- Replacements are looked up for a visible character as a whole, where sentencepiece takes the longest match from each
  code point on: of several accents written as code points of their own behind one letter, some may get lost. Text in
  the usual composed form (NFC) is not touched by this.
- A BPE piece that can be made of its parts in two ways is made by the better-ranked pair; sentencepiece takes the
  leftmost. Runs of one repeated letter can show it.
- Behind a symbol that the model's maker defined, a BPE tokenizer sees the start of a text and marks it with a space.

sentencepiece (with protobuf) is needed only to read the file.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers

from regard.errors import UserError

SPACE = "▁"
"""How a space is written inside a piece."""

NORMAL, UNKNOWN, CONTROL, DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""What a piece is for, by the numbers of the format."""

_UNIGRAM, _BPE = 1, 2
_NEVER = 1000.0
"""So far below the worst score stands a piece that text must not become while there is another way."""


@dataclass(frozen=True)
class Piece:
    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class Pieces:
    """What a sentencepiece file says."""

    path: Path
    pieces: tuple[Piece, ...]
    merges_pairs: bool
    """Whether text is cut by merging pairs (BPE) rather than by the likeliest cut (unigram)."""
    bytes_for_unknown: bool
    replacements: bytes
    """The compiled table that normalises characters; empty if there is none."""
    marks_start: bool
    """Whether a text begins as if there were a space before it."""
    drops_spaces: bool
    """Whether spaces at both ends go and several in a row become one."""

    @property
    def unknown(self) -> str:
        return next(piece.text for piece in self.pieces if piece.kind == UNKNOWN)


def read_pieces(path: Path) -> Pieces:
    """Read a sentencepiece file, refusing the kinds there is no equal for."""
    model = _parse(path)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    if trainer.model_type not in (_UNIGRAM, _BPE):
        raise UserError(
            f"{path} cuts text into whole words or characters, but only unigram and BPE models can be imported; "
            "remove the file to import the model without a tokenizer."
        )
    if trainer.treat_whitespace_as_suffix or not normalizer.escape_whitespaces:
        raise UserError(
            f"{path} does not mark spaces before words, which cannot be imported; "
            "remove the file to import the model without a tokenizer."
        )
    pieces = tuple(Piece(piece.piece, piece.score, piece.type) for piece in model.pieces)
    if not any(piece.kind == UNKNOWN for piece in pieces):
        raise UserError(f"{path} has no piece for unknown text; fetch it again from where the model came from.")
    return Pieces(
        path=path,
        pieces=pieces,
        merges_pairs=trainer.model_type == _BPE,
        bytes_for_unknown=trainer.byte_fallback,
        replacements=normalizer.precompiled_charsmap,
        marks_start=normalizer.add_dummy_prefix,
        drops_spaces=normalizer.remove_extra_whitespaces,
    )


def as_tokenizer(pieces: Pieces) -> Tokenizer:
    """A tokenizer with the ids of the sentencepiece file itself."""
    tokenizer = Tokenizer(_pair_model(pieces) if pieces.merges_pairs else _unigram_model(pieces))
    dress(tokenizer, pieces)
    tokenizer.add_special_tokens([piece.text for piece in pieces.pieces if piece.kind in (CONTROL, UNKNOWN)])
    if pieces.merges_pairs:
        defined = [piece.text for piece in pieces.pieces if piece.kind == DEFINED]
        tokenizer.add_tokens([AddedToken(text, normalized=False) for text in defined])
    return tokenizer


def hide(text: str) -> str:
    """A word as text can never spell it: after normalising there is no plain space left. Decoding takes it off."""
    return f" {text}"


def dress(tokenizer: Tokenizer, pieces: Pieces, hidden: bool = False) -> None:
    """Give a tokenizer the file's rules about characters and spaces, on the way in and back.

    `hidden`: some of its words are hidden from text (see `hide`).
    """
    steps: list[normalizers.Normalizer] = []
    if pieces.replacements:
        steps.append(normalizers.Precompiled(pieces.replacements))
    if pieces.drops_spaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r"\A | \z"), "")]
    if pieces.marks_start:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    tokenizer.normalizer = normalizers.Sequence(steps)
    back: list[decoders.Decoder] = [decoders.Replace(" ", "")] if hidden else []
    back.append(decoders.Replace(SPACE, " "))
    if pieces.bytes_for_unknown:
        back.append(decoders.ByteFallback())
    back.append(decoders.Fuse())
    if pieces.marks_start:
        back.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(back)


def unigram_scores(pieces: Pieces) -> tuple[dict[str, float], float]:
    """How likely each piece of text is, and the score of one that text must not become.

    A symbol that the model's maker defined wins over any other cut, as it does in sentencepiece.
    """
    plain = [piece.score for piece in pieces.pieces if piece.kind == NORMAL] or [0.0]
    best, worst = max(plain), min(plain)
    scores = {}
    for piece in pieces.pieces:
        if piece.kind == NORMAL:
            scores[piece.text] = piece.score
        elif piece.kind == DEFINED:
            scores[piece.text] = len(piece.text.encode()) * best - 0.1
    return scores, worst - _NEVER


def _unigram_model(pieces: Pieces) -> models.Model:
    scores, never = unigram_scores(pieces)
    table = [(piece.text, scores.get(piece.text, never)) for piece in pieces.pieces]
    unknown = next(number for number, piece in enumerate(pieces.pieces) if piece.kind == UNKNOWN)
    return models.Unigram(table, unk_id=unknown, byte_fallback=pieces.bytes_for_unknown)


def _pair_model(pieces: Pieces) -> models.Model:
    """BPE wants the list of merges, which the file gives only as ranks: any two pieces that make a third may merge."""
    numbers = {piece.text: number for number, piece in enumerate(pieces.pieces)}
    made_of_pairs = [piece for piece in pieces.pieces if piece.kind in (NORMAL, UNUSED)]
    known = {piece.text for piece in made_of_pairs}
    merges = []
    for piece in sorted(made_of_pairs, key=lambda piece: -piece.score):
        halves = ((piece.text[:cut], piece.text[cut:]) for cut in range(1, len(piece.text)))
        merges += [(left, right) for left, right in halves if left in known and right in known]
    return models.BPE(
        vocab=numbers,
        merges=merges,
        unk_token=pieces.unknown,
        fuse_unk=True,
        byte_fallback=pieces.bytes_for_unknown,
    )


def _parse(path: Path) -> Any:
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise UserError(
            f"{path} is a sentencepiece model, and reading it needs a package that is not installed; "
            "install it with pip install 'regard[interop]'."
        ) from None
    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None
    except DecodeError:
        model.Clear()
    if not model.pieces:
        raise UserError(f"{path} is not a sentencepiece model; fetch it again from where the model came from.")
    return model
