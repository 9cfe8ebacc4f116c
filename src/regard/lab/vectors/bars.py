"""The vector of a word as bars, one per dimension, and the words that are most similar to it."""

from collections.abc import Sequence

import numpy as np

from regard.lab.vectors.svg import LETTER, diverging, svg, text
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors, Neighbor, Vector

_WIDTH, _HEIGHT, _GAP, _TOP, _LEFT = 900.0, 150.0, 62.0, 58.0, 64.0
_LIST, _ROW, _BAR = 6, 22.0, 90.0
"""Neighbors listed beside the bars, the height of a line, and the width of a bar for a cosine of 1."""


def bars_picture(keyed: KeyedVectors, words: Sequence[str]) -> str:
    """The vectors of some words below each other, on the same scale, as SVG."""
    vectors = [keyed[word] for word in words]
    largest = max(float(np.abs(vector).max()) for vector in vectors) or 1.0
    near = [keyed.near(word, _LIST) for word in words]
    longest = max([len(one.word) for found in near for one in found], default=0)
    list_left = _LEFT + _WIDTH + 40
    parts = []
    for number, (word, vector, found) in enumerate(zip(words, vectors, near, strict=True)):
        top = _TOP + number * (_HEIGHT + _GAP)
        parts.append(text(_LEFT, top - 14, word, 'class="title"'))
        parts += _bars(vector, largest, top)
        parts += _neighbors(found, list_left, top, longest)
    height = _TOP + len(words) * (_HEIGHT + _GAP)
    caption = f"{keyed.dimension:,} dimensions, from the first to the last"
    parts.append(text(_LEFT, height - 24, caption, 'class="soft"'))
    width = list_left + LETTER * longest + _BAR + 80
    return svg(f"The vectors of {', '.join(words)}", parts, width, height)


def _bars(vector: Vector, largest: float, top: float) -> list[str]:
    """A bar per dimension: up and blue above 0, down and red below."""
    step, middle = _WIDTH / len(vector), top + _HEIGHT / 2
    parts = []
    for share, y in ((1.0, top), (0.0, middle), (-1.0, top + _HEIGHT)):
        parts.append(f'<line class="line" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            text(_LEFT - 8, y + 4, f"{share * largest:.2g}".replace("-", "−"), 'class="soft" text-anchor="end"')
        )
    gap = 0.15 * step if step > 3 else 0.0
    for index, value in enumerate(vector.tolist()):
        height = abs(value) / largest * _HEIGHT / 2
        y = middle - height if value > 0 else middle
        color = diverging((0.45 + 0.55 * abs(value) / largest) * (1 if value > 0 else -1))
        parts.append(
            f'<rect x="{_LEFT + index * step:.2f}" y="{y:.2f}" width="{step - gap:.2f}" height="{height:.2f}" '
            f'fill="{color}"><title>dimension {index + 1}: {value:.4f}</title></rect>'
        )
    return parts


def _neighbors(found: Sequence[Neighbor], left: float, top: float, longest: int) -> list[str]:
    """The most similar words with their cosines, as a list of bars."""
    parts = [text(left, top - 14, "most similar", 'class="soft"')]
    bar = left + LETTER * longest + 18
    for row, (word, similarity) in enumerate(found):
        y = top + 14 + row * _ROW
        length = max(0.0, similarity) * _BAR
        parts.append(text(left, y, word))
        parts.append(f'<rect x="{bar:.1f}" y="{y - 10:.1f}" width="{length:.1f}" height="12" fill="var(--c0)"/>')
        parts.append(text(bar + length + 6, y, f"{similarity:.2f}", 'class="soft"'))
    return parts
