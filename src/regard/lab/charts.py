"""Charts as inline SVG: lines and bars with axes, in the colors of the page.

A report must open anywhere, in ten years, without a network, so there is no charting library in it. Colors are CSS
variables, which the page sets for light and dark. Every chart has a title that screen readers read, and stands beside a
table with the same numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from regard.lab.markup import escape

PLOT, HEIGHT = 440, 340
"""The width of the area of a line chart that holds the lines, and the least height of the chart."""
_LEFT, _TOP, _BOTTOM = 58, 16, 46
COLORS = 8
"""Series colors; further series repeat them with another dash pattern."""
_DASHES = ("", "7 4", "2 3", "10 3 2 3")
_MARKER = 3.5
_LABEL_HEIGHT, _LETTER, _SAMPLE = 15.0, 6.3, 24
"""The height of a line's name, about the width of a letter in it, and the width of the sample of the line before it."""


@dataclass(frozen=True)
class Series:
    """Points of a line, sorted by x."""

    name: str
    points: tuple[tuple[float, float], ...]
    color: int
    """Its number in the ladder, so that a rung has the same color in all charts."""


def line_chart(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    *,
    log_x: bool = False,
    log_y: bool = False,
    zero: bool = False,
    include: Sequence[float] = (),
) -> str:
    """Lines with markers, labeled at their ends; nothing if there are no points. A logarithmic axis has none at 0.

    `zero` and `include` are values that the y axis has in any case, so that noise does not fill the chart.
    """
    shown = [Series(one.name, _visible(one, log_x, log_y), one.color) for one in series]
    shown = [one for one in shown if one.points]
    if not shown:
        return ""
    xs, ys = ([point[axis] for one in shown for point in one.points] for axis in (0, 1))
    y_axis = _Axis([*ys, *include, *((0.0,) if zero else ())], log=log_y)
    frame = _Frame(_Axis(xs, log=log_x), y_axis, [one.name for one in shown])
    parts = [frame.draw(x_label, y_label)]
    for one in shown:
        places = [(frame.x(x), frame.y(y)) for x, y in one.points]
        if len(places) > 1:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<polyline {_line_style(one)} points="{path}"/>')
        for (x, y), (real_x, real_y) in zip(places, one.points, strict=True):
            tip = escape(f"{one.name}: {number(real_y)} at {number(real_x)}")
            parts.append(
                f'<circle class="m{one.color % COLORS}" cx="{x:.1f}" cy="{y:.1f}" r="{_MARKER}">'
                f"<title>{tip}</title></circle>"
            )
    return _svg(title, [*parts, *_names(frame, shown)], frame.width, frame.height)


def _visible(one: Series, log_x: bool, log_y: bool) -> tuple[tuple[float, float], ...]:
    return tuple((x, y) for x, y in one.points if (x > 0 or not log_x) and (y > 0 or not log_y))


def _line_style(one: Series) -> str:
    return f'class="s{one.color % COLORS}" stroke-dasharray="{_DASHES[one.color // COLORS % len(_DASHES)]}"'


def bar_chart(title: str, x_label: str, bars: Sequence[tuple[str, float, float, int]]) -> str:
    """Horizontal bars: name, value, half the spread (0 for none) and color of each."""
    if not bars:
        return ""
    row, left = 24, 16 + round(_LETTER * max(len(name) for name, *_ in bars))
    width = left + PLOT + 70
    height = row * len(bars) + 50
    axis = _Axis([0.0, *(value + spread for _, value, spread, _ in bars)])
    scale = PLOT / (axis.high - axis.low)
    parts = []
    for tick in axis.ticks:
        x = left + (tick - axis.low) * scale
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="8" x2="{x:.1f}" y2="{height - 40}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 24}" text-anchor="middle">{number(tick)}</text>')
    for index, (name, value, spread, color) in enumerate(bars):
        y = 12 + index * row
        length = max(0.0, (value - axis.low) * scale)
        parts.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect class="m{color % COLORS}" x="{left}" y="{y}" width="{length:.1f}" height="{row - 8}"/>')
        if spread:
            low, high = left + (value - spread - axis.low) * scale, left + (value + spread - axis.low) * scale
            middle = y + (row - 8) / 2
            parts.append(f'<line class="error" x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}"/>')
        end = left + length + (spread * scale if spread else 0) + 6
        parts.append(f'<text x="{end:.1f}" y="{y + 13}">{number(value)}</text>')
    parts.append(f'<text class="label" x="{left}" y="{height - 6}">{escape(x_label)}</text>')
    return _svg(title, parts, width, height)


