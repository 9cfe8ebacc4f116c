"""Training tokenizers.

    bpe        byte-pair encoding (Sennrich et al. 2016) on bytes, as in GPT-2
    unigram    unigram language model (Kudo 2018), on bytes too
    character  one token per character; characters not seen in training become their UTF-8 bytes
    byte       one token per byte; nothing to train
    word       words and punctuation marks; unseen words are lost (`TextTokenizer.round_trip_loss` names them)
    whitespace what stands between spaces, for text that is tokenized already; unseen words are lost

All but the last two reproduce any Unicode text exactly, because each of the 256 bytes is a token. Nothing is
normalized. The same texts and config give the same tokenizer.json, byte for byte, on any number of threads.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from regard.config import Config, ConfigError
from regard.data.tokenizers.tokenizer import SPECIAL_NAMES, TextTokenizer, check_text
from regard.errors import UserError
from regard.progress import phase

Kind = Literal["bpe", "unigram", "character", "byte", "word", "whitespace"]
_WHOLE_WORDS = ("word", "whitespace")

_SPECIAL_TOKENS = [SPECIAL_NAMES[role] for role in ("pad", "bos", "eos")]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]  # the library's names for single bytes
_BYTE_CHARACTERS = sorted(
    pre_tokenizers.ByteLevel.alphabet()
)  # the 256 characters that stand for bytes in bpe and unigram
_UNLIMITED = 2**31
_MAX_WORD = 8192
"""Characters of a word in training: the library takes time that grows with the square of a word's length."""
_LONG_WORD = re.compile(rf"(?<!\S)\S{{{_MAX_WORD + 1}}}|(?<!\s)\s{{{_MAX_WORD + 1}}}")

