"""Pictures of trees: all that is in the tree is in them, in order, and nothing else can get in."""

import itertools
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from regard.data.tree_picture import draw_tree, list_tree, tree_svg
from regard.data.trees import Leaf, Tree, word_for_people

CAT = Tree.of("(S (NP (DT the) (NN cat)) (VP (VBD slept)))")
BRACKETS = Tree.of("(TOP (NP (-LRB- -LRB-) (NN a&b) (NN <i>) (-RRB- -RRB-)))")
SVG = "{http://www.w3.org/2000/svg}"


def made_of(words: st.SearchStrategy[str]) -> st.SearchStrategy[Tree]:
    leaves = st.builds(Leaf, st.sampled_from(["NN", "DT", ",", "VERYLONGTAG"]), words)

    def over(inner: st.SearchStrategy[Tree | Leaf]) -> st.SearchStrategy[Tree]:
        labels = st.sampled_from(["S", "NP", "VP", "WHADJP-LONG"])
        return st.builds(Tree, labels, st.lists(inner, min_size=1, max_size=4).map(tuple))

    return over(st.recursive(leaves, over, max_leaves=10))


plain = st.text(st.sampled_from("abcçÄ012"), min_size=1, max_size=6)
wide = st.text(st.sampled_from("猫食事가나"), min_size=1, max_size=4)
anything = st.text(st.characters(blacklist_characters=" \t\n\r\f\v()"), min_size=1, max_size=6)


def in_order(tree: Tree) -> list[str]:
    """Labels, tags and words as one meets them."""
    found = []
    for node in tree.walk():
        if isinstance(node, Tree):
            found.append(node.label)
        elif isinstance(node, Leaf):
            found += node.tag, word_for_people(node.word)
    return found


def cells(text: str) -> list[list[str]]:
    """What stands in each column of each line; a wide sign stands in two."""
    return [[sign for sign in line for _ in range(cell_len(sign))] for line in text.split("\n")]


def test_a_tree_is_drawn_with_lines() -> None:
    assert draw_tree(CAT).split("\n") == [
        "       S",
        "   ┌───┴────┐",
        "   NP       VP",
        " ┌─┴──┐     │",
        " DT   NN   VBD",
        " │    │     │",
        "the  cat  slept",
    ]


def test_wide_signs_take_two_columns() -> None:
    assert draw_tree(Tree.of("(S (NP (NN 猫)) (VP (VV 食べる) (-LRB- -LRB-)))")).split("\n") == [
        "     S",
        "┌────┴────┐",
        "NP        VP",
        "│     ┌───┴───┐",
        "NN    VV    -LRB-",
        "│     │       │",
        "猫  食べる    (",
    ]


def test_a_tree_too_wide_is_listed() -> None:
    tree = Tree.of("(TOP (S (NP (DT the) (NN cat)) (VP (VBD ate) (NP (NN fish))) (. .)))")
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


@given(made_of(st.one_of(plain, wide)))
def test_the_sentence_stands_at_the_bottom_below_its_tags(tree: Tree) -> None:
    lines = draw_tree(tree).split("\n")
    assert tuple(lines[-1].split()) == tree.words()
    assert tuple(lines[-3].split()) == tree.tags()
    found = Counter(text for line in lines for text in re.findall(r"[^ │┌┐┬┴┼─]+", line))
    assert found == Counter(in_order(tree))


@given(made_of(st.one_of(plain, wide)))
def test_every_line_begins_and_ends_at_something(tree: Tree) -> None:
    rows = cells(draw_tree(tree))
    for number, row in enumerate(rows):
        for column, sign in enumerate(row):
            for signs, other in (("│┌┐┬┼", number + 1), ("│┴┼", number - 1)):
                if sign in signs:
                    assert column < len(rows[other])
                    assert rows[other][column] not in " ─"


@given(made_of(plain))
def test_a_list_has_everything_in_order(tree: Tree) -> None:
    assert re.findall(r"[^\s│├└─]+", list_tree(tree)) == in_order(tree)


@given(made_of(anything))
def test_a_picture_is_well_formed_and_has_everything_in_order(tree: Tree) -> None:
    root = ElementTree.fromstring(tree_svg(tree))
    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    wanted = in_order(tree)
    assert len(texts) == len(wanted)
    for found, text in zip(texts, wanted, strict=True):
        assert len(found) == len(text)
        assert all(mine in (theirs, "\ufffd") for mine, theirs in zip(found, text, strict=True))
    words = [element for element in root.iter(f"{SVG}text") if element.get("class") == "word"]
    places = [float(word.get("x", "")) for word in words]
    assert places == sorted(places)
    assert len({word.get("y") for word in words}) == 1
    assert 0 < places[0] <= places[-1] < float(root.get("width", ""))


@given(made_of(plain))
def test_texts_of_a_row_do_not_touch(tree: Tree) -> None:
    rows: dict[str, list[tuple[float, float]]] = {}
    root = ElementTree.fromstring(tree_svg(tree))
    for element in root.iter(f"{SVG}text"):
        middle, half = float(element.get("x", "")), 4.2 * len(element.text or "")
        rows.setdefault(element.get("y", ""), []).append((middle - half, middle + half))
        assert middle - half >= 0
        assert middle + half <= float(root.get("width", ""))
    for spans in rows.values():
        assert all(one[1] < other[0] for one, other in itertools.pairwise(spans))


def test_a_picture_stands_on_its_own_in_light_and_dark() -> None:
    picture = tree_svg(BRACKETS)
    root = ElementTree.fromstring(picture)
    assert {element.tag for element in root.iter()} == {
        f"{SVG}{tag}" for tag in ("svg", "title", "style", "path", "text")
    }
    assert {name for element in root.iter() for name in element.attrib} <= {
        *("viewBox", "width", "height", "class", "role", "x", "y", "d")
    }
    assert "@media (prefers-color-scheme: dark)" in picture
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg\")", picture)


def test_words_are_escaped_and_shown_as_people_write_them() -> None:
    picture = tree_svg(BRACKETS)
    assert "<i>" not in picture
    root = ElementTree.fromstring(picture)
    assert root.findtext(f"{SVG}title") == "( a&b <i> )"
    assert draw_tree(BRACKETS).split("\n")[-1].split() == ["(", "a&b", "<i>", ")"]


def test_no_word_can_command_a_terminal_or_break_the_file() -> None:
    tree = Tree("S", (Leaf("NN", "\x1b[31mred\x07"), Leaf("NN", "a\x00b\ud800\uffff"), Leaf("NN", "\u202eb")))
    for text in (draw_tree(tree), list_tree(tree), tree_svg(tree)):
        assert not re.search("[\x00-\x09\x0b-\x1f\u202e\ud800]", text)
        assert "\ufffd[31mred\ufffd" in text
    ElementTree.fromstring(tree_svg(tree).encode())


def test_a_root_without_a_label_is_a_dot() -> None:
    tree = Tree.of("( (NP (NN a)))")
    assert draw_tree(tree).split("\n")[0] == "·"
    assert list_tree(tree).split("\n")[0] == "·"
    assert ElementTree.fromstring(tree_svg(tree)).findtext(f"{SVG}text") == "·"


def test_a_deep_tree_is_drawn() -> None:
    tree = Tree("NP", (Leaf("NN", "cat"),))
    for _ in range(1200):
        tree = Tree("NP", (tree,))
    assert draw_tree(tree).count("NP") == list_tree(tree).count("NP") == tree_svg(tree).count("NP") == 1201
