"""Convert SentencePiece models (Kudo & Richardson 2018) to tokenizers.

A SentencePiece file contains pieces with scores, a precompiled table of character normalizations and a few rules for
spaces. The tokenizers library has a counterpart for each, so that text gets the same ids, with these exceptions:

- Normalizations are looked up for a grapheme as a whole, whereas SentencePiece takes the longest match from each code
  point. If several accents follow a letter as separate code points, some of them may get lost. Text in composed form
  (NFC) is not affected.
- If a BPE piece can be merged from its parts in two ways, the pair with the better rank is merged; SentencePiece
  merges the leftmost pair. This can differ in runs of one repeated letter.
- After a user-defined symbol, a BPE tokenizer sees the start of a text and adds the dummy prefix (a space).

The sentencepiece package (with protobuf) is only needed to read the file.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers

from regard.errors import UserError, how_to_install

SPACE = "▁"
"""The character for a space within a piece."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""The types of pieces, with the numbers of the file format."""

_UNIGRAM, _BPE = 1, 2
_UNREACHABLE = 1000.0
"""How far below the lowest score a piece is that is only chosen if there is no other segmentation."""


@dataclass(frozen=True)
class Piece:
    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a SentencePiece file."""

    path: Path
    pieces: tuple[Piece, ...]
    is_bpe: bool
    """Whether text is segmented by BPE merges or, if not, by the most likely segmentation (unigram)."""
    byte_fallback: bool
    precompiled_charsmap: bytes
    """The table of character normalizations; empty if there is none."""
    add_dummy_prefix: bool
    """Whether a text is tokenized as if a space preceded it."""
    remove_extra_whitespaces: bool
    """Whether spaces at both ends are stripped and runs of spaces become one."""

    @property
    def unknown(self) -> str:
        return next(piece.text for piece in self.pieces if piece.kind == UNKNOWN)


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Read a SentencePiece file. Model types without a counterpart are an error."""
    model = _parse(path)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    if trainer.model_type not in (_UNIGRAM, _BPE):
        raise UserError(
            f"{path} is a word or character model, but only unigram and BPE models can be imported; "
            "remove the file to import the model without a tokenizer."
        )
    if trainer.treat_whitespace_as_suffix or not normalizer.escape_whitespaces:
        raise UserError(
            f"{path} does not mark spaces as prefixes of words, which cannot be imported; "
            "remove the file to import the model without a tokenizer."
        )
    pieces = tuple(Piece(piece.piece, piece.score, piece.type) for piece in model.pieces)
    if not any(piece.kind == UNKNOWN for piece in pieces):
        raise UserError(f"{path} has no piece for unknown text; download it again.")
    return SentencePieceModel(
        path=path,
        pieces=pieces,
        is_bpe=trainer.model_type == _BPE,
        byte_fallback=trainer.byte_fallback,
        precompiled_charsmap=normalizer.precompiled_charsmap,
        add_dummy_prefix=normalizer.add_dummy_prefix,
        remove_extra_whitespaces=normalizer.remove_extra_whitespaces,
    )


def to_tokenizer(model: SentencePieceModel) -> Tokenizer:
    """A tokenizer with the ids of the SentencePiece file."""
    tokenizer = Tokenizer(_bpe_model(model) if model.is_bpe else _unigram_model(model))
    add_normalizer_and_decoder(tokenizer, model)
    tokenizer.add_special_tokens([piece.text for piece in model.pieces if piece.kind in (CONTROL, UNKNOWN)])
    if model.is_bpe:
        symbols = [piece.text for piece in model.pieces if piece.kind == USER_DEFINED]
        tokenizer.add_tokens([AddedToken(text, normalized=False) for text in symbols])
    return tokenizer


def hide(text: str) -> str:
    """A token that no text matches: it starts with a space, and normalized text has none. The decoder strips it."""
    return f" {text}"


def add_normalizer_and_decoder(
    tokenizer: Tokenizer, model: SentencePieceModel, has_hidden_tokens: bool = False
) -> None:
    """Set a tokenizer's normalizer and decoder to the file's rules for characters and spaces.

    With `has_hidden_tokens` the decoder restores tokens that `hide` has changed.
    """
    normalizer_steps: list[normalizers.Normalizer] = []
    if model.precompiled_charsmap:
        normalizer_steps.append(normalizers.Precompiled(model.precompiled_charsmap))
    if model.remove_extra_whitespaces:
        normalizer_steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r"\A | \z"), "")]
    if model.add_dummy_prefix:
        normalizer_steps.append(normalizers.Prepend(SPACE))
    normalizer_steps.append(normalizers.Replace(" ", SPACE))
    tokenizer.normalizer = normalizers.Sequence(normalizer_steps)
    decoder_steps: list[decoders.Decoder] = [decoders.Replace(" ", "")] if has_hidden_tokens else []
    decoder_steps.append(decoders.Replace(SPACE, " "))
    if model.byte_fallback:
        decoder_steps.append(decoders.ByteFallback())
    decoder_steps.append(decoders.Fuse())
    if model.add_dummy_prefix:
        decoder_steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(decoder_steps)


def unigram_scores(model: SentencePieceModel) -> tuple[dict[str, float], float]:
    """The score of each piece that text can match, and a score for all other pieces, which text should not match.

    As in SentencePiece, a user-defined symbol is preferred to every other segmentation.
    """
    normal = [piece.score for piece in model.pieces if piece.kind == NORMAL] or [0.0]
    highest, lowest = max(normal), min(normal)
    scores = {}
    for piece in model.pieces:
        if piece.kind == NORMAL:
            scores[piece.text] = piece.score
        elif piece.kind == USER_DEFINED:
            scores[piece.text] = len(piece.text.encode()) * highest - 0.1
    return scores, lowest - _UNREACHABLE


def _unigram_model(model: SentencePieceModel) -> models.Model:
    scores, min_score = unigram_scores(model)
    vocab = [(piece.text, scores.get(piece.text, min_score)) for piece in model.pieces]
    unk_id = next(index for index, piece in enumerate(model.pieces) if piece.kind == UNKNOWN)
    return models.Unigram(vocab, unk_id=unk_id, byte_fallback=model.byte_fallback)


def _bpe_model(model: SentencePieceModel) -> models.Model:
    """BPE needs a list of merges, but the file has only scores: any two pieces that form a third may merge."""
    vocab = {piece.text: index for index, piece in enumerate(model.pieces)}
    mergeable = [piece for piece in model.pieces if piece.kind in (NORMAL, UNUSED)]
    known = {piece.text for piece in mergeable}
    merges = []
    for piece in sorted(mergeable, key=lambda piece: -piece.score):
        splits = ((piece.text[:cut], piece.text[cut:]) for cut in range(1, len(piece.text)))
        merges += [(left, right) for left, right in splits if left in known and right in known]
    return models.BPE(
        vocab=vocab,
        merges=merges,
        unk_token=model.unknown,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def _parse(path: Path) -> Any:
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise UserError(
            f"{path} is a SentencePiece model, and the package to read it is not installed; "
            f"{how_to_install('interop')}."
        ) from None
    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None
    except DecodeError:
        model.Clear()
    if not model.pieces:
        raise UserError(f"{path} is not a SentencePiece model; download it again.")
    return model
