"""Charts as inline SVG: lines and bars with axes, in the colors of the page.

A report must open anywhere, in ten years, without a network, so there is no charting library in it. Colors are CSS
variables, which the page sets for light and dark. Every chart has a title that screen readers read, and stands beside a
table with the same numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from regard.lab.markup import escape

WIDTH, HEIGHT = 640, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 150, 16, 46
COLORS = 8
"""Series colors; further series repeat them with another dash pattern."""
_DASHES = ("", "6 4", "2 3", "9 3 2 3")
_MARKER = 3.5
_LABEL_HEIGHT = 13.0


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
) -> str:
    """Lines with markers, labeled at their ends; nothing if there are no points. A logarithmic axis has none at 0."""
    shown = [
        replace(one, points=tuple((x, y) for x, y in one.points if (x > 0 or not log_x) and (y > 0 or not log_y)))
        for one in series
    ]
    series = [one for one in shown if one.points]
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    if not xs:
        return ""
    x_axis, y_axis = _Axis(xs, log=log_x), _Axis([*ys, 0.0] if zero else ys, log=log_y)
    parts = [_frame(x_axis, y_axis, x_label, y_label)]
    ends = []
    for one in series:
        places = [(_x(x_axis, x), _y(y_axis, y)) for x, y in one.points]
        style = f'class="s{one.color % COLORS}" stroke-dasharray="{_DASHES[one.color // COLORS % len(_DASHES)]}"'
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        if len(places) > 1:
            parts.append(f'<polyline {style} points="{path}"/>')
        for (x, y), (real_x, real_y) in zip(places, one.points, strict=True):
            tip = escape(f"{one.name}: {number(real_y)} at {number(real_x)}")
            parts.append(
                f'<circle class="m{one.color % COLORS}" cx="{x:.1f}" cy="{y:.1f}" r="{_MARKER}">'
                f"<title>{tip}</title></circle>"
            )
        ends.append((places[-1], one))
    parts += _end_labels(ends)
    return _svg(title, parts)


def bar_chart(title: str, x_label: str, bars: Sequence[tuple[str, float, float, int]]) -> str:
    """Horizontal bars: name, value, half the spread (0 for none) and color of each."""
    if not bars:
        return ""
    row, left = 26, 190
    height = row * len(bars) + 50
    axis = _Axis([0.0, *(value + spread for _, value, spread, _ in bars)])
    scale = (WIDTH - left - 70) / (axis.high - axis.low)
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
    return _svg(title, parts, height)


def number(value: float) -> str:
    """A number for an axis or a table: at most four significant digits, with SI prefixes when it is large."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    if abs(value) >= 1e15:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}·10^{int(exponent)}"
    for size, prefix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")):
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


def _x(axis: _Axis, value: float) -> float:
    return _LEFT + axis.fraction(value) * (WIDTH - _LEFT - _RIGHT)


def _y(axis: _Axis, value: float) -> float:
    return HEIGHT - _BOTTOM - axis.fraction(value) * (HEIGHT - _TOP - _BOTTOM)


def _frame(x_axis: _Axis, y_axis: _Axis, x_label: str, y_label: str) -> str:
    """Grid, ticks and the names of the axes."""
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts = []
    for tick in y_axis.ticks:
        y = _y(y_axis, tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>')
    for tick in x_axis.ticks:
        x = _x(x_axis, tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{number(tick)}</text>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text class="label" x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>')
    height = (_TOP + bottom) / 2
    parts.append(
        f'<text class="label" transform="translate(13 {height:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>"
    )
    return "".join(parts)


def _end_labels(ends: Sequence[tuple[tuple[float, float], Series]]) -> list[str]:
    """The names of the lines at the right edge, moved apart where they would overlap, each with a leader."""
    ordered = sorted(ends, key=lambda each: each[0][1])
    places: list[float] = []
    for (_, y), _one in ordered:
        places.append(max(y, places[-1] + _LABEL_HEIGHT) if places else max(y, _TOP + 4.0))
    overflow = places[-1] - (HEIGHT - _BOTTOM) if places else 0
    if overflow > 0:
        for index in range(len(places) - 1, -1, -1):
            limit = HEIGHT - _BOTTOM if index == len(places) - 1 else places[index + 1] - _LABEL_HEIGHT
            places[index] = min(places[index], limit)
    edge = WIDTH - _RIGHT + 12
    parts = []
    for ((x, y), one), place in zip(ordered, places, strict=True):
        color = one.color % COLORS
        parts.append(f'<line class="leader" x1="{x + 4:.1f}" y1="{y:.1f}" x2="{edge - 3}" y2="{place:.1f}"/>')
        parts.append(f'<text class="t{color}" x="{edge}" y="{place + 4:.1f}">{escape(one.name)}</text>')
    return parts


def _svg(title: str, parts: Sequence[str], height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
