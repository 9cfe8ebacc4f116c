"""Maps: labeled points of a plane, as a picture and as a page to zoom into.

Labels never overlap: one is written where it finds room beside its point, those of more important points first, and a
point without room for its label has it as a tooltip. The page places them anew as it is zoomed, until all have room.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import product

import numpy as np
from numpy.typing import NDArray

from regard.lab.charts import COLORS
from regard.lab.markup import escape
from regard.lab.report import DARK, LIGHT
from regard.lab.vectors.svg import LETTER, svg, text

SHAPES = ("circle", "diamond", "square", "triangle")
"""Groups beyond the number of colors repeat the colors with the next shape."""
_SIZE, _MARGIN, _TOP, _LABEL, _HEIGHT = 860.0, 26.0, 76.0, 15.0, 240.0


@dataclass(frozen=True)
class MapPoint:
    """A point of a map. The first points of a list get their labels first."""

    label: str
    x: float
    y: float
    group: str = ""
    shown: bool = True
    """Whether its label is written; otherwise it is a tooltip only."""


@dataclass(frozen=True)
class VectorMap:
    """Points with a title, and a sentence about how they came about."""

    title: str
    note: str
    points: tuple[MapPoint, ...]

    @property
    def groups(self) -> list[str]:
        """The groups in the order in which they first occur; none if the points have none."""
        return list(dict.fromkeys(point.group for point in self.points if point.group))

    @classmethod
    def of(
        cls, title: str, note: str, labels: Sequence[str], points: NDArray[np.floating], groups: Sequence[str] = ()
    ) -> "VectorMap":
        """A map of some labels.  points: # (labels, 2)"""
        rows = zip(labels, points.tolist(), groups or [""] * len(labels), strict=True)
        return cls(title, note, tuple(MapPoint(label, x, y, group) for label, (x, y), group in rows))

    def without_labels(self) -> "VectorMap":
        """The same with labels as tooltips only."""
        return replace(self, points=tuple(replace(point, shown=False) for point in self.points))


def map_svg(drawn: VectorMap) -> str:
    """The map as a picture."""
    groups = drawn.groups
    scaled, bottom = _scaled(drawn.points)
    boxes = [(x - 4, y - 4, x + 4, y + 4) for x, y in scaled]
    taken = list(boxes)
    marks, labels = [], []
    for point, (x, y) in zip(drawn.points, scaled, strict=True):
        number = groups.index(point.group) if point.group else 0
        tip = point.label + (f" ({point.group})" if point.group else "")
        marks.append(_mark(x, y, number, f"<title>{escape(tip)}</title>"))
        if point.shown and (place := _room(point.label, x, y, taken)) is not None:
            box, anchor = place
            taken.append(box)
            left = box[0] if anchor == "start" else box[2] if anchor == "end" else (box[0] + box[2]) / 2
            labels.append(text(left, box[3] - 4, point.label, f'text-anchor="{anchor}" style="font-size:12px"'))
    parts = [text(_MARGIN, 28, drawn.title, 'class="title"'), text(_MARGIN, 48, drawn.note, 'class="soft"')]
    parts += [*marks, *labels]
    for number, group in enumerate(groups):
        y = _TOP + 16 + 21 * number
        parts += [_mark(_SIZE + 40, y - 4, number), text(_SIZE + 52, y, group)]
    width = _SIZE + (70 + 1.1 * LETTER * max(map(len, groups)) if groups else 0)
    return svg(drawn.title, parts, width, max(bottom, _TOP + 21 * len(groups)) + _MARGIN)


def map_html(drawn: VectorMap) -> str:
    """The map as one page with pan and zoom, which needs nothing else. Without scripts it shows the picture."""
    groups = drawn.groups
    rows = [
        [
            point.label,
            round(point.x, 4),
            round(point.y, 4),
            groups.index(point.group) if point.group else 0,
            point.shown,
        ]
        for point in drawn.points
    ]
    data = {"points": rows, "groups": groups, "light": LIGHT, "dark": DARK}
    page = resources.files("regard.lab.vectors").joinpath("map.html").read_text(encoding="utf-8")
    filled = {
        "TITLE": escape(drawn.title),
        "NOTE": escape(drawn.note),
        "PICTURE": map_svg(drawn),
        "DATA": json.dumps(data, ensure_ascii=False).replace("<", "\\u003c"),
    }
    head, *pieces = page.split("{{")
    return head + "".join(filled[name] + rest for name, _, rest in (piece.partition("}}") for piece in pieces))


def _scaled(points: Sequence[MapPoint]) -> tuple[list[tuple[float, float]], float]:
    """The places of the points in the picture, and where it ends at the bottom. Both axes have the same scale."""
    places = np.array([(point.x, point.y) for point in points])
    low, high = places.min(axis=0), places.max(axis=0)
    scale = (_SIZE - 4 * _MARGIN) / (float((high - low).max()) or 1.0)
    height = max(_HEIGHT, float((high - low)[1]) * scale)
    center = np.array([_SIZE / 2, _TOP + height / 2])
    found = (places - (low + high) / 2) * (scale, -scale) + center
    return [tuple(place) for place in found.tolist()], _TOP + height


_Box = tuple[float, float, float, float]


def _room(label: str, x: float, y: float, taken: Sequence[_Box]) -> tuple[_Box, str] | None:
    """A place beside a point that no other label or point has: right, left, above or below it."""
    width = LETTER * 0.95 * len(label) + 4
    own = (x - 4, y - 4, x + 4, y + 4)
    for dx, dy in (*product((6.0, -6.0 - width), (0.0,)), (-width / 2, -_LABEL + 3), (-width / 2, _LABEL - 3)):
        box = (x + dx, y + dy - _LABEL / 2, x + dx + width, y + dy + _LABEL / 2)
        free = not any(_overlap(box, other) for other in taken if other != own)
        if free and box[0] > 0 and box[2] < _SIZE:
            return box, "start" if dx > 0 else "end" if dx < -width else "middle"
    return None


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _mark(x: float, y: float, group: int, content: str = "") -> str:
    """The mark of a point in the color and shape of its group."""
    style = f'fill="var(--c{group % COLORS})" fill-opacity="0.8"'
    match SHAPES[group // COLORS % len(SHAPES)]:
        case "circle":
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {style}>{content}</circle>'
        case "diamond":
            corners = ((0, -5.5), (5.5, 0), (0, 5.5), (-5.5, 0))
        case "square":
            corners = ((-4, -4), (4, -4), (4, 4), (-4, 4))
        case _:
            corners = ((0, -5), (5, 4), (-5, 4), (0, -5))
    path = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{path}" {style}>{content}</polygon>'
