"""Character n-grams and their hashes are those of fastText."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from regard.model.before.word_vectors.config import SkipGramConfig, SubwordsConfig
from regard.model.before.word_vectors.subwords import character_ngrams, fnv1a, rows_of_words, subword_rows

WORDS = ["where", "her", "é"]


def test_ngrams_are_those_of_the_paper() -> None:
    """Bojanowski et al. 2017, §3.2: where with n = 3."""
    config = SubwordsConfig(min_length=3, max_length=3)
    assert character_ngrams("where", config) == ["<wh", "whe", "her", "ere", "re>"]


def test_the_marks_alone_are_no_ngrams() -> None:
    config = SubwordsConfig(min_length=1, max_length=2)
    assert character_ngrams("ab", config) == ["<a", "a", "ab", "b", "b>"]


@pytest.mark.parametrize(("text", "expected"), [("", 0x811C9DC5), ("a", 0xE40C292C), ("foobar", 0xBF9CF968)])
def test_hashes_are_fnv1a(text: str, expected: int) -> None:
    """The test vectors of the authors (Fowler, Noll, Vo)."""
    assert fnv1a(text) == expected


def test_hashes_beyond_ascii_take_bytes_as_signed() -> None:
    """fastText: `h ^ uint32_t(int8_t(byte))`."""
    value = np.uint32(2166136261)
    with np.errstate(over="ignore"):
        for byte in "é".encode():
            value = (value ^ np.uint32(np.int64(np.uint8(byte).view(np.int8)) & 0xFFFFFFFF)) * np.uint32(16777619)
    assert fnv1a("é") == int(value)


def test_a_words_vector_is_the_mean_of_its_own_and_those_of_its_ngrams() -> None:
    config = SubwordsConfig(buckets=50)
    model = SkipGramConfig(vocab_size=len(WORDS), width=5, subwords=config).build()
    offsets, rows = rows_of_words(WORDS, config)
    assert rows[: offsets[1]].tolist() == [0, *subword_rows("where", config, len(WORDS))]
    expected = torch.stack([model.input_vectors[rows[start:end]].mean(0) for start, end in pairwise(offsets)])
    torch.testing.assert_close(torch.from_numpy(model.word_vectors(WORDS)), expected)


def test_an_unknown_word_has_the_mean_of_the_vectors_of_its_ngrams() -> None:
    config = SubwordsConfig(buckets=50)
    model = SkipGramConfig(vocab_size=len(WORDS), width=5, subwords=config).build()
    found = model.keyed_vectors(WORDS)["here"]
    rows = subword_rows("here", config, len(WORDS))
    np.testing.assert_allclose(found, model.input_vectors[rows].mean(0).detach().numpy(), rtol=1e-6)
