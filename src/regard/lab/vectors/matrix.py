"""The cosines of all pairs of some words as a matrix, and what attention makes of it.

With a softmax over each row and without what comes later, the matrix is self-attention in its simplest form: the words
are their own queries and keys.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regard.lab.markup import escape
from regard.lab.vectors.svg import LETTER, diverging, svg, text, text_color
from regard.model.before.word_vectors.keyed_vectors import Vector

_NUMBERS = 20
"""Up to this many words the cells have numbers in them."""


def attention_matrix(cosines: Vector, *, softmax: bool, causal: bool) -> NDArray[np.float32]:
    """The matrix as it is, or normalized in each row; with `causal`, a word sees only itself and those before it, and
    all else is −∞ before the softmax and 0 after it (without a softmax, it is NaN).  # (words, words)"""
    later = np.triu(np.ones(cosines.shape, dtype=bool), 1) if causal else np.zeros(cosines.shape, dtype=bool)
    if not softmax:
        return np.where(later, np.float32(np.nan), cosines)
    weights = np.exp(np.where(later, -np.inf, cosines - cosines.max(axis=1, keepdims=True)))
    shares: NDArray[np.float32] = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return shares


def matrix_picture(words: Sequence[str], matrix: NDArray[np.float32], title: str, *, causal: bool = False) -> str:
    """A colored cell for each pair: rows and columns are the words, in their order, as SVG. With `causal`, the cells of
    later words are empty."""
    matrix = np.where(np.triu(np.ones(matrix.shape, dtype=bool), 1), np.nan, matrix) if causal else matrix
    negative = bool(np.nanmin(matrix) < 0)
    size = 46.0 if len(words) <= _NUMBERS else max(9.0, 640 / len(words))
    longest = max(map(len, words))
    left, top = 24 + LETTER * longest, 56 + LETTER * longest * (0.75 if size > 30 else 1.0)
    side = size * len(words)
    largest = float(np.nanmax(np.abs(matrix))) or 1.0
    scale = 1.0 if negative or largest > 0.999 else largest
    parts = [text(16, 26, title, 'class="title"')]
    font = "" if size >= 15 else f'style="font-size:{max(5.0, size * 0.85):.1f}px"'
    for row, word in enumerate(words):
        middle = top + (row + 0.5) * size
        parts.append(text(left - 8, middle + min(4.5, size * 0.3), word, f'text-anchor="end" {font}'))
        x = left + (row + 0.5) * size
        turn = f"translate({x + min(4.0, size * 0.3):.1f} {top - 8:.1f}) rotate({-45 if size > 30 else -90})"
        parts.append(text(0, 0, word, f'transform="{turn}" {font}'))
        for column, value in enumerate(matrix[row].tolist()):
            parts += _cell(left + column * size, top + row * size, size, value, scale, (word, words[column]))
    parts += _legend(left + side + 36, top, max(120.0, min(side, 260.0)), scale, negative)
    width = max(left + side + 110 + LETTER * longest * 0.5, 40 + 9.5 * len(title))
    return svg(title, parts, width, max(top + side, top + 130) + 24)


def _cell(x: float, y: float, size: float, value: float, scale: float, words: tuple[str, str]) -> list[str]:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{size:.1f}" height="{size:.1f}"'
    if np.isnan(value):
        return [f'<rect class="cell" {place} fill="var(--line)" opacity="0.35"><title>masked</title></rect>']
    color, tip = diverging(value / scale), escape(f"{words[0]}, {words[1]}: {value:.3f}")
    if size <= 30:
        return [f'<rect {place} fill="{color}"><title>{tip}</title></rect>']
    style = f'class="number" text-anchor="middle" style="fill:{text_color(value / scale)}"'
    return [
        f'<rect class="cell" {place} fill="{color}"/>',
        text(x + size / 2, y + size / 2 + 4, f"{value:.2f}".replace("-", "−"), style),
    ]


def _legend(x: float, top: float, height: float, scale: float, negative: bool) -> list[str]:
    """The colors and what they stand for."""
    low = -scale if negative else 0.0
    steps = 60
    parts = []
    for step in range(steps):
        value = scale - (scale - low) * (step + 0.5) / steps
        y = top + height * step / steps
        color = diverging(value / scale)
        parts.append(f'<rect x="{x:.1f}" y="{y:.2f}" width="14" height="{height / steps + 0.5:.2f}" fill="{color}"/>')
    for share in (0.0, 0.5, 1.0):
        value = scale - (scale - low) * share
        parts.append(text(x + 20, top + height * share + 4, f"{value:.2g}".replace("-", "−"), 'class="soft"'))
    return parts
