"""Tokenizers learnt from text.

    bpe        pairs of bytes joined, the most frequent first (Sennrich et al. 2016), on bytes as in GPT-2
    unigram    pieces kept by how much they help to explain the text (Kudo 2018), on bytes too
    character  one token a character; those not met in training become their UTF-8 bytes
    byte       one token a byte; nothing to learn
    word       words and punctuation marks; all that was not met is lost, and `TextTokenizer.lost` says what

All but `word` give back any Unicode text exactly, because each of the 256 bytes is a token. Nothing is normalised.
The same texts and config give the same tokenizer.json, byte for byte, on any number of threads.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from regard.config import Config, ConfigError
from regard.data.tokenizer import SPECIAL_NAMES, TextTokenizer, check_text
from regard.errors import UserError

Kind = Literal["bpe", "unigram", "character", "byte", "word"]

SUBWORDS = 8000
"""The size of a bpe or unigram vocabulary where none is asked for."""

_FRAME = [SPECIAL_NAMES[role] for role in ("padding", "start", "end")]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]  # the library's names for single bytes
_SIGNS = sorted(pre_tokenizers.ByteLevel.alphabet())  # the 256 signs that stand for bytes in bpe and unigram
_EVERYTHING = 2**31

# A word keeps its combining marks, and an ending after an apostrophe stays whole ("İstanbul" + "'da"); a single space
# belongs to what follows it. Whatever matches nothing is a part of its own, so no text is lost here.
_PARTS = r"(?<=[\p{L}\p{M}])['’][\p{L}\p{M}]+| ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = r"[\p{L}\p{M}\p{N}_]+(?:['’-][\p{L}\p{M}\p{N}_]+)*|\S"


class TokenizerConfig(Config):
    """What a tokenizer is to be."""

    kind: Kind = "bpe"
    vocabulary: int | None = Field(default=None, ge=1)
    """How many tokens at most, special ones included. None: 8,000 for bpe and unigram, all that was met otherwise."""
    minimum_count: int = Field(default=1, ge=1)
    """How often a word or character must be met to be a token (bpe: a pair to be joined)."""

    more: ClassVar[tuple[str, ...]] = ()
    """What special tokens there are besides padding, start and end, by their role."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind == "byte" and self.vocabulary is not None:
            raise ConfigError("vocabulary", f"a byte tokenizer always has {self.smallest} tokens; leave this key out.")
        if self.kind in ("byte", "unigram") and self.minimum_count != 1:
            raise ConfigError("minimum_count", f"a {self.kind} tokenizer does not count; leave this key out.")
        if self.vocabulary is not None and self.vocabulary < self.smallest:
            needs = "the special tokens and a word" if self.kind == "word" else "the special tokens and all bytes"
            raise ConfigError(
                "vocabulary",
                f"found {self.vocabulary}, but {needs} need {self.smallest}; give at least that many.",
            )
        return self

    @property
    def likely_vocabulary(self) -> int:
        """How many tokens there will be, as far as that is known before the text is."""
        return self.vocabulary or {"byte": self.smallest, "character": self.smallest + 100}.get(self.kind, SUBWORDS)

    @property
    def smallest(self) -> int:
        """The smallest vocabulary this kind can have."""
        return len(self.frame) + (2 if self.kind == "word" else 256)

    @property
    def frame(self) -> list[str]:
        """The names of the special tokens, in the order of their ids; a word tokenizer has the unknown word as well."""
        return _FRAME + [SPECIAL_NAMES[role] for role in self.more]


class EncoderTokenizerConfig(TokenizerConfig):
    """A tokenizer for models that read whole texts: with a token that hides a word, and two that stand around texts."""

    more: ClassVar[tuple[str, ...]] = ("mask", "separator", "classify")


def train_tokenizer(
    config: TokenizerConfig, texts: Iterable[str], report: Callable[[str], None] | None = None
) -> TextTokenizer:
    """Learn a tokenizer from a stream of texts, read once (not at all for bytes, which have nothing to learn).

    Texts too few for the vocabulary asked for give a smaller one; `report` is told so in a sentence.
    """
    if config.kind == "byte":
        return TextTokenizer(_bytes(config))
    trained = TextTokenizer(_TRAINERS[config.kind](config, _checked(texts)))
    asked = _wanted(config) if config.kind in ("bpe", "unigram") else config.vocabulary
    if report is not None and asked is not None and trained.vocabulary < asked:
        report(
            f"The texts gave a vocabulary of {trained.vocabulary} tokens where up to {asked} were asked for; "
            "more text would give more."
        )
    return trained


