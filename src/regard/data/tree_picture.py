"""Trees for people: drawn with lines in a terminal, or as a picture (SVG) that stands on its own.

In both, the sentence stands in one row at the bottom, each word below its tag, and constituents above what they span.
A tree too wide for the terminal is written as a list instead, a constituent a line, parts indented under it. Words are
shown as people write them, with `(` for `-LRB-`.
"""

import re
from dataclasses import dataclass
from xml.sax.saxutils import escape

from rich.cells import cell_len

from regard.data.trees import Leaf, Tree, word_for_people

_GAP = 2
"""Columns between neighbours."""


def draw_tree(tree: Tree, width: int | None = None) -> str:
    """The tree in lines of text: its picture, or a list where that is wider than `width` columns."""
    block = _block(tree)
    if width is not None and block.width > width:
        return list_tree(tree)
    return "\n".join(line.rstrip() for line in block.lines)


def list_tree(tree: Tree) -> str:
    """The tree as an indented list, which is as wide as the tree is deep; words of one constituent share its line.

    A constituent with words only is one line: `NP  DT the  NN cat`.
    """
    lines = [_title(tree)]
    last: list[bool] = []
    levels = [iter(_parts(tree))]
    while levels:
        for part, is_last in levels[-1]:
            stem = "".join("   " if each else "│  " for each in last)
            lines.append(f"{stem}{'└' if is_last else '├'}─ {_title(part)}")
            if isinstance(part, Tree):
                last.append(is_last)
                levels.append(iter(_parts(part)))
                break
        else:
            levels.pop()
            if last:
                last.pop()
    return "\n".join(lines)


def _parts(tree: Tree) -> list[tuple[Tree | Leaf, bool]]:
    """What stands on lines of their own below a constituent, and whether it is the last of them."""
    if _is_flat(tree):
        return []
    return [(child, number == len(tree.children)) for number, child in enumerate(tree.children, start=1)]


def _is_flat(tree: Tree) -> bool:
    return all(isinstance(child, Leaf) for child in tree.children)


def _title(node: Tree | Leaf) -> str:
    if isinstance(node, Leaf):
        return f"{_plain(node.tag)} {_word(node)}"
    leaves = (f"  {_title(child)}" for child in node.children) if _is_flat(node) else ()
    return "".join((_label(node), *leaves))


@dataclass
class _Block:
    """A part of the picture: lines of one width, and the column where a line from above meets it."""

    lines: list[str]
    width: int
    stem: int

    @classmethod
    def of(cls, text: str) -> "_Block":
        width = max(1, cell_len(text))
        return cls([text + " " * (width - cell_len(text))], width, (width - 1) // 2)

    def raise_to(self, height: int) -> None:
        """Grow upwards, by a line from above."""
        line = _at(self.stem, "│", self.width)
        self.lines[:0] = [line] * (height - len(self.lines))

    def widen(self, left: int, right: int) -> None:
        self.lines = [" " * left + line + " " * right for line in self.lines]
        self.width += left + right
        self.stem += left

    def put_above(self, text: str) -> None:
        """Write a text over the stem, and make room where it is wider than what is below."""
        top = _Block.of(text)
        left, right = max(0, top.stem - self.stem), max(0, top.width - top.stem - (self.width - self.stem))
        self.widen(left, right)
        before = self.stem - top.stem
        self.lines.insert(0, " " * before + top.lines[0] + " " * (self.width - before - top.width))


def _block(tree: Tree) -> _Block:
    """The picture of a tree, made from those of its parts."""
    levels: list[list[_Block]] = [[]]
    labels: list[str] = []
    for node in tree.walk():
        if isinstance(node, Tree):
            labels.append(_label(node))
            levels.append([])
        elif isinstance(node, Leaf):
            block = _Block.of(_word(node))
            block.lines.insert(0, _at(block.stem, "│", block.width))
            block.put_above(_plain(node.tag))
            levels[-1].append(block)
        else:
            block = _joined(levels.pop())
            block.put_above(labels.pop())
            levels[-1].append(block)
    return levels[0][0]


def _joined(parts: list[_Block]) -> _Block:
    """Parts side by side under one line that joins them."""
    height = max(len(part.lines) for part in parts)
    stems, begin = [], 0
    for part in parts:
        part.raise_to(height)
        stems.append(begin + part.stem)
        begin += part.width + _GAP
    lines = [(" " * _GAP).join(row) for row in zip(*(part.lines for part in parts), strict=True)]
    stem = (stems[0] + stems[-1]) // 2
    return _Block([_bar(stems, stem, begin - _GAP), *lines], begin - _GAP, stem)


def _bar(stems: list[int], above: int, width: int) -> str:
    """The line between a constituent and its parts."""
    if len(stems) == 1:
        return _at(above, "│", width)
    signs = [" "] * width
    signs[stems[0] : stems[-1] + 1] = "─" * (stems[-1] + 1 - stems[0])
    for stem in stems[1:-1]:
        signs[stem] = "┬"
    signs[above] = "┼" if above in stems else "┴"
    signs[stems[0]], signs[stems[-1]] = "┌", "┐"
    return "".join(signs)


def _at(column: int, sign: str, width: int) -> str:
    return " " * column + sign + " " * (width - column - 1)


_FONT = 14
_CELL = 0.6 * _FONT
"""The width of a sign; wide ones take two."""
_ROW, _MARGIN, _BETWEEN = 44.0, 16.0, 14.0
_STYLE = """
    .tree { background: #fff; color: #1d1d1f }
    .tree text { font: 14px ui-monospace, Menlo, Consolas, monospace; text-anchor: middle; fill: currentColor }
    .tree .label { font-weight: 600; fill: #1f5fbf }
    .tree .tag { fill: #6a6a70 }
    .tree path { stroke: #9a9aa2; fill: none }
    @media (prefers-color-scheme: dark) {
      .tree { background: #1b1b1e; color: #ececf0 }
      .tree .label { fill: #8ab8ff }
      .tree .tag { fill: #a0a0aa }
      .tree path { stroke: #6c6c76 }
    }
  """


@dataclass
class _Spot:
    """A constituent or leaf of the picture, with the spots below it."""

    kind: str
    text: str
    below: "list[_Spot]"
    x: float = 0.0
    row: int = 0


def tree_svg(tree: Tree) -> str:
    """The tree as the text of an SVG file, without scripts or other files, light or dark as its reader likes it."""
    spots, height, width = _spots(tree)
    paths = [_path(spot, below) for spot in spots for below in spot.below]
    texts = [
        f'<text class="{spot.kind}" x="{spot.x:.1f}" y="{_y(spot.row) + 5:.1f}">{_xml(spot.text)}</text>'
        for spot in spots
    ]
    sentence = _xml(" ".join(map(word_for_people, tree.words())))
    across, down = round(width + 2 * _MARGIN), round(_y(height) + _MARGIN)
    size = f'viewBox="0 0 {across} {down}" width="{across}" height="{down}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} class="tree" role="img">',
        f"<title>{sentence}</title>",
        f"<style>{_STYLE}</style>",
    ]
    return "\n  ".join((*head, *paths, *texts)) + "\n</svg>\n"


