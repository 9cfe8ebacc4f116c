"""Drawings of trees contain everything in the tree, in order, and nothing that could be executed."""

import itertools
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from regard.data.trees.drawing import draw_tree, list_tree, tree_svg
from regard.data.trees.tree import Leaf, Tree, unescape_brackets

CAT = Tree.parse("(S (NP (DT the) (NN cat)) (VP (VBD slept)))")
BRACKETS = Tree.parse("(TOP (NP (-LRB- -LRB-) (NN a&b) (NN <i>) (-RRB- -RRB-)))")
SVG = "{http://www.w3.org/2000/svg}"


def trees_of(words: st.SearchStrategy[str]) -> st.SearchStrategy[Tree]:
    leaves = st.builds(Leaf, st.sampled_from(["NN", "DT", ",", "VERYLONGTAG"]), words)

    def over(inner: st.SearchStrategy[Tree | Leaf]) -> st.SearchStrategy[Tree]:
        labels = st.sampled_from(["S", "NP", "VP", "WHADJP-LONG"])
        return st.builds(Tree, labels, st.lists(inner, min_size=1, max_size=4).map(tuple))

    return over(st.recursive(leaves, over, max_leaves=10))


plain = st.text(st.sampled_from("abcçÄ012"), min_size=1, max_size=6)
wide = st.text(st.sampled_from("猫食事가나"), min_size=1, max_size=4)
anything = st.text(st.characters(blacklist_characters=" \t\n\r\f\v()"), min_size=1, max_size=6)


def in_order(tree: Tree) -> list[str]:
    """Labels, tags and words, depth-first."""
    found = []
    for node in tree.walk():
        if isinstance(node, Tree):
            found.append(node.label)
        elif isinstance(node, Leaf):
            found += node.tag, unescape_brackets(node.word)
    return found


def cells(text: str) -> list[list[str]]:
    """The character in each column of each line; a wide character takes two."""
    return [[character for character in line for _ in range(cell_len(character))] for line in text.split("\n")]


def test_drawn_tree() -> None:
    assert draw_tree(CAT).split("\n") == [
        "       S",
        "   ┌───┴────┐",
        "   NP       VP",
        " ┌─┴──┐     │",
        " DT   NN   VBD",
        " │    │     │",
        "the  cat  slept",
    ]


def test_wide_characters_take_two_columns() -> None:
    assert draw_tree(Tree.parse("(S (NP (NN 猫)) (VP (VV 食べる) (-LRB- -LRB-)))")).split("\n") == [
        "     S",
        "┌────┴────┐",
        "NP        VP",
        "│     ┌───┴───┐",
        "NN    VV    -LRB-",
        "│     │       │",
        "猫  食べる    (",
    ]


def test_too_wide_tree_is_listed() -> None:
    tree = Tree.parse("(TOP (S (NP (DT the) (NN cat)) (VP (VBD ate) (NP (NN fish))) (. .)))")
    listed = [
        "TOP",
        "└─ S",
        "   ├─ NP  DT the  NN cat",
        "   ├─ VP",
        "   │  ├─ VBD ate",
        "   │  └─ NP  NN fish",
        "   └─ . .",
    ]
    assert draw_tree(tree, width=10).split("\n") == list_tree(tree).split("\n") == listed
    assert draw_tree(tree, width=80) == draw_tree(tree)


@given(trees_of(st.one_of(plain, wide)))
def test_sentence_is_the_bottom_row_below_its_tags(tree: Tree) -> None:
    lines = draw_tree(tree).split("\n")
    assert tuple(lines[-1].split()) == tree.words()
    assert tuple(lines[-3].split()) == tree.tags()
    found = Counter(text for line in lines for text in re.findall(r"[^ │┌┐┬┴┼─]+", line))
    assert found == Counter(in_order(tree))


@given(trees_of(st.one_of(plain, wide)))
def test_every_line_connects_two_nodes(tree: Tree) -> None:
    rows = cells(draw_tree(tree))
    for number, row in enumerate(rows):
        for column, character in enumerate(row):
            for characters, other in (("│┌┐┬┼", number + 1), ("│┴┼", number - 1)):
                if character in characters:
                    assert column < len(rows[other])
                    assert rows[other][column] not in " ─"


