"""Translating HTML and XML: the text of it sentence by sentence, with its tags.

The tags within a sentence are taken out, so that the model reads the sentence as it is, and put around the right words
of the translation (`tag_projection`). A sentence whose tags are not properly nested, or a model whose decoder does not
attend to the source, is translated in pieces between the tags instead. What the model writes is always escaped.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from regard.data.text.markup import Marker, MarkupRules, TextBlock, escape, split_markup
from regard.data.text.sentence_splitting import space_between
from regard.decode import DecodeConfig
from regard.task.translation.pipeline import Translator, split_text
from regard.task.translation.result import Translation
from regard.task.translation.tag_projection import TaggedSentence, can_project, project_tags

HTML = MarkupRules()
MAX_MARKERS = 100
"""A sentence with more tags is translated in pieces."""


def translate_markup(
    translator: Translator,
    texts: Sequence[str],
    decode: DecodeConfig | None = None,
    *,
    rules: MarkupRules = HTML,
    split: bool = True,
) -> list[tuple[str, ...]]:
    """The translations of each text, best first. Without `split`, its blocks are translated as one sentence each."""
    projects = can_project(translator)
    documents = [_plan(text, rules, split, projects) for text in texts]
    sentences = [part for parts in documents for part in parts if isinstance(part, _Sentence)]
    found = translator.translate_batch([one.tagged.text for one in sentences], decode, split=False)
    translations = [each.sentences[0][1] if each.sentences else () for each in found]
    rendered = iter(_render(translator, sentences, translations))
    return [
        _joined([next(rendered) if isinstance(part, _Sentence) else (part,) for part in parts]) for parts in documents
    ]


@dataclass(frozen=True)
class _Sentence:
    """A sentence to translate; `after` is the one that it follows without a space."""

    tagged: TaggedSentence
    after: str = ""


_Part = str | _Sentence
_WORD_CHARACTER = re.compile(r"[^\W_]")


def _plan(text: str, rules: MarkupRules, split: bool, projects: bool) -> list[_Part]:
    """Markup as it stays, and sentences."""
    parts: list[_Part] = []
    for part in split_markup(text, rules):
        parts += [part] if isinstance(part, str) else _Planner(part, projects).plan(split)
    return parts


class _Planner:
    """Divides a text with markers into sentences and what is between them. Markers are taken in their order."""

    def __init__(self, block: TextBlock, projects: bool) -> None:
        self.text, self.markers, self.projects = block.text, block.markers, projects
        self.partners = _partners(block.markers)
        self.next = 0
        self.parts: list[_Part] = []

    def plan(self, split: bool) -> list[_Part]:
        at, previous = 0, ""
        for segment in split_text(self.text, split).segments:
            begin = at + len(segment.layout)
            self._between(at, begin)
            at = begin + len(segment.text)
            self._sentence(begin, at, "" if segment.layout else previous)
            previous = segment.text
        self._between(at, len(self.text))
        self.parts += [marker.markup for marker in self.markers[self.next :]]
        return self.parts

    def _between(self, begin: int, end: int) -> None:
        """Text that is kept, with the markers in it."""
        self._pieces(begin, end, len(self.markers), translate=False)

    def _sentence(self, begin: int, end: int, after: str) -> None:
        while self.next < len(self.markers) and self._is_before(self.next, begin, end):
            self._take()
        last = self.next
        while last < len(self.markers) and self.markers[last].offset < end:
            last += 1
        for at in range(self.next, last):  # the end tags of elements that end with the sentence
            last = max(last, self.partners.get(at, 0) + 1 if self._is_within(at, begin, end) else 0)
        inner = range(self.next, last)
        if not self._can_project(inner, begin, end):
            self._pieces(begin, end, last, translate=True)
            return
        markers = (self.markers[at] for at in inner)
        moved = tuple(Marker(m.kind, m.offset - begin, m.markup, m.name, max(0, m.end - begin)) for m in markers)
        self.parts.append(_Sentence(TaggedSentence(self.text[begin:end], moved), after))
        self.next = last

    def _can_project(self, inner: range, begin: int, end: int) -> bool:
        """Whether a sentence with these markers can be translated in one piece."""
        if self._kept_until() > begin or (inner and not self.projects) or len(inner) > MAX_MARKERS:
            return False
        for at in inner:
            marker = self.markers[at]
            if marker.kind == "fixed" and (marker.end > end or marker.end - marker.offset == end - begin):
                return False
            if marker.kind in ("open", "close") and self.partners.get(at) not in inner:
                return False
        return True

    def _is_before(self, at: int, begin: int, end: int) -> bool:
        """Whether a marker at the start of a sentence has no part in it."""
        marker = self.markers[at]
        if marker.offset > begin or marker.kind == "fixed":
            return False
        return not self._is_within(at, begin, end)

    def _is_within(self, at: int, begin: int, end: int) -> bool:
        """Whether an element begins here that has some words of the sentence, but not all."""
        if self.markers[at].kind != "open" or at not in self.partners:
            return False
        first, last = self.markers[at].offset, self.markers[self.partners[at]].offset
        return begin <= first < last <= end and (first, last) != (begin, end)

    def _pieces(self, begin: int, end: int, last: int, *, translate: bool) -> None:
        """A span cut at its markers."""
        at = max(begin, self._kept_until())
        while self.next < last and self.markers[self.next].offset < end:
            self._piece(at, self.markers[self.next].offset, translate)
            at = self._take()
        self._piece(at, end, translate)

    def _piece(self, begin: int, end: int, translate: bool) -> None:
        text = self.text[begin:end] if begin < end else ""
        if not translate or not _WORD_CHARACTER.search(text):
            self.parts.append(escape(text))
            return
        content = text.strip()
        first = text.index(content)
        self.parts += [text[:first], _Sentence(TaggedSentence(content, ())), text[first + len(content) :]]

    def _take(self) -> int:
        """Keep the next marker as it is; the offset after it."""
        marker = self.markers[self.next]
        self.parts.append(marker.markup)
        self.next += 1
        return max(marker.offset, marker.end)

    def _kept_until(self) -> int:
        return self.markers[self.next - 1].end if self.next else 0


def _partners(markers: Sequence[Marker]) -> dict[int, int]:
    """Start tags and end tags of the same element, by index; without those that are not properly nested."""
    partners: dict[int, int] = {}
    path: list[int] = []
    for at, marker in enumerate(markers):
        if marker.kind == "open":
            path.append(at)
        elif marker.kind == "close" and path and markers[path[-1]].name == marker.name:
            partners[path[-1]] = at
            partners[at] = path.pop()
    return partners


def _render(
    translator: Translator, sentences: Sequence[_Sentence], found: Sequence[Sequence[Translation]]
) -> list[tuple[str, ...]]:
    """The translations of sentences as markup."""
    texts = [
        [one.text for one in each] or [sentence.tagged.text] for sentence, each in zip(sentences, found, strict=True)
    ]
    tagged = [(at, rank) for at, one in enumerate(sentences) if one.tagged.markers for rank in range(len(texts[at]))]
    projected = project_tags(translator, [(sentences[at].tagged, texts[at][rank]) for at, rank in tagged])
    results = [list(map(escape, each)) for each in texts]
    for (at, rank), markup in zip(tagged, projected, strict=True):
        results[at][rank] = markup
    for at, sentence in enumerate(sentences):
        if sentence.after:
            results[at] = [
                space_between(sentence.after, texts[at - 1][min(rank, len(texts[at - 1]) - 1)]) + each
                for rank, each in enumerate(results[at])
            ]
    return [tuple(each) for each in results]


def _joined(parts: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """As many texts as the longest list has; one that is shorter goes on with its last."""
    return tuple(
        "".join(each[min(rank, len(each) - 1)] for each in parts) for rank in range(max(map(len, parts), default=1))
    )
