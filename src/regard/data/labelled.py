"""Sentences with a label, and sentences with a tag for each word.

Labelled texts come from a table, from JSON lines or from a folder with a folder for each class; tagged sentences from
anything that gives (words, tags), such as a treebank. Both become items of a token store with two sides, the text and
what is wanted of it, and so batches by tokens in few shapes, as pairs do. In the store a wanted label or tag is its
number plus one, since 0 says that nothing is asked there; batches have numbers from 0 on, and -1.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import torch
from pydantic import Field, PositiveInt

from regard.config import Config
from regard.data.batch import Batch, Items, TokenBatches
from regard.data.pairs import read_table
from regard.data.registry import get
from regard.data.rows import ChangedBatches, RowBatch, asked
from regard.data.text import check_file, plain_suffix, read_lines
from regard.data.texts import text_files
from regard.data.tokenizer import TextTokenizer
from regard.errors import UserError

LABEL_SIDES = ("text", "label")
TAG_SIDES = ("text", "tags")

_Name = Annotated[str, Field(min_length=1)]
_CHUNK = 2000
"""Sentences tokenised at once, on all threads."""


class LabelledConfig(Config):
    """Where labelled texts are: a .tsv, .txt or .jsonl file, compressed or not, or a folder of folders of texts."""

    set: _Name | None = None
    """A named data set (`regard data list`) that the path is in; without it, it is a path of the file system."""
    path: _Name
    """The file; or a folder whose folders are named by their label and hold .txt files, each a text."""
    columns: Annotated[tuple[PositiveInt, PositiveInt], Field(strict=False)] = (1, 2)
    """The columns of text and label in a table, counted from 1."""
    header: bool = False
    """Whether the first line of a table names its columns."""
    keys: Annotated[tuple[_Name, _Name], Field(strict=False)] = ("text", "label")
    """The keys of text and label in JSON lines; a label may be text or a whole number."""

    @property
    def place(self) -> str:
        """The path, for messages."""
        return self.path if self.set is None else f"{self.set}: {self.path}"


class Labelled(NamedTuple):
    """A text and its label."""

    text: str
    label: str


class Tagged(NamedTuple):
    """The words of a sentence and a tag for each."""

    words: Sequence[str]
    tags: Sequence[str]


def read_labelled(config: LabelledConfig, known: Sequence[str] | None = None) -> Iterator[Labelled]:
    """The texts with their labels, one by one. Where `known` labels are given, any other is an error."""
    path = Path(config.path) if config.set is None else get(config.set, [config.path]) / config.path
    names = None if known is None else frozenset(known)
    found = False
    for where, text, label in _read(path, config):
        found = True
        if not text.strip():
            raise UserError(f"{where}: there is no text beside the label {label!r}; remove it.")
        if not label.strip():
            raise UserError(f"{where}: there is no label beside the text; give it one.")
        if names is not None and label not in names:
            raise UserError(f"{where}: the label {label!r} is unknown; known are {_listed(known or ())}.")
        yield Labelled(text, label)
    if not found:
        raise UserError(f"{config.place}: there are no labelled texts in it; at least one is needed.")


def check_tagged(
    sentences: Iterable[tuple[Sequence[str], Sequence[str]]], known: Sequence[str] | None = None, where: str = ""
) -> Iterator[Tagged]:
    """Sentences as they come, if each of their words has a tag (among those `known`, if given).

    `where` is what they are from, for messages: "train.clean.gz, sentence" numbers its sentences.
    """
    names = None if known is None else frozenset(known)
    for number, (words, tags) in enumerate(sentences, start=1):
        place = f"{where or 'sentence'} {number:,}"
        if len(words) != len(tags) or not words:
            raise UserError(f"{place}: found {len(words)} words and {len(tags)} tags; each word needs one.")
        for word, tag in zip(words, tags, strict=True):
            if not word.strip():
                raise UserError(f"{place}: a word beside the tag {tag!r} is empty; remove it.")
            if names is not None and tag not in names:
                raise UserError(f"{place}: the tag {tag!r} of {word!r} is unknown; known are {_listed(known or ())}.")
        yield Tagged(words, tags)


def label_set(sentences: Iterable[Labelled | Tagged]) -> tuple[str, ...]:
    """All labels or tags there are, sorted: a label's place is its number. Fewer than two are an error."""
    found = {
        label
        for sentence in sentences
        for label in ((sentence.label,) if isinstance(sentence, Labelled) else sentence.tags)
    }
    if len(found) < 2:
        raise UserError(f"There must be at least two labels to tell apart; found {_listed(sorted(found))}.")
    return tuple(sorted(found))


def label_items(
    sentences: Iterable[Labelled],
    tokenizer: TextTokenizer,
    labels: Sequence[str],
    *,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
    longest: int | None = None,
) -> Iterator[tuple[list[int], list[int]]]:
    """Items of a store with `LABEL_SIDES`, whose vocabularies are the tokenizer's and one more than there are labels.

    The ids `before` and `after` stand around each text. It is cut at its end if all of it were longer than `longest`.
    """
    number = _numbers(labels)
    room = None if longest is None else max(longest - len(before) - len(after), 0)
    for chunk in _chunks(sentences):
        for sentence, ids in zip(chunk, tokenizer.encode_batch([one.text for one in chunk]), strict=True):
            yield [*before, *ids[:room], *after], [_number(sentence.label, number)]


