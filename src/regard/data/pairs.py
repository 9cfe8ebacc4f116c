"""Sentence pairs from two aligned files, a table of columns, JSON lines, or a folder of these.

Everything streams. An empty side is kept, so that pairs stay where their lines are; dropping is a filter's work.
Two files of different length are never cut to the shorter one: somewhere before the end a line is missing or too
many, and from there on every pair is wrong. The error says where that looks to have happened.
"""

import json
import math
import re
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from regard.data.text import check_file, plain_name, plain_suffix, read_lines
from regard.errors import UserError

Columns = tuple[int, int]  # of source and target, counted from 1 as by `cut -f`
Keys = tuple[str, str]  # of source and target; "translation.en" is the key "en" inside the key "translation"
Endings = tuple[str, str]  # of source and target: ("en", "de") for train.en.gz beside train.de.gz

COLUMNS: Columns = (1, 2)
KEYS: Keys = ("source", "target")


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


class Part(NamedTuple):
    """One file of pairs, or two aligned ones."""

    path: Path
    target: Path | None = None


def read_pairs(
    path: str | Path,
    target: str | Path | None = None,
    *,
    columns: Columns = COLUMNS,
    keys: Keys = KEYS,
    endings: Endings | None = None,
) -> Iterator[Pair]:
    """The pairs of the parts that `list_parts` finds, one part after the other."""
    for part in list_parts(path, target, endings=endings):
        if part.target is not None:
            yield from read_aligned(part.path, part.target)
        elif plain_suffix(part.path) in _JSON_LINES:
            yield from read_json_lines(part.path, keys)
        else:
            yield from read_table(part.path, columns)


def list_parts(path: str | Path, target: str | Path | None = None, *, endings: Endings | None = None) -> list[Part]:
    """The files to read, in the order of reading.

    With `target`, `path` and `target` are aligned files of any name. Otherwise `path` is a file (.tsv or .txt for
    columns, .jsonl or .ndjson for JSON lines, compressed or not), or a folder. From a folder come its .tsv, .jsonl
    and .ndjson files and, where `endings` are given, its aligned files, sorted by name; other files, hidden ones and
    folders inside it are passed over.
    """
    path = Path(path)
    if target is not None:
        check_file(path)
        check_file(Path(target))
        return [Part(path, Path(target))]
    if path.is_dir():
        return _list_folder(path, endings)
    check_file(path)
    if plain_suffix(path) not in (*_TABLES, ".txt", *_JSON_LINES):
        raise UserError(
            f"{path}: the name does not say what is inside; expected .tsv or .txt (columns between tabs) or .jsonl "
            "(JSON lines), compressed or not, or two aligned files as source and target."
        )
    return [Part(path)]


def read_aligned(source: str | Path, target: str | Path) -> Iterator[Pair]:
    """Line n of one file with line n of the other. Files of different length are an error at the end."""
    sources, targets = read_lines(source), read_lines(target)
    count = 0
    while True:
        left, right = next(sources, None), next(targets, None)
        if left is None and right is None:
            return
        if left is None or right is None:
            rest = 1 + sum(1 for _ in (targets if left is None else sources))
            counts = (count, count + rest) if left is None else (count + rest, count)
            raise _different_length(Path(source), Path(target), counts)
        count += 1
        yield Pair(left, right)


def read_table(path: str | Path, columns: Columns = COLUMNS) -> Iterator[Pair]:
    """Two columns of each line. A tab ends a column; quotation marks are text like any other."""
    first, second = columns
    if min(columns) < 1:
        raise UserError(f"Columns are counted from 1; found {first} and {second}.")
    needed = max(columns)
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t", needed)
        if len(cells) < needed:
            raise UserError(
                f"{path}, line {number}: found {_count(len(cells), 'column')} between tabs; columns {first} and "
                f"{second} are wanted."
            )
        yield Pair(cells[first - 1], cells[second - 1])


def read_json_lines(path: str | Path, keys: Keys = KEYS) -> Iterator[Pair]:
    """Two keys of each line's JSON object. Lines with nothing on them are passed over."""
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
            raise UserError(f"{where}: not a JSON object ({reason}).") from None
        yield Pair(_value(record, keys[0], where), _value(record, keys[1], where))


_TABLES = (".tsv",)
_JSON_LINES = (".jsonl", ".ndjson")


def _list_folder(folder: Path, endings: Endings | None) -> list[Part]:
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}.") from None
    parts = [Part(path) for path in paths if plain_suffix(path) in (*_TABLES, *_JSON_LINES)]
    if endings is not None:
        parts += _list_aligned(paths, endings)
    if not parts:
        aligned = f", nor files that end in .{endings[0]} and .{endings[1]}" if endings else ""
        raise UserError(f"{folder} holds no .tsv or .jsonl files{aligned}; nothing to read pairs from.")
    return sorted(parts, key=lambda part: part.path)


def _list_aligned(paths: list[Path], endings: Endings) -> list[Part]:
    """The files "name.source-ending" beside "name.target-ending", each compressed or not."""
    source_ending, target_ending = (f".{ending.removeprefix('.')}" for ending in endings)
    found: dict[str, dict[str, Path]] = {source_ending: {}, target_ending: {}}
    for path in paths:
        for ending, named in found.items():
            if (name := plain_name(path)).endswith(ending):
                stem = name.removesuffix(ending)
                if stem in named:
                    raise UserError(f"{path} and {named[stem].name} stand for the same text; please remove one.")
                named[stem] = path
    sources, targets = found[source_ending], found[target_ending]
    for stem in sorted(sources.keys() ^ targets.keys()):
        there, missing = (sources, target_ending) if stem in sources else (targets, source_ending)
        raise UserError(f"{there[stem]} has no partner {stem}{missing} beside it.")
    return [Part(path, targets[stem]) for stem, path in sources.items()]


