"""Holding out a part of the training data for validation, for recipes that name no validation set.

A twentieth of the data is held out, at most `data.dev_size` items; of fewer than 20 items none is. Which items these
are depends on the data alone, so it is the same on every machine and after every resume. What equals a held-out item,
apart from letter case and spaces, is not trained on either, and no label is held out altogether. The held-out part is
written to a file in the run folder, which `regard score` reads later.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field

from regard.data.text.documents import TextConfig, count_text, document_digest, read_texts
from regard.data.text.records import is_records
from regard.files import write_text
from regard.train.task import LogFn

HELD_OUT = "held-out.jsonl"
"""The file in a run folder with the texts, pairs or sentences that were held out of the training data."""
HELD_OUT_TREES = "held-out.mrg"
HELD_OUT_IMAGES = "held-out.npz"

DevSize = Annotated[int, Field(ge=0, le=1_000_000_000)]

_PARTS = 20
"""One of so many parts is held out."""
_MIN_CHARACTERS, _MAX_CHARACTERS = 1000, 1_000_000
"""A text of fewer characters is trained on as a whole; of a longer one at most so many are held out."""

Item = TypeVar("Item")


def held_out_size(total: int, dev_size: int) -> int:
    """How many of `total` items are held out."""
    return min(dev_size, total // _PARTS)


def log_held_out(log: LogFn, held_out: int, total: int, dev_size: int, noun: str) -> None:
    """Tell the user how many of `total` items are held out."""
    nouns = noun if total == 1 else f"{noun}s"
    if held_out:
        verb = "is" if held_out == 1 else "are"
        log(f"{held_out:,} of {total:,} {nouns} {verb} held out for validation (data.dev_size).")
    elif dev_size:
        log(f"With only {total:,} {nouns}, none is held out: there will be no validation scores.")


def log_overlap(log: LogFn, dropped: int, total: int, noun: str) -> None:
    """Tell the user why nothing is held out."""
    nouns = noun if total == 1 else f"{noun}s"
    log(f"No {noun} is held out: {dropped:,} of {total:,} {nouns} are the same as those that would be.")


def write_held_out(path: Path, records: Iterable[dict[str, object]]) -> None:
    """Write held-out records as JSON lines."""
    write_text(path, "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records))


def choose_held_out(digests: Sequence[str], labels: Sequence[Sequence[str]], size: int) -> list[int]:
    """The numbers of `size` items to hold out, spread evenly over the labels, in order.

    digests: of each item, equal for items that are the same; labels: of each item. An item is left where it is if no
    other has one of its labels. Fewer are chosen if there are no others.
    """
    distinct = {digest: number for number, digest in reversed(list(enumerate(digests)))}
    counts = Counter(label for number in distinct.values() for label in set(labels[number]))
    single = {number: labels[number][0] if len(labels[number]) == 1 else "" for number in distinct.values()}
    order = sorted(distinct.values(), key=lambda number: (single[number], digests[number]))
    chosen = []
    for slot in range(size):
        for number in order[slot * len(order) // size : (slot + 1) * len(order) // size]:
            own = set(labels[number])
            if all(counts[label] > 1 for label in own):
                counts.subtract(own)
                chosen.append(number)
                break
    return sorted(chosen)


def split_held_out(
    items: Sequence[Item],
    dev_size: int,
    noun: str,
    log: LogFn,
    *,
    text: Callable[[Item], str],
    labels: Callable[[Item], Sequence[str]],
) -> tuple[list[int], list[int]]:
    """The numbers of the items to train on, and of those that are held out.

    Items with the same `text` are the same.
    """
    digests = [document_digest(text(item)) for item in items]
    return split_digests(digests, [labels(item) for item in items], dev_size, noun, log)


def split_digests(
    digests: Sequence[str], labels: Sequence[Sequence[str]], dev_size: int, noun: str, log: LogFn
) -> tuple[list[int], list[int]]:
    """`split_held_out` for items whose digests and labels are known."""
    total = len(digests)
    chosen = choose_held_out(digests, labels, held_out_size(total, dev_size))
    skip = {digests[number] for number in chosen}
    left = [number for number, digest in enumerate(digests) if digest not in skip]
    if 2 * len(left) < total:
        log_overlap(log, total - len(left), total, noun)
        return list(range(total)), []
    log_held_out(log, len(chosen), total, dev_size, noun)
    return left, chosen


@dataclass(frozen=True)
class Texts:
    """Texts that are read as one, without some documents, such as those that are held out."""

    sources: tuple[TextConfig, ...]
    skip: frozenset[str] = frozenset()
    """The digests of these documents (`document_digest`)."""

    def documents(self) -> Iterator[str]:
        """All documents, one at a time."""
        return chain.from_iterable(read_texts(source, skip=self.skip) for source in self.sources)


def hold_out_texts(sources: tuple[TextConfig, ...], path: Path, dev_size: int, log: LogFn) -> Texts:
    """Hold out some documents or, where a document is a whole file, the end of the text, and write them to `path`;
    returns what is left."""
    if not dev_size:
        return Texts(sources)
    paths = {(source.dataset, source.path) for source in sources}
    apart = len(paths) == len(sources) and all(_has_many_documents(source) for source in sources)
    return _hold_out_documents(sources, path, dev_size, log) if apart else _hold_out_end(sources, path, log)


def _has_many_documents(source: TextConfig) -> bool:
    """Whether a text has documents that can be held out one by one, and not only a few files."""
    files = source.files()
    return source.unit != "file" or is_records(files[0]) or len(files) >= _PARTS


def _hold_out_documents(sources: tuple[TextConfig, ...], path: Path, dev_size: int, log: LogFn) -> Texts:
    texts = Texts(sources)
    total = sum(1 for _ in texts.documents())
    numbers = set(random.Random(0).sample(range(total), held_out_size(total, dev_size)))
    chosen: list[str] = []
    characters = 0
    for number, text in enumerate(texts.documents()):
        if number in numbers and characters + len(text) <= _MAX_CHARACTERS:
            chosen.append(text)
            characters += len(text)
    skip = frozenset(map(document_digest, chosen))
    left = sum(1 for _ in Texts(sources, skip).documents()) if chosen else total
    if 2 * left < total:
        log_overlap(log, total - left, total, "document")
        return texts
    log_held_out(log, len(chosen), total, dev_size, "document")
    if chosen:
        write_held_out(path, ({"text": text} for text in chosen))
    return Texts(sources, skip)


def _hold_out_end(sources: tuple[TextConfig, ...], path: Path, log: LogFn) -> Texts:
    """Hold out the end of each text. One that is read in several ways ends at the same character in all of them."""
    held_out: list[str] = []
    shortened, read, total = [], set(), 0
    for source in sources:
        characters = count_text(source).characters
        if characters < _MIN_CHARACTERS:
            log(f"With only {characters:,} characters, none is held out: there will be no validation scores.")
            return Texts(sources)
        fraction = max(1 - 1 / _PARTS, 1 - _MAX_CHARACTERS / characters)
        end = source.begin + fraction * (source.end - source.begin)
        shortened.append(source.model_copy(update={"end": end}))
        if (source.dataset, source.path) not in read:
            read.add((source.dataset, source.path))
            total += characters
            held_out += [text for text in read_texts(source.model_copy(update={"begin": end})) if text.strip()]
    size = sum(map(len, held_out))
    log(f"The last {size:,} of {total:,} characters are held out for validation (data.dev_size).")
    write_held_out(path, ({"text": text} for text in held_out))
    return Texts(tuple(shortened))
