"""Word alignment equals textbook IBM model 1, whatever the chunk size."""

import random
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest

from regard import UserError
from regard.data.text import word_alignment as lexicon
from regard.data.text.pairs import Pair
from regard.data.text.word_alignment import Lexicon, encode_pairs, learn_lexicon
from tests.task.small import pairs, sentences, small_tokenizer, translated

SIZES = (12, 15)


def random_pairs(count: int = 60, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    rng = random.Random(seed)
    return [
        (rng.choices(range(SIZES[0]), k=rng.randint(1, 6)), rng.choices(range(2, SIZES[1]), k=rng.randint(1, 6)))
        for _ in range(count)
    ]


def reference_model_1(corpus: list[tuple[list[int], list[int]]], iterations: int) -> dict[tuple[int, int], float]:
    """Textbook IBM model 1: p(target | source) of every pair of tokens that occurs together."""
    p: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts: dict[tuple[int, int], float] = defaultdict(float)
        for source, target in corpus:
            for t in target:
                total = sum(p[s, t] for s in source)
                for s in source:
                    counts[s, t] += p[s, t] / total
        totals: dict[int, float] = defaultdict(float)
        for (s, _), count in counts.items():
            totals[s] += count
        p = defaultdict(float, {pair: count / totals[pair[0]] for pair, count in counts.items()})
    return p


def learn(corpus: list[tuple[list[int], list[int]]], **options: Any) -> Lexicon:
    return learn_lexicon(corpus, SIZES, **{"candidates": SIZES[1], "frequent": SIZES[1], **options})


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_candidates_equal_ibm_model_1(iterations: int) -> None:
    corpus = random_pairs()
    p = reference_model_1(corpus, iterations)
    for source, row in enumerate(learn(corpus, iterations=iterations).candidates):
        found = [p[source, int(target)] for target in row if target >= 0]
        expected = [probability for (other, _), probability in p.items() if other == source]
        assert found == pytest.approx(sorted(expected, reverse=True))


def test_number_of_candidates_is_limited() -> None:
    complete, limited = learn(random_pairs()).candidates, learn(random_pairs(), candidates=3).candidates
    assert limited.shape == (SIZES[0], 3)
    assert (limited == complete[:, :3]).all()


def test_unseen_source_token_has_no_candidates() -> None:
    table = learn([([1, 2], [3, 4])]).candidates
    assert (table[0] == -1).all()
    assert sorted(table[1][:2].tolist()) == [3, 4]


def test_frequent_tokens_are_sorted() -> None:
    corpus = random_pairs()
    counts = Counter(token for _, target in corpus for token in target)
    found = learn(corpus, frequent=4).frequent.tolist()
    assert [counts[token] for token in found] == sorted(counts.values(), reverse=True)[:4]


def test_unseen_token_is_not_frequent() -> None:
    assert sorted(learn([([1], [3, 4])]).frequent.tolist()) == [3, 4]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_chunk_size_changes_nothing(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    unchunked = learn(random_pairs())
    monkeypatch.setattr(lexicon, "_CHUNK_TOKEN_PAIRS", size)
    monkeypatch.setattr(lexicon, "_CHUNK", size)
    chunked = learn(random_pairs())
    p = reference_model_1(random_pairs(), lexicon.ITERATIONS)
    for source in range(SIZES[0]):  # the order of ties may differ
        rows = [[p[source, int(target)] for target in each.candidates[source]] for each in (unchunked, chunked)]
        assert rows[0] == pytest.approx(rows[1])


def test_least_frequent_token_pairs_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "_MAX_TOKEN_PAIRS", 2)
    table = learn([([1], [3])] * 3 + [([2], [4])] * 2 + [([5], [6])]).candidates
    assert (table >= 0).sum() == 2
    assert (table[1][0], table[2][0]) == (3, 4)


def test_number_of_pairs_read_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "MAX_PAIRS", 25)
    monkeypatch.setattr(lexicon, "_CHUNK", 10)
    stream = iter(random_pairs())
    assert learn_lexicon(stream, SIZES, candidates=3, frequent=3).pairs == 25
    assert len(list(stream)) == 35


def test_empty_and_overlong_sides_are_skipped() -> None:
    unusable = [([], [1]), ([1], []), ([1] * 300, [2])]
    assert learn([*unusable, ([1], [3])]).pairs == 1


@pytest.mark.parametrize("corpus", [[], [([], [1])]], ids=["none", "none with both sides"])
def test_no_usable_pair_is_an_error(corpus: list[Any]) -> None:
    with pytest.raises(UserError, match="no sentence pair to learn from"):
        learn(corpus)


def test_sources_end_with_eos_and_empty_pairs_are_skipped() -> None:
    tokenizer = small_tokenizer()
    progress: list[int] = []
    corpus = [Pair("red", "cat"), Pair(" ", "sun"), Pair("sun", "")]
    found = list(encode_pairs(tokenizer, tokenizer, corpus, progress.append))
    assert found == [([*tokenizer.encode("red"), tokenizer.eos], tokenizer.encode("cat"))]
    assert progress == [1]


def test_words_are_aligned_to_their_translations() -> None:
    words = sorted({word for sentence in sentences(40) for word in sentence.split()})
    translations = {translated(word): number for number, word in enumerate(words)}
    corpus = [
        ([words.index(word) for word in source.split()], [translations[word] for word in target.split()])
        for source, target in pairs(40)
    ]
    table = learn_lexicon(corpus, (len(words), len(words)), candidates=1, frequent=1).candidates
    assert table[:, 0].tolist() == list(np.arange(len(words)))
