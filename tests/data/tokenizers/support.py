"""Texts for tests of tokenizers, and tokenizers trained on them."""

from functools import cache

from regard.data.tokenizers.tokenizer import SPECIAL_NAMES, TextTokenizer
from regard.data.tokenizers.training import EncoderTokenizerConfig, Kind, TokenizerConfig, train_tokenizer

EXACT: list[Kind] = ["bpe", "unigram", "character", "byte"]
KINDS: list[Kind] = [*EXACT, "word", "whitespace"]
SIZES = {"bpe": 340, "unigram": 320, "character": 290}

TEXTS = [
    "The cat ate the mouse.",
    "Kedi fareyi yedi.",
    "İstanbul'da ılık bir akşam: ığdır, İĞDIR, şöyle böyle.",
    "the the the cat cat mouse, and the mouse's cat",
    "He said: <start> and </s> and [PAD] and <0x41> are words. <start> <start> </s> </s> [PAD] [PAD] <0x41> <0x41>",
    "⟨bos⟩ ⟨eos⟩ ⟨pad⟩ ⟨unk⟩ ⟨bos⟩ ⟨eos⟩ ⟨pad⟩ ⟨unk⟩",
]

HARD = [
    "",
    " ",
    "  two  spaces   three ",
    "\n\nline\r\nbreaks\n",
    "\ttab\x00nul\x07bell\x1b[0m\x7f\x85",
    "Iıİi ığdır IĞDIR i̇",
    "e\u0301 n\u0303 \u0301 \u0301a a\u0308\u0323",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇹🇷",
    "क्षत्रिय ภาษาไทย עִבְרִית 한국어 漢字かな",
    "▁Ġ Ċ ▁▁ĠĠ",
    "\ufeff\u200b\u200d\u2028\u00a0\u3000\ufffd\uffff\U0010ffff",
    "don't İstanbul'da rock’n’roll ''quoted'' '",
    "<0x41><0xFF> <unk> <s> </s> <pad> [UNK] [PAD] <|endoftext|> <start> <end> <padding> <unknown>",
    *SPECIAL_NAMES.values(),
    "".join(SPECIAL_NAMES.values()),
]


def config(kind: Kind) -> TokenizerConfig:
    return TokenizerConfig(kind=kind, vocab_size=SIZES.get(kind))


@cache
def trained(kind: Kind) -> TextTokenizer:
    return train_tokenizer(config(kind), TEXTS)


@cache
def for_encoder(kind: Kind) -> TextTokenizer:
    size = SIZES.get(kind)
    return train_tokenizer(EncoderTokenizerConfig(kind=kind, vocab_size=None if size is None else size + 3), TEXTS)
