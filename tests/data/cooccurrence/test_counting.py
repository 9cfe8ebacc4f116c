"""Co-occurrence counts equal a plain count in a dictionary, whatever is spilled, within the limit of memory."""

import tracemalloc
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.cooccurrence import (
    CooccurrenceConfig,
    Cooccurrences,
    cached_cooccurrences,
    count_cooccurrences,
)
from regard.data.cooccurrence.counting import CooccurrenceCounter
from regard.data.cooccurrence.sorted_runs import FAN_IN, SortedRuns
from regard.data.text.vocabulary import Vocabulary
from regard.data.text.word_corpus import WordCorpus
from regard.errors import UserError

SMALL = CooccurrenceConfig(max_bytes=1 << 16)


def corpus_of(sentences: list[list[int]]) -> WordCorpus:
    offsets = np.cumsum([0, *map(len, sentences)], dtype=np.int64)
    return WordCorpus(np.array([word for words in sentences for word in words], dtype=np.uint16), offsets)


def random_corpus(words: int, vocab_size: int, seed: int = 0) -> WordCorpus:
    """Words by Zipf's law in lines of different lengths."""
    rng = np.random.default_rng(seed)
    chances = 1 / np.arange(1, vocab_size + 1)
    ids = rng.choice(vocab_size, size=words, p=chances / chances.sum()).astype(np.uint16)
    cuts = np.unique(rng.integers(1, words, size=words // 20))
    return WordCorpus(ids, np.concatenate(([0], cuts, [words])))


def counted_plainly(corpus: WordCorpus, window: int) -> dict[tuple[int, int], float]:
    counts: dict[tuple[int, int], float] = defaultdict(float)
    for start, end in zip(corpus.offsets[:-1], corpus.offsets[1:], strict=True):
        words = corpus.ids[start:end].tolist()
        for i, word in enumerate(words):
            for j in range(max(i - window, 0), min(i + window + 1, len(words))):
                if j != i:
                    counts[word, words[j]] += 1 / abs(i - j)
    return counts


def as_dictionary(found: Cooccurrences) -> dict[tuple[int, int], float]:
    pairs = zip(found.rows.tolist(), found.columns.tolist(), strict=True)
    return dict(zip(pairs, found.counts.tolist(), strict=True))


def assert_equals_plain_count(found: Cooccurrences, corpus: WordCorpus) -> None:
    expected = counted_plainly(corpus, found.window)
    assert as_dictionary(found) == pytest.approx(dict(expected), rel=1e-6)
    keys = found.rows.astype(np.int64) * found.vocab_size + found.columns
    assert (np.diff(keys) > 0).all()


@given(
    sentences=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=8),
    window=st.integers(1, 6),
)
def test_equals_a_plain_count(
    sentences: list[list[int]], window: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    corpus, folder = corpus_of([*sentences, [0, 1]]), tmp_path_factory.mktemp("counts")
    config = CooccurrenceConfig(window=window, max_bytes=1 << 16)
    assert_equals_plain_count(count_cooccurrences(folder / "found", corpus, 10, config), corpus)


def test_equals_a_plain_count_when_runs_are_spilled_and_merged_in_levels(tmp_path: Path) -> None:
    corpus = random_corpus(5000, 300)
    counter = CooccurrenceCounter(tmp_path, 300, SMALL)
    counter.count(corpus.ids, corpus.offsets)
    assert counter.spills > FAN_IN
    assert len(list(tmp_path.glob("*.keys"))) < 2 * FAN_IN  # two levels
    assert_equals_plain_count(count_cooccurrences(tmp_path / "found", corpus, 300, SMALL), corpus)


def test_more_memory_gives_the_same_counts_and_spills_nothing(tmp_path: Path) -> None:
    corpus = random_corpus(5000, 300)
    little = count_cooccurrences(tmp_path / "little", corpus, 300, SMALL)
    much = count_cooccurrences(tmp_path / "much", corpus, 300, CooccurrenceConfig())
    np.testing.assert_array_equal(little.rows, much.rows)
    np.testing.assert_array_equal(little.columns, much.columns)
    np.testing.assert_allclose(little.counts, much.counts, rtol=1e-6)
    counter = CooccurrenceCounter(tmp_path, 300, CooccurrenceConfig())
    counter.count(corpus.ids, corpus.offsets)
    assert counter.spills == 0


def test_memory_stays_within_its_limit(tmp_path: Path) -> None:
    config = CooccurrenceConfig(max_bytes=4 << 20)
    corpus = random_corpus(200_000, 20_000)  # about 6 million pairs: 48 MB as keys
    tracemalloc.start()
    counter = CooccurrenceCounter(tmp_path, 20_000, config)
    counter.count(corpus.ids, corpus.offsets)
    pairs = sum(len(keys) for keys, _ in counter.merged())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pairs > 1_000_000
    assert peak < config.max_bytes


def test_merging_runs_of_any_lengths_adds_up_equal_keys(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    runs, expected = SortedRuns(tmp_path, 1 << 16), np.zeros(5000)
    for _ in range(FAN_IN * 3 + 5):
        keys = np.sort(rng.choice(5000, size=rng.integers(1, 3000), replace=False))
        sums = rng.integers(1, 10, size=len(keys)).astype(np.float64)
        expected[keys] += sums
        runs.add(keys, sums)
    keys, sums = (np.concatenate(parts) for parts in zip(*runs.merged(), strict=True))
    np.testing.assert_array_equal(keys, np.flatnonzero(expected))
    np.testing.assert_array_equal(sums, expected[keys])


def test_epoch_has_every_pair_once_in_an_order_that_follows_from_its_seed(tmp_path: Path) -> None:
    found = count_cooccurrences(tmp_path / "found", random_corpus(5000, 300), 300, CooccurrenceConfig())

    def pairs(seed: int, start: int = 0) -> list[tuple[int, int]]:
        blocks = [block for _, block in found.blocks(3000, seed, start)]
        return [pair for block in blocks for pair in zip(block.rows.tolist(), block.columns.tolist(), strict=True)]

    assert sorted(pairs(1)) == list(as_dictionary(found))
    assert pairs(1) == pairs(1)
    assert pairs(1) != pairs(2)
    after_first, first = next(found.blocks(3000, 1))
    assert pairs(1, after_first) == pairs(1)[len(first.rows) :]


def test_row_of_a_word(tmp_path: Path) -> None:
    found = count_cooccurrences(tmp_path / "found", corpus_of([[0, 1, 2], [2, 2]]), 3, CooccurrenceConfig(window=2))
    columns, counts = found.row(2)
    assert columns.tolist() == [0, 1, 2]
    assert counts.tolist() == [0.5, 1, 2]  # a word beside itself is the neighbor of both


def test_counts_are_found_in_the_cache_and_made_again_when_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    corpus, vocabulary = corpus_of([[0, 1, 0]]), Vocabulary(["a", "b"], np.array([2, 1]))
    messages: list[str] = []

    def count(fingerprint: str = "text") -> Cooccurrences:
        return cached_cooccurrences(corpus, vocabulary, CooccurrenceConfig(), fingerprint, messages.append)

    first = count()
    written = (first.path / "counts.f32").stat().st_mtime_ns
    assert count().path == first.path != count("another text").path
    assert (first.path / "counts.f32").stat().st_mtime_ns == written
    (first.path / "counts.f32").write_bytes(bytes(12))
    assert as_dictionary(count()) == as_dictionary(count("another text"))
    assert len(messages) == 1
    assert "checksum" in messages[0]


def test_lines_of_one_word_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="same line"):
        count_cooccurrences(tmp_path / "found", corpus_of([[0], [1]]), 2, CooccurrenceConfig())
    assert not list(tmp_path.iterdir())
