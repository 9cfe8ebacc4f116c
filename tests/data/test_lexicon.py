"""Which words go with which: as the formula says, whatever the size of the parts it is worked out in."""

import random
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest

from regard import UserError
from regard.data import lexicon
from regard.data.lexicon import Lexicon, encode_pairs, learn_lexicon
from regard.data.pairs import Pair
from tests.task.small import pairs, sentences, small_tokenizer, translated

SIZES = (12, 15)


def random_pairs(count: int = 60, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    dice = random.Random(seed)
    return [
        (dice.choices(range(SIZES[0]), k=dice.randint(1, 6)), dice.choices(range(2, SIZES[1]), k=dice.randint(1, 6)))
        for _ in range(count)
    ]


def slowly(given: list[tuple[list[int], list[int]]], iterations: int) -> dict[tuple[int, int], float]:
    """IBM model 1 as it is written in books: p(target | source) of every pair of tokens that was met."""
    likely: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        shares: dict[tuple[int, int], float] = defaultdict(float)
        for source, target in given:
            for word in target:
                total = sum(likely[other, word] for other in source)
                for other in source:
                    shares[other, word] += likely[other, word] / total
        totals: dict[int, float] = defaultdict(float)
        for (other, _word), share in shares.items():
            totals[other] += share
        likely = defaultdict(float, {pair: share / totals[pair[0]] for pair, share in shares.items()})
    return likely


def learn(given: list[tuple[list[int], list[int]]], **more: Any) -> Lexicon:
    return learn_lexicon(given, SIZES, **{"candidates": SIZES[1], "frequent": SIZES[1], **more})


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_the_likeliest_come_first_by_ibm_model_1(iterations: int) -> None:
    given = random_pairs()
    likely = slowly(given, iterations)
    for source, row in enumerate(learn(given, iterations=iterations).table):
        chances = [likely[source, int(target)] for target in row if target >= 0]
        met = [chance for (other, _), chance in likely.items() if other == source]
        assert chances == pytest.approx(sorted(met, reverse=True))


def test_only_so_many_candidates_are_kept_as_are_wanted() -> None:
    whole, some = learn(random_pairs()).table, learn(random_pairs(), candidates=3).table
    assert some.shape == (SIZES[0], 3)
    assert (some == whole[:, :3]).all()


def test_a_source_token_that_was_never_met_has_no_candidates() -> None:
    table = learn([([1, 2], [3, 4])]).table
    assert (table[0] == -1).all()
    assert sorted(table[1][:2].tolist()) == [3, 4]


def test_the_most_frequent_target_tokens_come_first() -> None:
    given = random_pairs()
    counts = Counter(word for _, target in given for word in target)
    found = learn(given, frequent=4).frequent.tolist()
    assert [counts[word] for word in found] == sorted(counts.values(), reverse=True)[:4]


def test_a_token_that_was_never_met_is_not_frequent() -> None:
    assert sorted(learn([([1], [3, 4])]).frequent.tolist()) == [3, 4]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_the_size_of_the_parts_changes_nothing(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = learn(random_pairs())
    monkeypatch.setattr(lexicon, "_AT_ONCE", size)
    monkeypatch.setattr(lexicon, "_CHUNK", size)
    parts = learn(random_pairs())
    likely = slowly(random_pairs(), lexicon.ITERATIONS)
    for source in range(SIZES[0]):  # ties may stand in another order
        rows = [[likely[source, int(target)] for target in each.table[source]] for each in (whole, parts)]
        assert rows[0] == pytest.approx(rows[1])


def test_of_too_many_pairs_of_tokens_those_seen_least_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "_MOST_KEYS", 2)
    table = learn([([1], [3])] * 3 + [([2], [4])] * 2 + [([5], [6])]).table
    assert (table >= 0).sum() == 2
    assert (table[1][0], table[2][0]) == (3, 4)


def test_no_more_pairs_are_read_than_are_learnt_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "MOST_PAIRS", 25)
    monkeypatch.setattr(lexicon, "_CHUNK", 10)
    stream = iter(random_pairs())
    assert learn_lexicon(stream, SIZES, candidates=3, frequent=3).pairs == 25
    assert len(list(stream)) == 35


def test_empty_and_overlong_sides_are_left_out() -> None:
    odd = [([], [1]), ([1], []), ([1] * 300, [2])]
    assert learn([*odd, ([1], [3])]).pairs == 1


@pytest.mark.parametrize("given", [[], [([], [1])]], ids=["none", "none with both sides"])
def test_nothing_to_learn_from_is_said(given: list[Any]) -> None:
    with pytest.raises(UserError, match="no sentence pair to learn from"):
        learn(given)


def test_ids_of_a_source_end_with_its_end_and_pairs_without_words_are_left_out() -> None:
    tokenizer = small_tokenizer()
    heard: list[int] = []
    given = [Pair("red", "cat"), Pair(" ", "sun"), Pair("sun", "")]
    found = list(encode_pairs(tokenizer, tokenizer, given, heard.append))
    assert found == [([*tokenizer.encode("red"), tokenizer.end], tokenizer.encode("cat"))]
    assert heard == [1]


def test_words_find_their_translations() -> None:
    words = sorted({word for sentence in sentences(40) for word in sentence.split()})
    others = {translated(word): number for number, word in enumerate(words)}
    given = [
        ([words.index(word) for word in source.split()], [others[word] for word in target.split()])
        for source, target in pairs(40)
    ]
    table = learn_lexicon(given, (len(words), len(words)), candidates=1, frequent=1).table
    assert table[:, 0].tolist() == list(np.arange(len(words)))