def tag_items(
    sentences: Iterable[Tagged],
    tokenizer: TextTokenizer,
    tags: Sequence[str],
    *,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
) -> Iterator[tuple[list[int], list[int]]]:
    """Items of a store with `TAG_SIDES`, whose vocabularies are the tokenizer's and one more than there are tags.

    A word's tag stands at its first token. At its others, and `before` and `after` the sentence, nothing is asked.
    """
    number = _numbers(tags)
    for chunk in _chunks(sentences):
        rows = encode_words([one.words for one in chunk], tokenizer)
        for sentence, (ids, firsts) in zip(chunk, rows, strict=True):
            wanted = [0] * len(ids)
            for place, tag in zip(firsts, sentence.tags, strict=True):
                wanted[place] = _number(tag, number)
            yield [*before, *ids, *after], [*[0] * len(before), *wanted, *[0] * len(after)]


def encode_words(sentences: Sequence[Sequence[str]], tokenizer: TextTokenizer) -> list[tuple[list[int], list[int]]]:
    """The ids of sentences given as words, and where in them each word begins.

    The ids are those of the words with single spaces between them, as our tokenizers make them: a space belongs to the
    word behind it.
    """
    spaced = [word if place == 0 else f" {word}" for words in sentences for place, word in enumerate(words)]
    pieces = iter(tokenizer.encode_batch(spaced))
    rows = []
    for words in sentences:
        ids: list[int] = []
        firsts = []
        for word, piece in zip(words, islice(pieces, len(words)), strict=True):
            if not piece:
                raise UserError(f"The tokenizer makes nothing of the word {word!r}; remove it, or choose another.")
            firsts.append(len(ids))
            ids += piece
        rows.append((ids, firsts))
    return rows


class LabelledBatches(ChangedBatches[TokenBatches]):
    """Labelled or tagged sentences in batches of at most `tokens` tokens; see `TokenBatches` for the settings.

    `wanted` is one number a row for labels, and one a token for tags.
    """

    def __init__(
        self,
        items: Items,
        tokens: int,
        *,
        seed: int = 0,
        padding: int = 0,
        shapes: int = 32,
        multiple: int = 1,
        limit: int | None = None,
    ) -> None:
        if items.sides not in (LABEL_SIDES, TAG_SIDES):
            raise UserError(f"Expected the sides {LABEL_SIDES} or {TAG_SIDES}, found {items.sides}.")
        change = _labels if items.sides == LABEL_SIDES else _tags
        source = TokenBatches(
            items, tokens, seed=seed, padding=(padding, 0), shapes=shapes, multiple=multiple, limit=limit
        )
        super().__init__(source, change)


def _labels(batch: Batch) -> RowBatch:
    return _asked(batch, batch.target[:, 0] - 1)


def _tags(batch: Batch) -> RowBatch:
    return _asked(batch, batch.target - 1)


def _asked(batch: Batch, wanted: torch.Tensor) -> RowBatch:
    lengths = batch.source_lengths
    return RowBatch(batch.source, wanted, lengths, None, asked(wanted, lengths), batch.epoch, batch.number)


_Found = tuple[str, str, str]  # where it was found, text, label


def _read(path: Path, config: LabelledConfig) -> Iterator[_Found]:
    if path.is_dir():
        return _read_folders(path)
    check_file(path)
    match plain_suffix(path):
        case ".jsonl" | ".ndjson":
            return _read_json_lines(path, config.keys)
        case ".tsv" | ".txt":
            return _read_table(path, config)
    raise UserError(
        f"{path}: the name does not say what is inside; expected .tsv or .txt (columns between tabs) or .jsonl (JSON "
        "lines), compressed or not, or a folder with a folder for each label."
    )


def _read_table(path: Path, config: LabelledConfig) -> Iterator[_Found]:
    for number, pair in enumerate(read_table(path, config.columns), start=1):
        if number > 1 or not config.header:
            yield f"{path}, line {number}", pair.source, pair.target


def _read_json_lines(path: Path, keys: tuple[str, str]) -> Iterator[_Found]:
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
            raise UserError(f"{where}: not a JSON object ({reason}).") from None
        text, label = (_value(record, key, where) for key in keys)
        if not isinstance(text, str):
            raise UserError(f"{where}: expected text at the key {keys[0]!r}, found {text!r}.")
        if not isinstance(label, str) and type(label) is not int:
            raise UserError(f"{where}: expected text or a whole number at the key {keys[1]!r}, found {label!r}.")
        yield where, text, str(label)


def _value(record: object, key: str, where: str) -> object:
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected an object with the key {key!r}, found {record!r}.")
    if key not in record:
        raise UserError(f"{where}: there is no key {key!r}; the keys here are {_listed(list(record))}.")
    return record[key]


def _read_folders(folder: Path) -> Iterator[_Found]:
    try:
        classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}.") from None
    if not classes:
        raise UserError(f"{folder} holds no folders; expected one for each label, with .txt files in it.")
    for place in classes:
        for path in text_files(place):
            yield str(path), "\n".join(read_lines(path)), place.name


def _numbers(labels: Sequence[str]) -> dict[str, int]:
    """What stands in a store for each label: 0 stands for none."""
    return {label: number for number, label in enumerate(labels, start=1)}


def _number(label: str, numbers: dict[str, int]) -> int:
    if label not in numbers:
        raise UserError(f"The label {label!r} is unknown; known are {_listed(list(numbers))}.")
    return numbers[label]


_Sentence = TypeVar("_Sentence", Labelled, Tagged)


def _chunks(sentences: Iterable[_Sentence]) -> Iterator[list[_Sentence]]:
    stream = iter(sentences)
    while chunk := list(islice(stream, _CHUNK)):
        yield chunk


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:8]) or "none"
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown
