"""Where inline tags of a sentence belong in its translation.

The decoder's attention tells which source word each word of the translation comes from. An element goes around the
words that come from its own; where they are not adjacent, around the longest run of them. Elements that share a parent
get runs that do not overlap, and a child's run lies within its parent's, so the result is always well-formed and each
tag occurs exactly once, whatever the attention says.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from regard.data.text.markup import Marker, escape
from regard.decode.cross_attention import cross_attention, has_cross_attention, plain_models
from regard.task.translation.pipeline import Translator

MAX_GAP = 1
"""Words that come from outside of an element, and from no other, which a run may contain in a row."""
_SENTENCES = 64
"""Sentences in a pass."""
_WIDE = "\u3040-\u30ff\u3400-\u9fff"
WORD = re.compile(rf"[{_WIDE}]|[^\W{_WIDE}]+(?:['’][^\W{_WIDE}]+)*|[^\w\s]")
"""Words and punctuation marks; of Chinese and Japanese, each character."""


@dataclass(frozen=True)
class TaggedSentence:
    """A sentence and the markers within it, each with its offset. Elements are properly nested."""

    text: str
    markers: tuple[Marker, ...]


def can_project(translator: Translator) -> bool:
    """Whether the translator's decoder attends to the source."""
    return all(map(has_cross_attention, plain_models(translator.decoder_model)))


def project_tags(translator: Translator, pairs: Sequence[tuple[TaggedSentence, str]]) -> list[str]:
    """The translation of each sentence with its tags, as markup."""
    results: list[str] = []
    for first in range(0, len(pairs), _SENTENCES):
        chunk = pairs[first : first + _SENTENCES]
        origins = word_origins(translator, [(sentence.text, translation) for sentence, translation in chunk])
        for (sentence, translation), origin in zip(chunk, origins, strict=True):
            results.append(place_tags(sentence, translation, origin))
    return results


def place_tags(sentence: TaggedSentence, translation: str, origins: Sequence[int]) -> str:
    """A translation with tags. `origins` are the offsets in the sentence that its words come from."""
    spans = [match.span() for match in WORD.finditer(translation)]
    return _Placement(sentence.text, translation, spans, origins).render(_tree(sentence), 0, len(spans))


@dataclass
class _Element:
    """An element, or markup that stands alone, over the characters from `start` to `end`."""

    opening: str
    start: int
    end: int
    closing: str = ""
    replaces: bool = False
    """Whether the markup takes the place of the words."""
    children: "list[_Element]" = field(default_factory=list)


def _tree(sentence: TaggedSentence) -> list[_Element]:
    root = _Element("", 0, len(sentence.text))
    path = [root]
    for marker in sentence.markers:
        if marker.kind == "close":
            path[-1].closing, path[-1].end = marker.markup, marker.offset
            path.pop()
            continue
        end = marker.end if marker.kind == "fixed" else marker.offset
        element = _Element(marker.markup, marker.offset, end, replaces=marker.kind == "fixed")
        path[-1].children.append(element)
        if marker.kind == "open":
            path.append(element)
    return root.children


