"""Drawing trees: with box characters in a terminal, or as a self-contained SVG.

In both, the sentence is the bottom row, each word is below its tag, and constituents are above the words they span. A
tree that is too wide for the terminal is shown as an indented list instead. Words are shown without bracket escapes:
`(` for `-LRB-`.
"""

import re
from dataclasses import dataclass
from xml.sax.saxutils import escape

from rich.cells import cell_len

from regard.data.trees.tree import Leaf, Tree, unescape_brackets

_GAP = 2
"""Columns between siblings."""


def draw_tree(tree: Tree, width: int | None = None) -> str:
    """The tree drawn as text, or as an indented list if the drawing is wider than `width` columns."""
    block = _block(tree)
    if width is not None and block.width > width:
        return list_tree(tree)
    return "\n".join(line.rstrip() for line in block.lines)


def list_tree(tree: Tree) -> str:
    """The tree as an indented list, one constituent per line.

    A constituent of words only is one line: `NP  DT the  NN cat`.
    """
    lines = [_title(tree)]
    last: list[bool] = []
    levels = [iter(_listed_children(tree))]
    while levels:
        for child, is_last in levels[-1]:
            indent = "".join("   " if each else "│  " for each in last)
            lines.append(f"{indent}{'└' if is_last else '├'}─ {_title(child)}")
            if isinstance(child, Tree):
                last.append(is_last)
                levels.append(iter(_listed_children(child)))
                break
        else:
            levels.pop()
            if last:
                last.pop()
    return "\n".join(lines)


def _listed_children(tree: Tree) -> list[tuple[Tree | Leaf, bool]]:
    """The children that get a line of their own, and whether each is the last of them."""
    if _is_flat(tree):
        return []
    return [(child, number == len(tree.children)) for number, child in enumerate(tree.children, start=1)]


def _is_flat(tree: Tree) -> bool:
    return all(isinstance(child, Leaf) for child in tree.children)


def _title(node: Tree | Leaf) -> str:
    if isinstance(node, Leaf):
        return f"{_printable(node.tag)} {_word(node)}"
    leaves = (f"  {_title(child)}" for child in node.children) if _is_flat(node) else ()
    return "".join((_label(node), *leaves))


@dataclass
class _Block:
    """Part of a drawing: lines of equal width, and the column at which the line from above meets it."""

    lines: list[str]
    width: int
    stem: int

    @classmethod
    def of(cls, text: str) -> "_Block":
        width = max(1, cell_len(text))
        return cls([text + " " * (width - cell_len(text))], width, (width - 1) // 2)

    def grow(self, height: int) -> None:
        """Grow upwards to a height, with a vertical line."""
        line = _at(self.stem, "│", self.width)
        self.lines[:0] = [line] * (height - len(self.lines))

    def pad(self, left: int, right: int) -> None:
        self.lines = [" " * left + line + " " * right for line in self.lines]
        self.width += left + right
        self.stem += left

    def put_above(self, text: str) -> None:
        """Center a text above the stem, and widen the block if the text is wider."""
        top = _Block.of(text)
        left, right = max(0, top.stem - self.stem), max(0, top.width - top.stem - (self.width - self.stem))
        self.pad(left, right)
        before = self.stem - top.stem
        self.lines.insert(0, " " * before + top.lines[0] + " " * (self.width - before - top.width))


def _block(tree: Tree) -> _Block:
    """The drawing of a tree, built bottom-up."""
    levels: list[list[_Block]] = [[]]
    labels: list[str] = []
    for node in tree.walk():
        if isinstance(node, Tree):
            labels.append(_label(node))
            levels.append([])
        elif isinstance(node, Leaf):
            block = _Block.of(_word(node))
            block.lines.insert(0, _at(block.stem, "│", block.width))
            block.put_above(_printable(node.tag))
            levels[-1].append(block)
        else:
            block = _side_by_side(levels.pop())
            block.put_above(labels.pop())
            levels[-1].append(block)
    return levels[0][0]


def _side_by_side(parts: list[_Block]) -> _Block:
    """Blocks side by side under the line that connects them."""
    height = max(len(part.lines) for part in parts)
    stems, begin = [], 0
    for part in parts:
        part.grow(height)
        stems.append(begin + part.stem)
        begin += part.width + _GAP
    lines = [(" " * _GAP).join(row) for row in zip(*(part.lines for part in parts), strict=True)]
    stem = (stems[0] + stems[-1]) // 2
    return _Block([_bar(stems, stem, begin - _GAP), *lines], begin - _GAP, stem)


def _bar(stems: list[int], above: int, width: int) -> str:
    """The line between a constituent and its children."""
    if len(stems) == 1:
        return _at(above, "│", width)
    characters = [" "] * width
    characters[stems[0] : stems[-1] + 1] = "─" * (stems[-1] + 1 - stems[0])
    for stem in stems[1:-1]:
        characters[stem] = "┬"
    characters[above] = "┼" if above in stems else "┴"
    characters[stems[0]], characters[stems[-1]] = "┌", "┐"
    return "".join(characters)


def _at(column: int, character: str, width: int) -> str:
    return " " * column + character + " " * (width - column - 1)


_FONT = 14
_CELL = 0.6 * _FONT
"""The width of a character; wide ones take two."""
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
class _Node:
    """A label, tag or word of the drawing, with the nodes below it."""

    kind: str
    text: str
    below: "list[_Node]"
    x: float = 0.0
    row: int = 0


def tree_svg(tree: Tree) -> str:
    """The tree as an SVG file without scripts or external resources, in light or dark as the viewer prefers."""
    nodes, height, width = _nodes(tree)
    paths = [_path(node, below) for node in nodes for below in node.below]
    texts = [
        f'<text class="{node.kind}" x="{node.x:.1f}" y="{_y(node.row) + 5:.1f}">{_xml(node.text)}</text>'
        for node in nodes
    ]
    sentence = _xml(" ".join(map(unescape_brackets, tree.words())))
    total_width, total_height = round(width + 2 * _MARGIN), round(_y(height) + _MARGIN)
    size = f'viewBox="0 0 {total_width} {total_height}" width="{total_width}" height="{total_height}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} class="tree" role="img">',
        f"<title>{sentence}</title>",
        f"<style>{_STYLE}</style>",
    ]
    return "\n  ".join((*head, *paths, *texts)) + "\n</svg>\n"


