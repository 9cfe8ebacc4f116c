"""Vectors as points of a plane: principal component analysis, and t-SNE.

PCA keeps large distances: it is the flat shadow of the cloud of points that is spread widest. t-SNE keeps neighbors: it
moves the points until each has the same neighbors as in the original space (van der Maaten and Hinton 2008). It starts
from PCA, so it has no random numbers in it and gives the same map each time (Kobak and Berens 2019).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError
from regard.progress import phase

Points = NDArray[np.float64]

MAX_POINTS = 3000
"""The most points of t-SNE, which compares all pairs in each step."""
_EXAGGERATION, _EXAGGERATED_STEPS = 12.0, 250
"""At first neighbors attract each other this many times more, so that clusters form."""


class Projection(NamedTuple):
    """Points, and how well they represent the vectors."""

    points: Points  # (n, 2)
    quality: float
    """PCA: the fraction of the variance that the two axes show. t-SNE: the Kullback–Leibler divergence, which is 0 if
    the neighborhoods are the same."""


def pca(vectors: NDArray[np.floating], dimension: int = 2) -> Projection:
    """The coordinates along the directions in which the vectors vary most. The sign of each is fixed: its largest
    coordinate is positive."""
    centered = np.asarray(vectors, dtype=np.float64) - np.mean(vectors, axis=0, dtype=np.float64)
    u, s, _ = np.linalg.svd(centered, full_matrices=False)
    points = np.zeros((len(vectors), dimension))
    found = min(dimension, len(s))
    points[:, :found] = (u * s)[:, :found]
    largest = points[np.abs(points).argmax(axis=0), np.arange(dimension)]
    variance = float(np.square(s).sum())
    shown = float(np.square(s[:dimension]).sum()) / variance if variance else 1.0
    return Projection(points * np.where(largest < 0, -1, 1), shown)


def tsne(vectors: NDArray[np.floating], perplexity: float = 30.0, steps: int = 750) -> Projection:
    """A map on which points have the neighbors that the vectors have, by their Euclidean distances.

    `perplexity` is about the number of neighbors that count; at most a third of the points can.
    """
    n = len(vectors)
    if n > MAX_POINTS:
        raise UserError(
            f"t-SNE compares all pairs of points, so it takes at most {MAX_POINTS:,}; found {n:,}; use PCA."
        )
    start = pca(vectors).points
    if n < 4 or not np.any(start):
        return Projection(start, 0.0)
    p = joint_probabilities(np.asarray(vectors, dtype=np.float64), min(perplexity, (n - 1) / 3))
    exaggerated_p = p * _EXAGGERATION
    points = start / start[:, 0].std() * 1e-4
    step, gains = np.zeros_like(points), np.ones_like(points)
    rate = max(n / _EXAGGERATION, 10.0)  # Belkina et al. 2019
    with phase("Computing t-SNE", "steps", steps) as progress:
        for number in range(steps):
            exaggerated = number < _EXAGGERATED_STEPS
            grad = gradient(points, exaggerated_p if exaggerated else p)
            same = (grad > 0) == (step > 0)
            gains = np.maximum(np.where(same, gains * 0.8, gains + 0.2), 0.01)
            step = (0.5 if exaggerated else 0.8) * step - rate * gains * grad
            points = points + step
            progress.update(number + 1)
    return Projection(points - points.mean(axis=0), divergence(points, p))


def joint_probabilities(vectors: Points, perplexity: float) -> Points:
    """How much each pair counts: Gaussian neighborhoods, whose width is such that each has the perplexity, made
    symmetric.  # (n, n)"""
    distances = squared_distances(vectors)
    np.fill_diagonal(distances, np.inf)
    distances -= distances.min(axis=1, keepdims=True)  # the nearest gets exp(0), so that no row is all zeros
    low, high = np.zeros(len(vectors)), np.full(len(vectors), np.inf)
    beta = np.ones(len(vectors))  # 1 / (2 sigma²) of each row
    for _ in range(64):
        weights = np.exp(-distances * beta[:, None])
        rows = weights / weights.sum(axis=1, keepdims=True)
        entropy = -np.sum(rows * np.log(np.maximum(rows, 1e-300)), axis=1)
        wide = entropy > np.log(perplexity)
        low, high = np.where(wide, beta, low), np.where(wide, high, beta)
        beta = np.where(np.isinf(high), beta * 2, (low + high) / 2)
    joint: Points = np.maximum((rows + rows.T) / (2 * len(vectors)), 1e-300)
    return joint


def divergence(points: Points, p: Points) -> float:
    """The Kullback–Leibler divergence of the points' neighborhoods (Student's t distribution) from p."""
    q = _kernel(points)
    apart = ~np.eye(len(points), dtype=bool)
    return float(np.sum(p[apart] * np.log(p[apart] / np.maximum(q[apart] / q.sum(), 1e-300))))


def gradient(points: Points, p: Points) -> Points:
    """The gradient of the divergence with respect to the points.  # (n, 2)"""
    kernel = _kernel(points)
    forces = p - kernel / kernel.sum()
    forces *= kernel
    grad: Points = 4 * (forces.sum(axis=1)[:, None] * points - forces @ points)
    return grad


def _kernel(points: Points) -> Points:
    kernel = squared_distances(points)
    kernel += 1
    np.reciprocal(kernel, out=kernel)
    np.fill_diagonal(kernel, 0)
    return kernel


def squared_distances(points: Points) -> Points:
    """The squared Euclidean distances of all pairs.  # (n, n)"""
    squares = np.square(points).sum(axis=1)
    found: Points = points @ points.T
    found *= -2
    found += squares[:, None]
    found += squares
    return np.maximum(found, 0, out=found)
