"""Maps: PCA shows what varies most, and t-SNE's gradient is that of its divergence."""

import numpy as np
import pytest

from regard.errors import UserError
from regard.model.before.word_vectors.projection import (
    divergence,
    gradient,
    joint_probabilities,
    pca,
    squared_distances,
    tsne,
)


def clusters(count: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Three clusters in ten dimensions."""
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(3), count)
    return rng.standard_normal((3, 10))[labels] * 4 + rng.standard_normal((3 * count, 10)), labels


def test_pca_keeps_the_distances_of_points_in_a_plane() -> None:
    rng = np.random.default_rng(2)
    plane, _ = np.linalg.qr(rng.standard_normal((7, 2)))
    flat = rng.standard_normal((30, 2)) * (3, 1)
    found = pca(flat @ plane.T + 5)
    np.testing.assert_allclose(squared_distances(found.points), squared_distances(flat), atol=1e-9)
    assert found.quality == pytest.approx(1)
    assert found.points.std(axis=0)[0] > found.points.std(axis=0)[1]


def test_pca_of_one_vector_is_a_point() -> None:
    assert pca(np.ones((1, 5))).points.tolist() == [[0, 0]]


def test_neighborhoods_have_the_perplexity() -> None:
    vectors, _ = clusters()
    p = joint_probabilities(vectors, 8.0)
    np.testing.assert_allclose(p, p.T)
    assert p.sum() == pytest.approx(1)
    one = joint_probabilities(np.array([[0.0], [1.0], [3.0], [4.0], [100.0]]), 2.0)
    assert one[0, 1] > one[0, 2] > one[0, 4]


def test_gradient_is_that_of_the_divergence() -> None:
    vectors, _ = clusters(4)
    p = joint_probabilities(vectors, 3.0)
    points = np.random.default_rng(3).standard_normal((len(vectors), 2))
    slope = gradient(points, p)
    for place in ((0, 0), (5, 1), (11, 0)):
        shift = np.zeros_like(points)
        shift[place] = 1e-5
        numeric = (divergence(points + shift, p) - divergence(points - shift, p)) / 2e-5
        assert slope[place] == pytest.approx(numeric, rel=1e-5, abs=1e-9)


def test_tsne_keeps_clusters_apart_and_is_the_same_each_time() -> None:
    vectors, labels = clusters()
    found = tsne(vectors, steps=400)
    distances = squared_distances(found.points)
    np.fill_diagonal(distances, np.inf)
    assert (labels[distances.argmin(axis=1)] == labels).all()
    assert found.quality < divergence(pca(vectors).points, joint_probabilities(vectors, 59 / 3))
    assert (tsne(vectors, steps=400).points == found.points).all()


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_tsne_of_few_or_equal_points_is_finite(count: int) -> None:
    for vectors in (np.ones((count, 3)), np.random.default_rng(1).standard_normal((count, 3))):
        assert np.isfinite(tsne(vectors, steps=20).points).all()


def test_tsne_of_too_many_points_is_refused() -> None:
    with pytest.raises(UserError, match="at most 3,000; found 3,001; use PCA"):
        tsne(np.zeros((3001, 2)))
