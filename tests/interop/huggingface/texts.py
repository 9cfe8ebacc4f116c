"""Texts for tests of tokenizers, and a function that trains sentencepiece models."""

ENGLISH = [
    "The cat sat on the mat, and the dog lay in front of the door.",
    "Translation is the craft of saying almost the same thing in another language.",
    "How many words are there in a dictionary? Nobody has counted them since 1987!",
    "A café in Zürich served crème brûlée; the naïve façade was déjà vu.",
    "She reads, he writes, they sleep: numbers 0 1 2 3 4 5 6 7 8 9 and (brackets).",
]
TURKISH = [
    "Kedi fareyi yedi ve İstanbul'da güneşli bir gün başladı.",
    "Çocuklar bahçede oynuyor, şişeler ağaçların altında ışıldıyor.",
    "Öğretmen sınıfa girdi; ığdır ve Üsküdar çok güzel şehirler!",
    "Bu kitapta kaç sözcük var, 1987'den beri kimse saymadı mı?",
]
ALPHABET = [" ".join("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,'")]
TEXTS = [
    "",
    " ",
    "   ",
    "The dog reads a café menu.",
    "Two  spaces   and  three",
    "  leading and trailing  ",
    "İstanbul'da IĞDIR ve ığdır, şişe",
    "tab\tand\nnewline\r\nhere",
    "🙂 emoji 👩‍👩‍👧 family 🇹🇷",
    "日本語のテキスト",
    "mixed 日本 with words",
    "1987, 3.14 and 1,000,000",
    "don't won't it's",
    "ALL CAPITALS and lower",
    "quotes “curly” ‘single’ — dashes – …",
    "aaaaaaaaaaaa bbbb",
    "non\u00a0breaking and \u200b zero width",
    "ﬁne ligatures ½ ＡＢＣ",
]


def train_sentencepiece(path, texts, **options):
    """Train a sentencepiece model on some texts."""
    import sentencepiece

    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter((texts + ALPHABET) * 5),
            model_writer=file,
            minloglevel=2,
            **{"vocab_size": 150, "hard_vocab_limit": False} | options,
        )