def train_pair(
    config: TokenizerConfig,
    sources: Iterable[str],
    targets: Iterable[str],
    shared: bool,
    report: Callable[[str], None] | None = None,
) -> tuple[TextTokenizer, TextTokenizer]:
    """Tokenizers for the source and the target: if `shared` the same one twice, learnt from both sides together."""
    if shared:
        both = train_tokenizer(config, chain(_checked(sources, "source "), _checked(targets, "target ")), report)
        return both, both
    source = train_tokenizer(config, _checked(sources, "source "), report)
    return source, train_tokenizer(config, _checked(targets, "target "), report)


def _bpe(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    tokenizer = _on_bytes(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=_wanted(config),
        min_frequency=config.minimum_count,
        initial_alphabet=_SIGNS,
        special_tokens=config.frame,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _unigram(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """The library's training, its result put in order.

    It adds up in the order of a hash table that differs from run to run, which changes scores in their last digits;
    and it gives signs not met in training slightly different scores in such an order. So scores are rounded, those
    signs get the lowest score, and equal scores are put in the order of their text.
    """
    frame = config.frame
    room = _wanted(config) - len(frame)
    learning = _on_bytes(models.Unigram())
    # Asked for the alphabet alone, the trainer would not stop there, so it is asked for one piece more.
    trainer = trainers.UnigramTrainer(
        vocab_size=max(room, len(_SIGNS) + 1), initial_alphabet=_SIGNS, show_progress=False
    )
    learning.train_from_iterator(texts, trainer)
    scores: dict[str, float] = dict(json.loads(learning.to_str())["model"]["vocab"])
    lowest = min(scores.values())
    unmet = lowest + 0.0001 * (len(_SIGNS) + 1)  # the trainer spreads them by steps of 0.0001 from the lowest up
    signs = {sign: lowest if scores[sign] < unmet else scores[sign] for sign in _SIGNS}
    rounded = {piece: round(score, 4) for piece, score in (scores | signs).items()}
    ranked = sorted(rounded, key=lambda piece: (piece not in signs, -rounded[piece], piece))[:room]
    table = sorted(((piece, rounded[piece]) for piece in ranked), key=lambda entry: (-entry[1], entry[0]))
    tokenizer = _on_bytes(models.Unigram([(name, 0.0) for name in frame] + table))
    tokenizer.add_special_tokens(frame)
    return tokenizer


def _character(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    kept = [character for character, count in counts.items() if count >= config.minimum_count]
    kept.sort(key=lambda character: (-counts[character], character))
    room = _EVERYTHING if config.vocabulary is None else config.vocabulary - config.smallest
    return _characters(config, kept[:room])


def _bytes(config: TokenizerConfig) -> Tokenizer:
    """The bytes in their order, after the special tokens. Bytes that are no UTF-8 spoil nothing but themselves."""
    higher = iter([sign for sign in _SIGNS if ord(sign) > 255])  # signs for bytes that cannot be printed, in order
    signs = [chr(byte) if chr(byte) in _SIGNS else next(higher) for byte in range(256)]
    ids = {token: number for number, token in enumerate([*config.frame, *signs])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(config.frame)
    return tokenizer


def _characters(config: TokenizerConfig, alphabet: list[str]) -> Tokenizer:
    """One token for each character of an alphabet, and for each byte of any other character.

    It is a BPE model that joins nothing: that model falls back to bytes.
    """
    ids = {token: number for number, token in enumerate([*config.frame, *_BYTES, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(config.frame)
    return tokenizer


def _word(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    unknown = SPECIAL_NAMES["unknown"]
    tokenizer = Tokenizer(models.WordLevel(unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), "removed", invert=True)
    trainer = trainers.WordLevelTrainer(
        vocab_size=config.vocabulary or _EVERYTHING,
        min_frequency=config.minimum_count,
        special_tokens=[*config.frame, unknown],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _on_bytes(model: models.Model) -> Tokenizer:
    """A tokenizer that cuts text into parts and shows its model their bytes, a sign for each."""
    tokenizer = Tokenizer(model)
    parts = pre_tokenizers.Split(Regex(_PARTS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


_TRAINERS: dict[str, Callable[[TokenizerConfig, Iterable[str]], Tokenizer]] = {
    "bpe": _bpe,
    "unigram": _unigram,
    "character": _character,
    "word": _word,
}


def _wanted(config: TokenizerConfig) -> int:
    return config.vocabulary or SUBWORDS


def _checked(texts: Iterable[str], side: str = "") -> Iterator[str]:
    """The texts as they come; none at all, or one that is no Unicode, is an error."""
    if isinstance(texts, str):
        raise UserError(f"Expected {side}texts one by one, found a single one; put it into a list.")
    anything = False
    for number, text in enumerate(texts, start=1):
        try:
            check_text(text)
        except UserError as error:
            raise UserError(f"{side}text {number}: {error}") from None
        anything = anything or bool(text)
        yield text
    if not anything:
        raise UserError(f"There are no {side}texts to learn a tokenizer from, or all are empty; give some.")