# Pre-tokenization: a word keeps its combining marks, a suffix after an apostrophe is a pre-token ("İstanbul" + "'da"),
# and a single space belongs to what follows it. Text that matches nothing is a pre-token too, so nothing is lost.
_PRE_TOKENS = r"(?<=[\p{L}\p{M}])['’][\p{L}\p{M}]+| ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = r"[\p{L}\p{M}\p{N}_]+(?:['’-][\p{L}\p{M}\p{N}_]+)*|\S"
_BETWEEN_SPACES = r"[^\s⟨⟩]+|[⟨⟩]"  # no text is the name of a special token


class TokenizerConfig(Config):
    """The kind and size of a tokenizer."""

    kind: Kind = "bpe"
    """The kind of tokenizer. bpe: byte-pair encoding (Sennrich et al. 2016). unigram: a unigram language model over
    subwords (Kudo 2018). character: single characters. byte: single bytes of UTF-8. word: whole words and
    punctuation marks, with an unknown token for all others. whitespace: what stands between spaces, for text that is
    tokenized already, likewise."""
    vocab_size: int | None = Field(default=None, ge=1, le=10_000_000)
    """The maximum number of tokens, special ones included. By default 8,000 for bpe and unigram, otherwise
    unlimited."""
    min_frequency: int = Field(default=1, ge=1, le=1_000_000_000)
    """The minimum number of occurrences of a word or character (bpe: of a pair to merge) to become a token."""

    extra_roles: ClassVar[tuple[str, ...]] = ()
    """The roles of special tokens besides pad, bos and eos."""
    default_vocab_size: ClassVar[int] = 8000
    """The default vocabulary size of bpe and unigram."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.kind == "byte" and self.vocab_size is not None:
            raise ConfigError(
                "vocab_size", f"a byte tokenizer always has {self.min_vocab_size} tokens; leave this key out."
            )
        if self.kind in ("byte", "unigram") and self.min_frequency != 1:
            raise ConfigError("min_frequency", f"a {self.kind} tokenizer has no minimum frequency; leave this key out.")
        if self.vocab_size is not None and self.vocab_size < self.min_vocab_size:
            contents = (
                "the special tokens and a word" if self.kind in _WHOLE_WORDS else "the special tokens and all bytes"
            )
            raise ConfigError(
                "vocab_size",
                f"found {self.vocab_size}, but {contents} need {self.min_vocab_size}; give at least that many.",
            )
        return self

    @property
    def expected_vocab_size(self) -> int:
        """The vocabulary size as far as it is known before training."""
        return self.vocab_size or {"byte": self.min_vocab_size, "character": self.min_vocab_size + 100}.get(
            self.kind, self.default_vocab_size
        )

    @property
    def min_vocab_size(self) -> int:
        """The smallest vocabulary of this kind."""
        return len(self.special_tokens) + (2 if self.kind in _WHOLE_WORDS else 256)

    @property
    def special_tokens(self) -> list[str]:
        """The names of the special tokens, in the order of their ids; a tokenizer of whole words has the unknown token
        as well."""
        return _SPECIAL_TOKENS + [SPECIAL_NAMES[role] for role in self.extra_roles]


class EncoderTokenizerConfig(TokenizerConfig):
    """A tokenizer for encoders, which has mask, sep and cls tokens too."""

    extra_roles: ClassVar[tuple[str, ...]] = ("mask", "sep", "cls")


def train_tokenizer(
    config: TokenizerConfig, texts: Iterable[str], log: Callable[[str], None] | None = None
) -> TextTokenizer:
    """Train a tokenizer on a stream of texts, which is read once (not at all for bytes).

    Too few texts give a smaller vocabulary than configured, which is logged.
    """
    if config.kind == "byte":
        return TextTokenizer(_bytes(config))
    with phase("Training the tokenizer", "texts") as training:
        trained = TextTokenizer(_TRAINERS[config.kind](config, training.count(_checked(texts))))
    requested = _vocab_size(config) if config.kind in ("bpe", "unigram") else config.vocab_size
    if log is not None and requested is not None and trained.vocab_size < requested:
        log(
            f"The tokenizer has {trained.vocab_size} tokens instead of {requested}, because there is too little text "
            "for more."
        )
    return trained


def train_pair(
    config: TokenizerConfig,
    sources: Iterable[str],
    targets: Iterable[str],
    shared: bool,
    log: Callable[[str], None] | None = None,
) -> tuple[TextTokenizer, TextTokenizer]:
    """Tokenizers for source and target; if `shared`, one tokenizer for both, trained on both sides."""
    if shared:
        both = train_tokenizer(config, chain(_checked(sources, "source "), _checked(targets, "target ")), log)
        return both, both
    source = train_tokenizer(config, _checked(sources, "source "), log)
    return source, train_tokenizer(config, _checked(targets, "target "), log)


def _bpe(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    tokenizer = _on_bytes(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=_vocab_size(config),
        min_frequency=config.min_frequency,
        initial_alphabet=_BYTE_CHARACTERS,
        special_tokens=config.special_tokens,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_cut_long_words(texts), trainer)
    return tokenizer


def _unigram(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """The library's training, made deterministic.

    The library sums in the order of a hash table that differs from run to run, which changes the last digits of scores,
    and gives unseen bytes slightly different scores in that order. So scores are rounded, unseen bytes get the lowest
    score, and equal scores are sorted by text.
    """
    special_tokens = config.special_tokens
    size = _vocab_size(config) - len(special_tokens)
    trained = _on_bytes(models.Unigram())
    # The trainer does not stop at the bare alphabet, so it is given one piece more.
    trainer = trainers.UnigramTrainer(
        vocab_size=max(size, len(_BYTE_CHARACTERS) + 1), initial_alphabet=_BYTE_CHARACTERS, show_progress=False
    )
    trained.train_from_iterator(_cut_long_words(texts), trainer)
    scores: dict[str, float] = dict(json.loads(trained.to_str())["model"]["vocab"])
    lowest = min(scores.values())
    unseen = lowest + 0.0001 * (
        len(_BYTE_CHARACTERS) + 1
    )  # the trainer gives them scores in steps of 0.0001 from the lowest up
    byte_scores = {one: lowest if scores[one] < unseen else scores[one] for one in _BYTE_CHARACTERS}
    rounded = {piece: round(score, 4) for piece, score in (scores | byte_scores).items()}
    ranked = sorted(rounded, key=lambda piece: (piece not in byte_scores, -rounded[piece], piece))[:size]
    table = sorted(((piece, rounded[piece]) for piece in ranked), key=lambda entry: (-entry[1], entry[0]))
    tokenizer = _on_bytes(models.Unigram([(name, 0.0) for name in special_tokens] + table))
    tokenizer.add_special_tokens(special_tokens)
    return tokenizer


def _character(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    alphabet = [character for character, count in counts.items() if count >= config.min_frequency]
    alphabet.sort(key=lambda character: (-counts[character], character))
    size = _UNLIMITED if config.vocab_size is None else config.vocab_size - config.min_vocab_size
    return _characters(config, alphabet[:size])


def _bytes(config: TokenizerConfig) -> Tokenizer:
    """The bytes in order, after the special tokens. Invalid UTF-8 affects only the invalid bytes."""
    higher = iter([one for one in _BYTE_CHARACTERS if ord(one) > 255])  # those of unprintable bytes, in order
    characters = [chr(byte) if chr(byte) in _BYTE_CHARACTERS else next(higher) for byte in range(256)]
    ids = {token: number for number, token in enumerate([*config.special_tokens, *characters])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(config.special_tokens)
    return tokenizer


def _characters(config: TokenizerConfig, alphabet: list[str]) -> Tokenizer:
    """One token per character of an alphabet, and per byte of any other character.

    It is a BPE model without merges, because that model has a byte fallback.
    """
    ids = {token: number for number, token in enumerate([*config.special_tokens, *_BYTES, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(config.special_tokens)
    return tokenizer


def _word(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    unknown = SPECIAL_NAMES["unk"]
    tokenizer = Tokenizer(models.WordLevel(unk_token=unknown))
    words = _WORDS if config.kind == "word" else _BETWEEN_SPACES
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(words), "removed", invert=True)
    trainer = trainers.WordLevelTrainer(
        vocab_size=config.vocab_size or _UNLIMITED,
        min_frequency=config.min_frequency,
        special_tokens=[*config.special_tokens, unknown],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _on_bytes(model: models.Model) -> Tokenizer:
    """A tokenizer that splits text into pre-tokens and represents each byte by a character."""
    tokenizer = Tokenizer(model)
    split = pre_tokenizers.Split(Regex(_PRE_TOKENS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _cut_long_words(texts: Iterable[str]) -> Iterator[str]:
    """The texts, with words (and runs of spaces) that are too long cut into several."""
    for text in texts:
        if len(text) <= _MAX_WORD or _LONG_WORD.search(text) is None:
            yield text
            continue
        for run in re.finditer(r"\S+|\s+", text):
            yield from (run[0][first : first + _MAX_WORD] for first in range(0, len(run[0]), _MAX_WORD))


_TRAINERS: dict[str, Callable[[TokenizerConfig, Iterable[str]], Tokenizer]] = {
    "bpe": _bpe,
    "unigram": _unigram,
    "character": _character,
    "word": _word,
    "whitespace": _word,
}


def _vocab_size(config: TokenizerConfig) -> int:
    return config.vocab_size or config.default_vocab_size


def _checked(texts: Iterable[str], side: str = "") -> Iterator[str]:
    """The texts, checked as they are read; no text at all or invalid Unicode is an error."""
    if isinstance(texts, str):
        raise UserError(f"Expected a sequence of {side}texts, found a single string; put it into a list.")
    found = False
    for number, text in enumerate(texts, start=1):
        try:
            check_text(text)
        except UserError as error:
            raise UserError(f"{side}text {number}: {error}") from None
        found = found or bool(text)
        yield text
    if not found:
        raise UserError(f"There are no {side}texts to train a tokenizer on, or all are empty.")
