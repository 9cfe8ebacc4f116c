"""Comparing sets of vectors: rotated copies agree, unrelated ones do not, and a word that moved is found."""

import numpy as np
import pytest

from regard.errors import UserError
from regard.model.before.word_vectors.comparison import compare_vectors, rotation
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors


def keyed(vectors: np.ndarray, prefix: str = "w") -> KeyedVectors:
    return KeyedVectors([f"{prefix}{row}" for row in range(len(vectors))], vectors.astype(np.float32), name=prefix)


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((300, 12))


def test_rotated_and_scaled_copy_agrees_in_another_dimension_too(vectors: np.ndarray) -> None:
    turn = np.linalg.qr(np.random.default_rng(2).standard_normal((20, 20)))[0][:12]  # 12 into 20 dimensions
    found = compare_vectors(keyed(vectors), keyed(3 * vectors @ turn))
    assert (found.shared, len(found.words), found.neighbors) == (300, 300, 10)
    assert found.overlap > 0.999
    assert found.similarity == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(rotation(vectors.astype("f"), (vectors @ turn).astype("f")), turn, atol=1e-5)


def test_unrelated_vectors_agree_by_chance_only(vectors: np.ndarray) -> None:
    found = compare_vectors(keyed(vectors), keyed(np.random.default_rng(3).standard_normal((300, 12))))
    assert found.chance == pytest.approx(10 / 299)
    assert found.overlap == pytest.approx(found.chance, abs=0.02)
    assert found.similarity < 0.4


def test_word_that_moved_is_the_most_different(vectors: np.ndarray) -> None:
    moved = vectors.copy()
    moved[[7, 9]] = moved[[9, 7]]
    found = compare_vectors(keyed(vectors), keyed(moved))
    assert {one.word for one in found.most_different(2)} == {"w7", "w9"}
    assert found.most_different(3)[2].similarity > 0.95


def test_sets_without_common_words_are_refused(vectors: np.ndarray) -> None:
    with pytest.raises(UserError, match="w and x have 0 words in common; at least 3 are needed"):
        compare_vectors(keyed(vectors), keyed(vectors, "x"))
