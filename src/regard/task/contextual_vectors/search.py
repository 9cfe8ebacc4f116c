"""Semantic search: the lines of a file whose vectors are most similar to that of a query.

Every line is compared, so the result is exact. Lines are read in blocks, and only the best so far are kept: a file may
be larger than memory, and each search reads it again.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from regard.data.text.lines import check_file, read_lines
from regard.errors import UserError
from regard.task.contextual_vectors.vectors import sentence_vectors, static_vectors_of

if TYPE_CHECKING:
    from regard.task.pipeline import Pipeline

_BLOCK_LINES = 1024
_BLOCK_CHARACTERS = 1 << 20
"""A block ends when its lines have this many characters, however few they are."""
_SHORTENED = 60
"""Characters of a query that an error quotes."""


class Hit(NamedTuple):
    """A line that was found."""

    score: float
    """The cosine between its vector and the query's."""
    line: int
    """Its number, counted from 1."""
    text: str


@dataclass
class SearchResult:
    """What a search found, and what it could not compare."""

    hits: list[list[Hit]]
    """The hits of each query, best first; of equal ones, the first line of the file first."""
    lines: int = 0
    """The lines that were compared."""
    skipped: int = 0
    """Lines without a vector: no word of them is known. Blank lines are not counted."""
    truncated: int = 0
    """Lines that are longer than the model can read: only their beginning was compared."""
    _heaps: list[list[tuple[float, int, str]]] = field(default_factory=list, repr=False)


def search_file(
    pipeline: "Pipeline",
    path: str | Path,
    queries: Sequence[str],
    *,
    top: int = 10,
    layer: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> SearchResult:
    """The `top` most similar lines of a text file, compressed or not, for each query.

    Vectors are those of `Pipeline.sentence_vectors`. `progress` is called with the number of lines that were read.
    """
    path = Path(path)
    if top < 1:
        raise UserError(f"top must be at least 1; found {top}.")
    check_file(path)
    wanted = _query_vectors(pipeline, queries, layer)
    result = SearchResult([], _heaps=[[] for _ in queries])
    read, before = 0, _truncated(pipeline)
    for block in _blocks(read_lines(path)):
        read = block[-1][0]
        texts = [(number, text) for number, text in block if text.strip()]
        if texts:
            _compare(pipeline, texts, wanted, top, layer, result)
        if progress is not None:
            progress(read)
    if not read:
        raise UserError(f"{path} is empty; give a file with a text per line.")
    if not result.lines:
        reason = "it has only blank lines" if not result.skipped else "none of its lines has a word with a vector"
        raise UserError(f"{path} has nothing to compare: {reason}.")
    result.truncated = _truncated(pipeline) - before
    result.hits = [
        [Hit(score, -number, text) for score, number, text in sorted(heap, reverse=True)] for heap in result._heaps
    ]
    return result


def _query_vectors(pipeline: "Pipeline", queries: Sequence[str], layer: int | None) -> Tensor:
    """A unit vector for each query.  # (queries, width)"""
    vectors = sentence_vectors(pipeline, queries, layer=layer)
    for query, vector in zip(queries, vectors, strict=True):
        if not query.strip():
            raise UserError("The query is empty; give some words.")
        if not vector.any():
            quoted = query if len(query) <= _SHORTENED else f"{query[: _SHORTENED - 1]}…"
            raise UserError(f"None of the words of the query {quoted!r} has a vector; use other words.")
    return vectors


def _compare(
    pipeline: "Pipeline",
    texts: Sequence[tuple[int, str]],
    wanted: Tensor,
    top: int,
    layer: int | None,
    result: SearchResult,
) -> None:
    """Add the lines of a block that are among the best so far."""
    vectors = sentence_vectors(pipeline, [text for _, text in texts], layer=layer, truncate=True)
    has_vector = vectors.any(dim=-1).tolist()
    result.lines += sum(has_vector)
    result.skipped += len(texts) - sum(has_vector)
    for scores, heap in zip((wanted.double() @ vectors.double().T).tolist(), result._heaps, strict=True):
        for score, known, (number, text) in zip(scores, has_vector, texts, strict=True):
            if not known:
                continue
            entry = (score, -number, text)  # of equal scores, the line that comes first is the larger entry
            if len(heap) < top:
                heapq.heappush(heap, entry)
            elif entry > heap[0]:
                heapq.heapreplace(heap, entry)


def _truncated(pipeline: "Pipeline") -> int:
    return 0 if static_vectors_of(pipeline) is not None else pipeline.context_model.truncated


def _blocks(lines: Iterable[str]) -> Iterator[list[tuple[int, str]]]:
    """Numbered lines, some at a time."""
    block: list[tuple[int, str]] = []
    characters = 0
    for number, line in enumerate(lines, start=1):
        block.append((number, line))
        characters += len(line)
        if len(block) >= _BLOCK_LINES or characters >= _BLOCK_CHARACTERS:
            yield block
            block, characters = [], 0
    if block:
        yield block
