"""Questions on word vectors: the search in blocks finds what sorting all similarities finds, ties and zeros too."""

import time
from pathlib import Path

import numpy as np
import pytest

from regard.errors import UserError
from regard.model.before.word_vectors import neighbors
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from regard.model.before.word_vectors.neighbors import NeighborSearch, unit_rows


@pytest.fixture
def random_vectors() -> KeyedVectors:
    vectors = np.random.default_rng(1).standard_normal((500, 8), dtype=np.float32)
    vectors[7] = 0  # similar to none
    vectors[20] = 2 * vectors[10]  # as similar as row 10 to everything
    return KeyedVectors([f"w{row}" for row in range(500)], vectors)


@pytest.fixture
def family() -> KeyedVectors:
    """Royalty and gender as two dimensions, and a third for fruit."""
    words = {"man": (1, 0, 0), "woman": (-1, 0, 0), "king": (1, 1, 0), "queen": (-1, 1, 0), "apple": (0, -0.2, 1)}
    return KeyedVectors(list(words), np.array(list(words.values()), dtype=np.float32), name="family.txt")


@pytest.mark.parametrize("block", [1, 64, 1000])
@pytest.mark.parametrize("limit", [None, 300])
def test_search_in_blocks_finds_what_sorting_all_similarities_finds(
    random_vectors: KeyedVectors, block: int, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbors, "BLOCK", block)
    monkeypatch.setattr(neighbors, "QUERIES", 3)
    vectors = random_vectors.vectors
    queries, excluded = vectors[[3, 10, 42, 99, 7]], [{3}, {10, 20}, set(), {1, 2, 99}, {7}]
    found = NeighborSearch(vectors).nearest(queries, 9, excluded, limit)
    similarities = unit_rows(queries) @ unit_rows(vectors).T
    for query, left_out in enumerate(excluded):
        candidates = [row for row in range(limit or len(vectors)) if row not in left_out]
        # rounding differs between products of different shapes, and a vector of zeros ties with all others at 0
        best = sorted(candidates, key=lambda row: -round(float(similarities[query, row]), 5))[:9]
        assert found.rows[query].tolist() == best
        np.testing.assert_allclose(found.similarities[query], similarities[query, best], atol=1e-6)


def test_search_in_a_memory_mapped_array_of_half_precision(random_vectors: KeyedVectors, tmp_path: Path) -> None:
    np.save(tmp_path / "half.npy", random_vectors.vectors.astype(np.float16))
    mapped = KeyedVectors(random_vectors.words, np.load(tmp_path / "half.npy", mmap_mode="r"))
    assert [one.word for one in mapped.near("w3", 3)] == [one.word for one in random_vectors.near("w3", 3)]


def test_more_neighbors_than_words_gives_all_others(family: KeyedVectors) -> None:
    assert [one.word for one in family.near("king", 100)] == ["man", "queen", "apple", "woman"]


def test_similarity_is_the_cosine(family: KeyedVectors) -> None:
    assert family.similarity("man", "king") == pytest.approx(2**-0.5)
    assert family.similarity("man", "woman") == pytest.approx(-1)
    matrix = family.similarities(family.words)
    np.testing.assert_allclose(matrix, matrix.T)
    np.testing.assert_allclose(np.diag(matrix), 1, rtol=1e-6)


def test_man_is_to_king_as_woman_is_to_queen(family: KeyedVectors) -> None:
    (answer,) = family.analogy("man", "king", "woman")
    assert answer.word == "queen"
    unit = unit_rows(family.vectors)
    wanted = unit[2] - unit[0] + unit[1]
    assert answer.similarity == pytest.approx(float(wanted @ unit[3] / np.linalg.norm(wanted)))


def test_odd_one_out_comes_first(family: KeyedVectors) -> None:
    assert family.odd(["king", "apple", "queen"])[0].word == "apple"
    with pytest.raises(UserError, match="at least 3 words; found 2"):
        family.odd(["king", "apple"])


@pytest.mark.parametrize(
    ("word", "hint"),
    [("Queen", "did you mean queen?"), ("quen", "did you mean queen?"), ("kign", "did you mean king?"),
     ("wman", "did you mean man, woman?"), ("xylophone", "for 'xylophone'."), ("q", "for 'q'."), ("ki" * 99, "kiki'.")],
)  # fmt: skip
def test_unknown_word_is_refused_with_the_nearest_spellings(family: KeyedVectors, word: str, hint: str) -> None:
    with pytest.raises(UserError) as error:
        family.near(word)
    assert str(error.value).startswith(f"family.txt: there is no vector for {word!r}")
    assert str(error.value).endswith(hint)


def test_unknown_word_among_many_is_refused_at_once() -> None:
    words = [f"{stem}{number}" for number in range(50_000) for stem in ("alpha", "beta", "gamma", "delta")]
    many = KeyedVectors(words, np.broadcast_to(np.ones(2, dtype=np.float32), (len(words), 2)))
    assert "alpha1" in many
    start = time.perf_counter()
    assert "gammma17" in str(many.unknown_word("gammma17"))
    assert "gamma17" in str(many.unknown_word("gammma17"))
    assert "there is no vector" in str(many.unknown_word("extraordinarily"))
    assert time.perf_counter() - start < 5  # difflib takes minutes


def test_composed_vector_of_an_unknown_word_has_neighbors(family: KeyedVectors) -> None:
    known = KeyedVectors(
        family.words, family.vectors, compose=lambda word: family["king"] * 3 if word == "kings" else None
    )
    assert known.near("kings", 1)[0].word == "king"
    with pytest.raises(UserError, match="no vector for 'xyz'"):
        known.near("xyz")
