"""Text to sentences of words, for word vectors: one line of text at a time, so that a corpus of any size fits.

A line is a sentence, which no context window leaves. Punctuation is not a word, unless the text is tokenized already.
"""

import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import Literal

from pydantic import Field

from regard.config import Config
from regard.data.text.documents import TextConfig, read_passages


class WordsConfig(Config):
    """How text is split into words."""

    kind: Literal["word", "whitespace"] = "word"
    """word: runs of letters and digits, which may contain apostrophes and hyphens; punctuation is left out.
    whitespace: whatever stands between spaces, for text that is tokenized already."""
    lowercase: bool = True
    """Whether words are lowercased."""
    min_count: int = Field(default=5, ge=1, le=1_000_000_000)
    """Words that occur less often are left out of the text, as if they were not there."""
    vocab_size: int | None = Field(default=None, ge=1, le=10_000_000)
    """The most words, the most frequent ones; unlimited if not given."""
    max_distinct: int = Field(default=10_000_000, ge=1, le=1_000_000_000)
    """The most different words to count at once. When there are more, the rarest are forgotten, which bounds memory and
    makes the counts of rare words too low."""


def splitter(config: WordsConfig) -> Callable[[str], list[str]]:
    """The function that splits a line into words."""
    split = str.split if config.kind == "whitespace" else _split_words
    if not config.lowercase:
        return split
    return lambda line: split(line.lower())


def read_sentences(sources: Iterable[TextConfig], config: WordsConfig) -> Iterator[list[str]]:
    """The words of each line; lines without words are left out."""
    split = splitter(config)
    for source in sources:
        unfinished = ""
        for passage in read_passages(source):
            *lines, rest = (unfinished + passage.text).split("\n")
            unfinished = "" if passage.ends_document else rest
            for line in (*lines, rest) if passage.ends_document else lines:
                if words := split(line):
                    yield words
        if words := split(unfinished):
            yield words


def _split_words(line: str) -> list[str]:
    return _word_pattern().findall(line.replace("_", " "))  # \w has the underscore, which marks italics in plain text


@cache
def _word_pattern() -> re.Pattern[str]:
    """Letters and digits with their combining marks, which Python's \\w leaves out."""
    word = rf"\w[\w{_combining_marks()}]*"
    return re.compile(rf"{word}(?:['’-]{word})*")


def _combining_marks() -> str:
    """All characters of the categories M*, as ranges of a character class."""
    codes = [code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)).startswith("M")]
    starts = [codes[0], *(after for before, after in pairwise(codes) if after != before + 1)]
    ends = [*(before for before, after in pairwise(codes) if after != before + 1), codes[-1]]
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in zip(starts, ends, strict=True))