@dataclass(frozen=True)
class _Placement:
    source: str
    text: str
    spans: list[tuple[int, int]]
    """The words of the translation."""
    origins: Sequence[int]

    def render(self, elements: list[_Element], first: int, last: int) -> str:
        """The words from `first` to `last`, with these elements within."""
        begin = self.spans[first][0] if first < last else 0
        end = self.spans[last - 1][1] if first < last else 0
        if (first, last) == (0, len(self.spans)):
            begin, end = 0, len(self.text)
        parts, done = [], begin
        for element, (low, high) in self._in_order(elements, first, last):
            offset = self.spans[low][0] if low < last else end
            parts.append(escape(self.text[done:offset]))
            done = offset
            if low == high:
                parts.append(self._alone(element, "".join(parts)[-1:], self.text[offset : offset + 1]))
                continue
            done = self.spans[high - 1][1]
            inner = "" if element.replaces else self.render(element.children, low, high)
            parts.append(f"{element.opening}{inner}{element.closing}")
        return "".join(parts) + escape(self.text[done:end])

    def _alone(self, element: _Element, before: str, after: str) -> str:
        """An element without words, apart from the characters around it if it was so in the source."""
        inner = "".join(self._alone(child, "", "") for child in element.children)
        markup = f"{element.opening}{inner}{element.closing}"
        if not self.source[element.start - 1 : element.start].isspace():
            return markup
        return f"{' ' if before.strip() else ''}{markup}{' ' if after.isalnum() else ''}"

    def _in_order(self, elements: list[_Element], first: int, last: int) -> list[tuple[_Element, tuple[int, int]]]:
        """The elements with their runs of words, from left to right; those without words have an empty run."""
        owner = [
            next((at for at, one in enumerate(elements) if one.start <= self.origins[word] < one.end), None)
            for word in range(first, last)
        ]
        limits = (0 if each.replaces else MAX_GAP for each in elements)
        runs = [_run(owner, at, limit) for at, limit in enumerate(limits)]
        placed = []
        for at, (element, (low, high)) in enumerate(zip(elements, runs, strict=True)):
            if low == high:
                low = high = _outside(self._position(element, owner, first), [run for run in runs if run[0] < run[1]])
            placed.append(((first + low, first + high), at, element))
        placed.sort(key=lambda one: (one[0][0], one[0][1] > one[0][0], one[1]))
        return [(element, run) for run, _, element in placed]

    def _position(self, element: _Element, owner: list[int | None], first: int) -> int:
        """The first word that comes from behind an element, such that most before it come from before."""
        origins = self.origins[first : first + len(owner)]
        costs = (0 if origin < 0 else 1 if origin >= element.start else -1 for origin in origins)
        wrong = list(accumulate(costs, initial=0))  # words on the wrong side, but for a constant
        return wrong.index(min(wrong))


def _run(owner: list[int | None], at: int, max_gap: int) -> tuple[int, int]:
    """The stretch with the most words of an element, without those of another and without long gaps."""
    best, count, low, high = (0, 0), 0, 0, 0
    most = 0
    for word, who in enumerate(owner):
        if who == at:
            if not count or word - high > max_gap:
                low, count = word, 0
            count, high = count + 1, word + 1
            if count > most:
                best, most = (low, high), count
        elif who is not None:
            count = 0
    return best


def _outside(position: int, runs: list[tuple[int, int]]) -> int:
    """A position that is not within a run."""
    return next((high for low, high in runs if low < position < high), position)


@torch.inference_mode()
def word_origins(translator: Translator, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
    """For each word of a translation, the offset of the source character that it comes from."""
    source, target = translator.source_tokenizer, translator.target_tokenizer
    ids, spans = zip(*(source.encode_with_offsets(text) for text, _ in pairs), strict=True)
    outputs, output_spans = zip(*(target.encode_with_offsets(text) for _, text in pairs), strict=True)
    outputs = tuple(each or [target.eos] for each in outputs)
    layers = [
        torch.stack(cross_attention(plain, ids, outputs)).mean(dim=0)
        for plain in plain_models(translator.decoder_model)
    ]
    weights = torch.stack(layers).mean(dim=0)
    return [
        _row_origins(weights[row, : len(outputs[row]), : len(spans[row])], spans[row], output_spans[row], text)
        for row, (_, text) in enumerate(pairs)
    ]


def _row_origins(
    weights: Tensor, spans: Sequence[tuple[int, int]], output_spans: Sequence[tuple[int, int]], text: str
) -> list[int]:
    """weights: # (target tokens, source tokens)"""
    found = []
    for word in WORD.finditer(text):
        rows = [row for row, (low, high) in enumerate(output_spans) if low < word.end() and word.start() < high]
        if not rows or not spans or not word[0][0].isalnum():  # punctuation may come from anywhere
            found.append(-1)
            continue
        best = int(weights[rows].sum(dim=0).argmax())
        found.append(spans[best][1] - 1)  # a token may begin with the space before its word
    return found
