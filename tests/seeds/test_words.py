"""Words as vectors: the bars and neighbors of *queen*, and books that cluster by genre.

Other examples about words have their tests elsewhere: the context of *professor* in tests/model/before/word_vectors,
the table of *ice* and *steam* there too, the banks in test_parts.py and tests/test_banks.py.
"""

import re
from xml.etree import ElementTree

import numpy as np

from regard.lab.vectors.bars import bars_picture
from regard.lab.vectors.documents import LabeledDocument, document_vectors, silhouettes
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from regard.model.before.word_vectors.projection import pca

SEA, COURT, COMMON = ("ship", "wave", "sailor", "storm"), ("judge", "law", "witness", "trial"), ("the", "and", "of")


def test_queen_is_bars_beside_a_list_of_cosines_in_descending_order() -> None:
    """000: the vector of *queen*, and the cosines of other words."""
    words = ["queen", "king", "princess", "duke", "throne", "mouse", "cat", "ate"]
    keyed = KeyedVectors(words, np.random.default_rng(3).standard_normal((8, 12), dtype=np.float32))
    picture = bars_picture(keyed, ["queen"])
    heights = [float(number) for number in re.findall(r"dimension \d+: (-?[\d.]+)", picture)]
    np.testing.assert_allclose(heights, keyed["queen"], atol=1e-4)
    written = [one.text for one in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
    cosines = {word: keyed.similarity("queen", word) for word in words[1:]}
    expected = sorted(cosines, key=lambda word: -cosines[word])[:6]
    assert [text for text in written if text in cosines] == expected


def test_books_cluster_by_genre() -> None:
    """003: a book is the mean of its words, and books of one genre are near each other."""
    rng = np.random.default_rng(1)
    centers = np.repeat(rng.standard_normal((3, 20)), (4, 4, 3), axis=0)
    noisy = (centers + 0.5 * rng.standard_normal(centers.shape)).astype(np.float32)
    keyed = KeyedVectors([*SEA, *COURT, *COMMON], noisy)
    documents = [
        LabeledDocument(f"{genre} {number}", genre, " ".join([*rng.choice(own, 20), *rng.choice(COMMON, 20)]))
        for genre, own in (("sea", SEA), ("court", COURT))
        for number in range(10)
    ]
    kept, vectors, known = document_vectors(keyed, documents)
    assert (len(kept), known) == (20, 1)
    assert (silhouettes(vectors, [document.genre for document in kept]) > 0.3).all()
    first_axis = pca(vectors).points[:, 0]
    assert (first_axis[:10] > 0).all() != (first_axis[10:] > 0).all()
