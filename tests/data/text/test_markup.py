"""HTML and XML as texts and what is between them."""

import time

import pytest

from regard.data.text.markup import Marker, MarkupRules, TextBlock, split_markup

HTML, XML = MarkupRules(), MarkupRules(xml=True)


def texts(markup: str, rules: MarkupRules = HTML) -> list[str]:
    return [part.text for part in split_markup(markup, rules) if isinstance(part, TextBlock)]


def test_block_elements_separate_texts() -> None:
    page = "<!DOCTYPE html>\n<ul>\n  <li>One</li>\n  <li>Two<br>Three</li></ul>"
    assert texts(page) == ["One", "Two", "Three"]
    kept = [part for part in split_markup(page, HTML) if isinstance(part, str)]
    assert "".join(kept) == "<!DOCTYPE html>\n<ul>\n  <li></li>\n  <li><br></li></ul>"


def test_inline_elements_are_markers() -> None:
    (block,) = split_markup('See <a href="x?a&b">this <i>page</i></a>.', HTML)
    assert isinstance(block, TextBlock)
    assert block.text == "See this page."
    assert [(marker.kind, marker.offset, marker.name) for marker in block.markers] == [
        ("open", 4, "a"),
        ("open", 9, "i"),
        ("close", 13, "i"),
        ("close", 13, "a"),
    ]
    assert block.markers[0].markup == '<a href="x?a&b">'


def test_entities_are_replaced_and_line_breaks_are_spaces() -> None:
    assert texts("Tom &amp; <b>Mary\n   &lt;3</b> caf&eacute;") == ["Tom & Mary <3 café"]


@pytest.mark.parametrize(
    "kept",
    [
        "<script>if (a<b) x='<p>hi</p>'</script>",
        "<style>p > b {}</style>",
        "<pre>one <b>two</b></pre>",
        '<div translate="no"><div>one</div>two</div>',
        "<p class='a notranslate'>one</p>",
        "<!-- one <p>two</p> -->",
        "<script>never closed",
        "<!-- never closed",
    ],
)
def test_some_contents_are_kept(kept: str) -> None:
    assert split_markup(f"<p>Hello</p>{kept}", HTML) == ["<p>", TextBlock("Hello"), "</p>", kept]


def test_inline_contents_that_are_kept_stand_for_a_word() -> None:
    (block,) = split_markup("Type <code>ls -l. A</code> here", HTML)
    assert block == TextBlock("Type ls_l_A here", [Marker("fixed", 5, "<code>ls -l. A</code>", "code", 11)])


def test_xml_has_inline_elements_only_unless_named() -> None:
    assert texts("<doc>a <p>b</p> c</doc>", XML) == ["a b c"]
    rules = MarkupRules(xml=True, splitting=frozenset({"p"}), ignored=frozenset({"x"}))
    assert texts("<doc>a <p>b</p> <x>c</x> <![CDATA[d]]></doc>", rules) == ["a ", "b"]


@pytest.mark.parametrize("text", ["1 < 2", "a <", "<3", "a & b &", "<a href='x", "</", "<b <i>"])
def test_what_is_no_tag_is_text(text: str) -> None:
    def written(part: str | TextBlock) -> str:
        return part if isinstance(part, str) else part.text + "".join(marker.markup for marker in part.markers)

    assert "".join(map(written, split_markup(text, HTML))) == text


UNFINISHED = ["<a ", "<!--", "<a '", '<a "', "<script>", "<b translate=no>", "<", "<code>", "&", "<a class=", "</b"]


@pytest.mark.parametrize("bad", UNFINISHED)
def test_time_is_linear(bad: str) -> None:
    start = time.perf_counter()
    split_markup(bad * (200_000 // len(bad)), HTML)
    assert time.perf_counter() - start < 2