def _nodes(tree: Tree) -> tuple[list[_Node], int, float]:
    """All nodes of the drawing in depth-first order, its lowest row and its width.

    Words are side by side. A constituent is centered above its children, one row higher than the highest of them; if
    its label is wider than they are, words make room.
    """
    nodes: list[_Node] = []
    open_nodes: list[_Node] = []
    begin = _MARGIN  # the left edge of the next word
    starts: list[float] = []  # the left edge of each open constituent
    for node in tree.walk():
        if isinstance(node, Tree):
            label = _Node("label", _label(node), [])
            starts.append(begin)
            if open_nodes:
                open_nodes[-1].below.append(label)
            open_nodes.append(label)
            nodes.append(label)
        elif isinstance(node, Leaf):
            word = _Node("word", _word(node), [])
            tag = _Node("tag", _printable(node.tag), [word], row=1)
            size = _CELL * max(1, cell_len(word.text), cell_len(tag.text))
            word.x = tag.x = begin + size / 2
            begin += size + _BETWEEN
            open_nodes[-1].below.append(tag)
            nodes += tag, word
        else:
            label, start = open_nodes.pop(), starts.pop()
            begin = max(begin, start + _CELL * cell_len(label.text) + _BETWEEN)
            label.x = (start + begin - _BETWEEN) / 2
            label.row = 1 + max(below.row for below in label.below)
    height = nodes[0].row
    for one in nodes:
        one.row = height - one.row
    return nodes, height, begin - _BETWEEN - _MARGIN


def _path(node: _Node, below: _Node) -> str:
    """A line down a little, across, and straight down, which crosses no text."""
    top, bottom = _y(node.row) + 10, _y(below.row) - 10
    return f'<path d="M{node.x:.1f} {top:.1f}v8H{below.x:.1f}V{bottom:.1f}"/>'


def _y(row: int) -> float:
    return _MARGIN + _FONT / 2 + row * _ROW


def _label(tree: Tree) -> str:
    return _printable(tree.label) or "·"


def _word(leaf: Leaf) -> str:
    return _printable(unescape_brackets(leaf.word))


def _printable(text: str) -> str:
    """The text without control characters that a terminal would obey or that XML does not allow."""
    return _UNPRINTABLE.sub("\ufffd", text)


def _xml(text: str) -> str:
    return escape(_printable(text), {'"': "&quot;"})


_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