def _value(record: object, key: str, where: str) -> str:
    """The text at a key; a key with dots is looked up whole first, then step by step."""
    value = record
    for step in [key] if isinstance(record, dict) and key in record else key.split("."):
        if not isinstance(value, dict):
            raise UserError(f"{where}: expected an object with the key {key!r}, found {_kind(value)}.")
        if step not in value:
            known = ", ".join(repr(name) for name in islice(value, 8)) or "none"
            raise UserError(f"{where}: there is no key {key!r}; the keys here are: {known}.")
        value = value[step]
    if not isinstance(value, str):
        raise UserError(f"{where}: expected text at the key {key!r}, found {_kind(value)}.")
    if not value.isascii() and _SURROGATE.search(value):
        raise UserError(f"{where}: the text at the key {key!r} has half of a surrogate pair, which is no character.")
    return value


_SURROGATE = re.compile("[\ud800-\udfff]")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# Where two files of different length part.


def _different_length(source: Path, target: Path, counts: tuple[int, int]) -> UserError:
    message = (
        f"{source} has {_count(counts[0], 'line')} and {target} has {_count(counts[1], 'line')}; "
        "aligned files have the same number."
    )
    longer, shorter = (source, target) if counts[0] > counts[1] else (target, source)
    line = _first_shifted(longer, shorter, counts)
    if line is None:
        return UserError(f"{message} No line stands out as the first that is shifted.")
    if line > min(counts):
        return UserError(f"{message} It looks like {shorter} is cut short: no line before its end seems shifted.")
    return UserError(
        f"{message} Line {line:,} looks like the first that is shifted: from there on, lines of {longer} seem to "
        f"belong to earlier lines of {shorter}. This is a guess from lengths, digits and final marks, and may be some "
        "lines off."
    )


_FARTHEST = 1000
_SURE = 3.0


def _first_shifted(longer: Path, shorter: Path, counts: tuple[int, int]) -> int | None:
    """The number of the first line that looks shifted, one past the end if none does, None if it cannot be guessed.

    Each line of the shorter file is compared with its own line in the longer file and with the one `shift` lines
    later. The sum of (how badly the first fits − how badly the second fits) falls while lines agree and rises once
    they are shifted, so its lowest point is the guess. Files are read again, and at most `shift` lines are looked
    ahead.
    """
    if not (longer.is_file() and shorter.is_file()):
        return None  # a pipe can be read once only
    if not min(counts):
        return None
    lengths = [sum(len(line) + 1 for line in read_lines(path)) for path in (longer, shorter)]
    centre = math.log(lengths[0] / max(counts)) - math.log(lengths[1] / min(counts))
    # One surplus line is the usual case, also as the first of several; else they may all stand in one place.
    surplus = max(counts) - min(counts)
    shifts = {1, surplus if surplus <= _FARTHEST else 1}
    found = [_turning_point(_steps(longer, shorter, shift, centre), min(counts)) for shift in shifts]
    return min((line for line in found if line is not None), default=None)


def _steps(longer: Path, shorter: Path, shift: int, centre: float) -> Iterator[float]:
    """For each line of the shorter file, how much worse its own line fits than the one `shift` lines later."""
    ahead = map(_features, read_lines(longer))
    window = deque(islice(ahead, shift))
    for here, later in zip(map(_features, read_lines(shorter)), ahead, strict=False):
        window.append(later)
        yield _misfit(window.popleft(), here, centre) - _misfit(later, here, centre)


def _turning_point(steps: Iterator[float], count: int) -> int | None:
    """Where the sum of the steps is lowest: the number of the first line after that, None if it may be chance.

    It is looked for until the sum has risen too far for a wobble, as later gaps would blur the first; an accidental
    rise against the drift grows rarer exponentially with its height, so the height to wait for grows with the
    logarithm of the number of lines. For texts that have nothing to do with each other the sum is a random walk. Its
    fall and later rise together, over the root of its summed squares, then follow a chi distribution with 3 degrees
    of freedom at its end (Pitman 1975), which is above 3 in 3 cases of 100.
    """
    patience = 5 + math.log(count + 1)
    total = lowest = squares = 0.0
    line = 1
    settled = False
    for number, step in enumerate(steps, start=1):
        total += step
        squares += step * step
        if total <= lowest:
            lowest, line = total, number + 1
        if not settled and total - lowest > patience * math.sqrt(squares / number):
            if total - 2 * lowest >= _SURE * math.sqrt(squares):
                return line
            settled = True  # asked once; asking again and again would find chance in the end
    return line if squares and total - 2 * lowest >= _SURE * math.sqrt(squares) else None


class _Features(NamedTuple):
    length: float
    mark: str
    digits: str


_MARKS = str.maketrans("。．？！：…؟।", "..?!:.?.")
_DIGITS = re.compile("[0-9]")


def _features(line: str) -> _Features:
    """What a sentence and its translation usually share, whatever the languages."""
    text = line.strip().rstrip("\"'”»“’)").translate(_MARKS)
    last = text[-1:] if text[-1:] in ".?!:" else ""
    return _Features(math.log(len(line) + 1), last, "".join(sorted(_DIGITS.findall(line))))


def _misfit(longer: _Features, shorter: _Features, centre: float) -> float:
    length = min(abs(longer.length - shorter.length - centre), 1.5)  # one odd line must not outvote the rest
    return length + 0.5 * (longer.mark != shorter.mark) + 0.5 * (longer.digits != shorter.digits)