@given(trees_of(plain))
def test_list_has_everything_in_order(tree: Tree) -> None:
    assert re.findall(r"[^\s│├└─]+", list_tree(tree)) == in_order(tree)


@given(trees_of(anything))
def test_svg_is_well_formed_and_has_everything_in_order(tree: Tree) -> None:
    root = ElementTree.fromstring(tree_svg(tree))
    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    expected = in_order(tree)
    assert len(texts) == len(expected)
    for found, text in zip(texts, expected, strict=True):
        assert len(found) == len(text)
        assert all(mine in (theirs, "\ufffd") for mine, theirs in zip(found, text, strict=True))
    words = [element for element in root.iter(f"{SVG}text") if element.get("class") == "word"]
    positions = [float(word.get("x", "")) for word in words]
    assert positions == sorted(positions)
    assert len({word.get("y") for word in words}) == 1
    assert 0 < positions[0] <= positions[-1] < float(root.get("width", ""))


@given(trees_of(plain))
def test_texts_of_a_row_do_not_overlap(tree: Tree) -> None:
    rows: dict[str, list[tuple[float, float]]] = {}
    root = ElementTree.fromstring(tree_svg(tree))
    for element in root.iter(f"{SVG}text"):
        middle, half = float(element.get("x", "")), 4.2 * len(element.text or "")
        rows.setdefault(element.get("y", ""), []).append((middle - half, middle + half))
        assert middle - half >= 0
        assert middle + half <= float(root.get("width", ""))
    for spans in rows.values():
        assert all(one[1] < other[0] for one, other in itertools.pairwise(spans))


def test_svg_is_self_contained_and_has_a_dark_mode() -> None:
    svg = tree_svg(BRACKETS)
    root = ElementTree.fromstring(svg)
    assert {element.tag for element in root.iter()} == {
        f"{SVG}{tag}" for tag in ("svg", "title", "style", "path", "text")
    }
    assert {name for element in root.iter() for name in element.attrib} <= {
        *("viewBox", "width", "height", "class", "role", "x", "y", "d")
    }
    assert "@media (prefers-color-scheme: dark)" in svg
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg\")", svg)


def test_words_are_escaped_for_xml_and_unescaped_for_people() -> None:
    svg = tree_svg(BRACKETS)
    assert "<i>" not in svg
    root = ElementTree.fromstring(svg)
    assert root.findtext(f"{SVG}title") == "( a&b <i> )"
    assert draw_tree(BRACKETS).split("\n")[-1].split() == ["(", "a&b", "<i>", ")"]


def test_control_characters_are_removed() -> None:
    tree = Tree("S", (Leaf("NN", "\x1b[31mred\x07"), Leaf("NN", "a\x00b\ud800\uffff"), Leaf("NN", "\u202eb")))
    for text in (draw_tree(tree), list_tree(tree), tree_svg(tree)):
        assert not re.search("[\x00-\x09\x0b-\x1f\u202e\ud800]", text)
        assert "\ufffd[31mred\ufffd" in text
    ElementTree.fromstring(tree_svg(tree).encode())


def test_root_without_label_is_a_dot() -> None:
    tree = Tree.parse("( (NP (NN a)))")
    assert draw_tree(tree).split("\n")[0] == "·"
    assert list_tree(tree).split("\n")[0] == "·"
    assert ElementTree.fromstring(tree_svg(tree)).findtext(f"{SVG}text") == "·"


def test_deep_tree_is_drawn() -> None:
    tree = Tree("NP", (Leaf("NN", "cat"),))
    for _ in range(1200):
        tree = Tree("NP", (tree,))
    assert draw_tree(tree).count("NP") == list_tree(tree).count("NP") == tree_svg(tree).count("NP") == 1201


def test_notebook_shows_the_drawing() -> None:
    assert CAT._repr_svg_() == tree_svg(CAT)
