"""What the pictures of vectors share: an SVG that stands alone, in light and dark, and the colors of its values."""

from collections.abc import Sequence

from regard.lab.markup import escape
from regard.lab.report import DARK, LIGHT

LETTER = 7.0
"""About the width of a letter of a label, in pixels."""
_NEGATIVE, _MIDDLE, _POSITIVE = (178, 58, 72), (246, 246, 244), (28, 92, 160)


def svg(title: str, parts: Sequence[str], width: float, height: float) -> str:
    """A picture as a file of its own. Screen readers read its title."""

    def variables(colors: Sequence[str]) -> str:
        return "".join(f"--c{index}:{color};" for index, color in enumerate(colors))

    style = (
        f":root{{--bg:#fff;--fg:#1b1b1b;--soft:#5c5c5c;--line:#d9d9d9;{variables(LIGHT)}}}"
        f"@media(prefers-color-scheme:dark){{:root{{--bg:#16181b;--fg:#e8e8e8;--soft:#a8a8a8;--line:#3a3d42;"
        f"{variables(DARK)}}}}}"
        "text{fill:var(--fg);font:13px system-ui,sans-serif}.soft{fill:var(--soft);font-size:12px}"
        ".title{font-size:16px;font-weight:600}.line{stroke:var(--line)}.cell{stroke:var(--bg);stroke-width:1}"
        ".number{font-size:11px;font-variant-numeric:tabular-nums}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>'
        f"<style>{style}</style>"
        f'<rect width="100%" height="100%" fill="var(--bg)"/>{"".join(parts)}</svg>\n'
    )


def text(x: float, y: float, content: str, attributes: str = "") -> str:
    """A text at a place; `attributes` are written as they are."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(content)}</text>'


def html_page(title: str, picture: str) -> str:
    """A picture as a page that needs nothing else."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(title)}</title><style>:root{{color-scheme:light dark}}body{{margin:1rem}}"
        f"svg{{max-width:100%;height:auto}}</style></head><body>{picture}</body></html>\n"
    )


def diverging(value: float) -> str:
    """The color of a value from −1 to 1: red below 0, nearly white at 0, blue above."""
    end = _POSITIVE if value > 0 else _NEGATIVE
    share = min(1.0, abs(value))
    return "#" + "".join(f"{round(m + (e - m) * share):02x}" for m, e in zip(_MIDDLE, end, strict=True))


def text_color(value: float) -> str:
    """The color of text on that color."""
    return "#fff" if abs(value) > 0.55 else "#1b1b1b"