def number(value: float) -> str:
    """A number for an axis or a table: at most four significant digits, with SI prefixes when it is large."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    if abs(value) >= 1e18:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}·10^{int(exponent)}"
    for size, prefix in ((1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= size:
            unit = 1e3 if prefix == " k" else size
            return f"{value / unit:.4g}{prefix}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


class _Axis:
    """The range of an axis and its ticks, at round numbers."""

    def __init__(self, values: Sequence[float], *, log: bool = False) -> None:
        self.log = log
        low, high = min(values), max(values)
        if log:
            low, high = math.log10(low), math.log10(high)
            pad = (high - low) * 0.04 or 0.3
            self.low, self.high = low - pad, high + pad
            self.ticks = self._log_ticks()
            return
        if low == high:
            low, high = (low - 1, high + 1) if low else (0.0, 1.0)
        step = _round_step((high - low) / 5)
        if all(value == int(value) for value in values):  # counts, such as layers, have no ticks between them
            step = max(step, 1.0)
        self.low, self.high = math.floor(low / step) * step, math.ceil(high / step) * step
        count = round((self.high - self.low) / step)
        self.ticks = [self.low + step * index for index in range(count + 1)]

    def fraction(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        return ((math.log10(value) if self.log else value) - self.low) / (self.high - self.low)

    def _log_ticks(self) -> list[float]:
        decades = range(math.floor(self.low), math.ceil(self.high) + 1, max(1, round((self.high - self.low) / 8)))
        multiples: tuple[int, ...] = (1,) if self.high - self.low > 3 else (1, 2, 5)
        ticks = [factor * 10.0**decade for decade in decades for factor in multiples]
        return [tick for tick in ticks if self.low <= math.log10(tick) <= self.high] or [
            10.0 ** ((self.low + self.high) / 2)
        ]


def _round_step(rough: float) -> float:
    scale = 10.0 ** math.floor(math.log10(rough))
    return next(factor * scale for factor in (1, 2, 2.5, 5, 10) if factor * scale >= rough * 0.999)


class _Frame:
    """The area of a line chart: where a point is in it, its grid, and room for the names of the lines beside it."""

    def __init__(self, x_axis: _Axis, y_axis: _Axis, names: Sequence[str]) -> None:
        self.x_axis, self.y_axis = x_axis, y_axis
        self.width = _LEFT + PLOT + 20 + _SAMPLE + 22 + round(_LETTER * max(map(len, names)))
        self.height = max(HEIGHT, round(_TOP + _BOTTOM + _LABEL_HEIGHT * len(names)))
        self.right, self.bottom = _LEFT + PLOT, self.height - _BOTTOM

    def x(self, value: float) -> float:
        return _LEFT + self.x_axis.fraction(value) * PLOT

    def y(self, value: float) -> float:
        return self.bottom - self.y_axis.fraction(value) * (self.bottom - _TOP)

    def draw(self, x_label: str, y_label: str) -> str:
        """Grid, ticks and the names of the axes."""
        parts = []
        for tick in self.y_axis.ticks:
            y = self.y(tick)
            parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{self.right}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>')
        for tick in self.x_axis.ticks:
            x = self.x(tick)
            parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{self.bottom}"/>')
            parts.append(f'<text x="{x:.1f}" y="{self.bottom + 16}" text-anchor="middle">{number(tick)}</text>')
        middle, center = _LEFT + PLOT / 2, (_TOP + self.bottom) / 2
        parts.append(
            f'<text class="label" x="{middle:.0f}" y="{self.height - 8}" text-anchor="middle">{escape(x_label)}</text>'
            f'<text class="label" transform="translate(13 {center:.0f}) rotate(-90)" text-anchor="middle">'
            f"{escape(y_label)}</text>"
        )
        return "".join(parts)


def _names(frame: _Frame, series: Sequence[Series]) -> list[str]:
    """The names of the lines at the right edge, in the order of their ends and moved apart where they would overlap.

    Each has a sample of its line, so that the chart needs no legend, and a leader to the line's end.
    """
    ends = sorted(((frame.x(one.points[-1][0]), frame.y(one.points[-1][1]), one) for one in series), key=_height)
    places = _spread([y for _, y, _ in ends], _TOP + 4.0, frame.bottom)
    start = frame.right + 20
    parts = []
    for (x, y, one), place in zip(ends, places, strict=True):
        parts.append(f'<line class="leader" x1="{x + 5:.1f}" y1="{y:.1f}" x2="{start - 3}" y2="{place:.1f}"/>')
        points = f"{start},{place:.1f} {start + _SAMPLE},{place:.1f}"
        parts.append(f'<polyline {_line_style(one)} points="{points}"/>')
        text = start + _SAMPLE + 6
        parts.append(f'<text class="t{one.color % COLORS}" x="{text}" y="{place + 4:.1f}">{escape(one.name)}</text>')
    return parts


def _height(end: tuple[float, float, Series]) -> float:
    return end[1]


def _spread(wanted: Sequence[float], low: float, high: float) -> list[float]:
    """Places of labels, at least a label's height apart and as near as possible to where they are wanted.

    Labels that are too near become a group, which is centered on what its members want (isotonic regression).
    """
    groups: list[list[float]] = []
    for index, place in enumerate(wanted):
        groups.append([place - index * _LABEL_HEIGHT])
        while len(groups) > 1 and fmean(groups[-2]) > fmean(groups[-1]):
            last = groups.pop()
            groups[-1] += last
    last_start = max(low, high - (len(wanted) - 1) * _LABEL_HEIGHT)
    starts = [min(max(fmean(group), low), last_start) for group in groups for _ in group]
    return [start + index * _LABEL_HEIGHT for index, start in enumerate(starts)]


def _svg(title: str, parts: Sequence[str], width: int, height: int) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" style="max-width:{width * 1.15:.0f}px" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )
