"""Documents as mean vectors: silhouettes follow their definition, unknown words are left out."""

import numpy as np
import pytest

from regard.data.registry import find_dataset
from regard.errors import UserError
from regard.lab.vectors.documents import (
    BROWN_GENRES,
    LabeledDocument,
    brown_documents,
    document_vectors,
    labeled_documents,
    silhouettes,
)
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from regard.model.before.word_vectors.neighbors import unit_rows


def test_silhouettes_follow_their_definition() -> None:
    rng = np.random.default_rng(1)
    labels = ["a"] * 5 + ["b"] * 3 + ["c"]
    vectors = rng.standard_normal((9, 4)) + np.eye(4)[[0] * 5 + [1] * 3 + [2]] * 3
    units = unit_rows(vectors)
    distance = 1 - units @ units.T
    for row, found in enumerate(silhouettes(vectors, labels)):
        same = [other for other in range(9) if labels[other] == labels[row] and other != row]
        if not same:
            assert found == 0
            continue
        own = np.mean([distance[row, other] for other in same])
        rest = [name for name in "abc" if name != labels[row]]
        near = min(np.mean([distance[row, other] for other in range(9) if labels[other] == name]) for name in rest)
        assert found == pytest.approx((near - own) / max(near, own), abs=1e-5)
    with pytest.raises(UserError, match="all 2 documents have the same"):
        silhouettes(vectors[:2], ["a", "a"])


def test_document_is_the_mean_of_its_known_words() -> None:
    keyed = KeyedVectors(["cat", "dog", "US"], np.array([[1, 0], [0, 1], [4, 4]], dtype=np.float32), name="v.txt")
    documents = [LabeledDocument("one", "g", "Cat, cat: dog? zebra US"), LabeledDocument("none", "g", "zebra")]
    kept, vectors, known = document_vectors(keyed, documents)
    assert [document.name for document in kept] == ["one"]
    np.testing.assert_allclose(vectors, [[(1 + 1 + 4) / 4, (1 + 4) / 4]])
    assert known == pytest.approx(4 / 6)
    with pytest.raises(UserError, match=r"v\.txt: there are vectors for none of the 1 words"):
        document_vectors(keyed, documents[1:])


def test_labeled_texts_are_documents(tmp_path) -> None:
    (tmp_path / "texts.tsv").write_text(f"A cat sat.\tpets\n{'long ' * 40}\tother\n")
    first, second = labeled_documents(tmp_path / "texts.tsv")
    assert (first.name, first.genre, first.text) == ("A cat sat.", "pets", "A cat sat.")
    assert len(second.name) == 48


def test_brown_has_500_documents() -> None:
    assert sum(count for _, count, _ in BROWN_GENRES.values()) == 500
    if find_dataset("brown") is None:
        pytest.skip("the Brown corpus is not on this machine")
    documents = list(brown_documents())
    assert (documents[0].name, documents[-1].name, documents[-1].genre) == ("ca01", "cr09", "humor")
    assert documents[0].text.startswith("The Fulton County Grand Jury")
    assert {document.genre for document in brown_documents(broad=True)} == {
        "press", "general prose", "learned", "fiction",
    }  # fmt: skip
