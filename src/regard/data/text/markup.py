"""HTML and XML as texts to translate with markup between them.

`split_markup` finds the tags with one pass of its own scanner, which takes any input in linear time: what is not a tag
is text. So no input is an error, and what is not translated comes out as it came in, to the letter, which a parser that
builds a tree (and repairs it) would not give. A block element, such as a paragraph or a table cell, separates texts;
inline elements, such as links and emphasis, are markers at offsets of the text around them. What must not be translated
(scripts, preformatted text, `translate="no"`) is kept whole.
"""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["open", "close", "empty", "fixed"]


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


INLINE = _names(
    """a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark meter output q s samp small
    span strike strong sub sup time tt u var wbr"""
)
"""Elements of HTML within a sentence; all others separate texts."""
VOID = _names("area base br col embed hr img input link meta param source track wbr")
"""Elements of HTML without an end tag."""
KEPT = _names("script style pre code kbd samp var textarea template svg math noscript")
"""Elements of HTML whose contents are not translated."""


@dataclass(frozen=True)
class MarkupRules:
    """Which tags separate texts, and which contents are kept. Tags are in small letters."""

    xml: bool = False
    """In XML all elements are inline, unless they are named in `splitting`."""
    splitting: frozenset[str] = frozenset()
    non_splitting: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()

    def is_inline(self, name: str) -> bool:
        if name in self.splitting:
            return False
        return self.xml or name in INLINE or name in self.non_splitting

    def is_void(self, name: str) -> bool:
        return not self.xml and name in VOID

    def is_kept(self, name: str, tag: str) -> bool:
        return name in self.ignored or (not self.xml and (name in KEPT or _is_notranslate(tag)))


@dataclass(frozen=True)
class Marker:
    """Inline markup at an offset of a text. A `fixed` one stands for the characters up to `end`, which are only there
    to be read with the rest."""

    kind: Kind
    offset: int
    markup: str
    name: str = ""
    end: int = 0


@dataclass
class TextBlock:
    """A text without its tags and with its entities replaced by what they mean."""

    text: str = ""
    markers: list[Marker] = field(default_factory=list)


def split_markup(markup: str, rules: MarkupRules) -> list[str | TextBlock]:
    """Markup to keep, and texts to translate."""
    parts: list[str | TextBlock] = []
    inline: list[_Token] = []
    for token in _tokens(markup, rules):
        if token.kind == "block":
            parts += _block(inline)
            parts.append(token.markup)
            inline = []
        else:
            inline.append(token)
    return parts + _block(inline)


def escape(text: str) -> str:
    """A text as the content of an element: it is never markup."""
    return html.escape(text, quote=False)


@dataclass(frozen=True)
class _Token:
    kind: Literal["text", "block", "open", "close", "empty", "fixed"]
    markup: str
    name: str = ""


# Alternatives begin with different characters and are possessive, and an unquoted < ends the attempt, so that nothing
# is scanned twice.
_TAG = re.compile(r"""<(/?)([A-Za-z][^\s/><"'=]*+)(?:[^'"<>]|"[^"]*+"|'[^']*+')*+>""")
_OTHER = re.compile(r"<(?:!--|!\[CDATA\[|[!?])")
_ENDS = {"<!--": "-->", "<![CDATA[": "]]>", "<!": ">", "<?": ">"}
_NO = re.compile(r"""\stranslate\s*=\s*["']?no(?![\w-])|\sclass\s*=\s*["']?[^"'>]*\bnotranslate\b""", re.IGNORECASE)
_BREAKS = re.compile(r"[ \t\f]*[\r\n]\s*")
_MAX_ATTRIBUTES = 2000  # characters that are looked at
_MAX_KEPT = 60  # characters
_WORD_CHARACTER = re.compile(r"[^\W_]")


def _is_notranslate(tag: str) -> bool:
    return _NO.search(tag, 0, _MAX_ATTRIBUTES) is not None


def _tokens(markup: str, rules: MarkupRules) -> Iterator[_Token]:
    done = at = 0
    while (at := markup.find("<", at)) >= 0:
        tag, other = _TAG.match(markup, at), _OTHER.match(markup, at)
        if tag is None and other is None:
            at += 1
            continue
        if done < at:
            yield _Token("text", markup[done:at])
        if tag is None:
            assert other is not None
            closing = _ENDS[other[0]]
            found = markup.find(closing, other.end())
            done = at = len(markup) if found < 0 else found + len(closing)
            yield _Token("block" if other[0] == "<!" else "empty", markup[other.start() : done])
            continue
        name = tag[2].lower()
        inline, is_end = rules.is_inline(name), bool(tag[1])
        done = tag.end()
        empty = rules.is_void(name) or tag[0].endswith("/>")
        if not is_end and not empty and rules.is_kept(name, tag[0]):
            done = _end_of_element(markup, tag)
            yield _Token("fixed" if inline else "block", markup[at:done], name)
        elif not inline:
            yield _Token("block", tag[0], name)
        else:
            yield _Token("close" if is_end else "empty" if empty else "open", tag[0], name)
        at = done
    if done < len(markup):
        yield _Token("text", markup[done:])


def _end_of_element(markup: str, tag: re.Match[str]) -> int:
    """The offset after the end tag of an element; that of the end if it is never closed."""
    depth = 1
    for found in re.finditer(rf"<(/?){re.escape(tag[2])}(?=[\s/>])[^>]*+(?:>|$)", markup[tag.end() :], re.IGNORECASE):
        if not found[0].endswith("/>"):
            depth += -1 if found[1] else 1
        if depth == 0:
            return tag.end() + found.end()
    return len(markup)


def _block(tokens: Sequence[_Token]) -> list[str | TextBlock]:
    """A run of text and inline tags: kept if there is no word in it, else a text with markers."""
    raw = "".join(token.markup for token in tokens)
    if not any(token.kind == "text" and _WORD_CHARACTER.search(html.unescape(token.markup)) for token in tokens):
        return [raw] if raw else []
    block = TextBlock()
    for token in tokens:
        start = len(block.text)
        if token.kind == "text":
            block.text += _joined(block.text, html.unescape(token.markup))
        elif token.kind == "fixed":
            block.text += _readable(token.markup)
            block.markers.append(Marker("fixed", start, token.markup, token.name, len(block.text)))
        else:
            block.markers.append(Marker(token.kind, start, token.markup, token.name))  # type: ignore[arg-type]
    return [block]


def _joined(before: str, text: str) -> str:
    """A piece of text in one line, as a browser shows it: only the first may begin with line breaks, and there are no
    two spaces in a row."""
    content = text.lstrip()
    if not before.strip():
        return text[: len(text) - len(content)] + _BREAKS.sub(" ", content)
    text = _BREAKS.sub(" ", text)
    return text.lstrip(" ") if before.endswith(" ") else text


def _readable(content: str) -> str:
    """What stands for kept contents while a sentence is read: one word, where no sentence can end."""
    return re.sub(r"[\W_]+", "_", html.unescape(re.sub(r"<[^>]*>", "", content)))[:_MAX_KEPT].strip("_") or "X"