def _spots(tree: Tree) -> tuple[list[_Spot], int, float]:
    """All that stands in the picture, in the order of reading, its lowest row and its width.

    Words stand side by side. A constituent stands above the middle of what is below it, one row higher than the highest
    of that; where its label is wider than that, words make room.
    """
    spots: list[_Spot] = []
    above: list[_Spot] = []
    begin = _MARGIN  # where the next word may begin
    starts: list[float] = []  # where the first word of each open constituent began
    for node in tree.walk():
        if isinstance(node, Tree):
            spot = _Spot("label", _label(node), [])
            starts.append(begin)
            if above:
                above[-1].below.append(spot)
            above.append(spot)
            spots.append(spot)
        elif isinstance(node, Leaf):
            word = _Spot("word", _word(node), [])
            tag = _Spot("tag", _plain(node.tag), [word], row=1)
            size = _CELL * max(1, cell_len(word.text), cell_len(tag.text))
            word.x = tag.x = begin + size / 2
            begin += size + _BETWEEN
            above[-1].below.append(tag)
            spots += tag, word
        else:
            spot, start = above.pop(), starts.pop()
            begin = max(begin, start + _CELL * cell_len(spot.text) + _BETWEEN)
            spot.x = (start + begin - _BETWEEN) / 2
            spot.row = 1 + max(below.row for below in spot.below)
    height = spots[0].row
    for spot in spots:
        spot.row = height - spot.row
    return spots, height, begin - _BETWEEN - _MARGIN


def _path(spot: _Spot, below: _Spot) -> str:
    """Down a little, across, and straight down: what stands between is never crossed."""
    top, bottom = _y(spot.row) + 10, _y(below.row) - 10
    return f'<path d="M{spot.x:.1f} {top:.1f}v8H{below.x:.1f}V{bottom:.1f}"/>'


def _y(row: int) -> float:
    return _MARGIN + _FONT / 2 + row * _ROW


def _label(tree: Tree) -> str:
    return _plain(tree.label) or "·"


def _word(leaf: Leaf) -> str:
    return _plain(word_for_people(leaf.word))


def _plain(text: str) -> str:
    """The text with a sign in place of what could command a terminal, or cannot be in XML."""
    return _UNSHOWN.sub("\ufffd", text)


def _xml(text: str) -> str:
    return escape(_plain(text), {'"': "&quot;"})


_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
