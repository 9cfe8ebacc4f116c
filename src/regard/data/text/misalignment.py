"""Estimating where two aligned files of different lengths lose their alignment, for the error message.

A sentence and its translation have similar lengths, the same digits and the same final punctuation mark, whatever the
languages. Once a line is missing in one of the files, each line resembles an earlier line of the other more than the
one it is paired with.
"""

import math
import re
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from regard.data.text.lines import read_lines

_MAX_SHIFT = 1000
"""The largest number of adjacent surplus lines that is considered."""
_SIGNIFICANCE = 3.0


def explain_misalignment(source: Path, target: Path, counts: tuple[int, int]) -> str:
    """The error message for two files with different numbers of lines, with a guess at the first shifted line."""
    message = (
        f"{source} has {_count(counts[0], 'line')} and {target} has {_count(counts[1], 'line')}; "
        "aligned files must have the same number."
    )
    longer, shorter = (source, target) if counts[0] > counts[1] else (target, source)
    line = _first_shifted(longer, shorter, counts)
    if line is None:
        return f"{message} The first shifted line could not be determined."
    if line > min(counts):
        return f"{message} It looks like {shorter} is truncated: no line before its end seems shifted."
    return (
        f"{message} Line {line:,} looks like the first that is shifted: from there on, lines of {longer} seem to "
        f"belong to earlier lines of {shorter}. This is a guess from lengths, digits and final punctuation, and may be "
        "some lines off."
    )


def _first_shifted(longer: Path, shorter: Path, counts: tuple[int, int]) -> int | None:
    """The number of the first line that looks shifted, one past the end if none does, None if it cannot be determined.

    Each line of the shorter file is compared with its partner in the longer file and with the line `shift` lines later.
    The sum of (mismatch of the first − mismatch of the second) falls while lines are aligned and rises once they are
    shifted, so its minimum is the guess. The files are read again, with at most `shift` lines in memory.
    """
    if not (longer.is_file() and shorter.is_file()):
        return None  # a pipe can be read only once
    if not min(counts):
        return None
    lengths = [sum(len(line) + 1 for line in read_lines(path)) for path in (longer, shorter)]
    center = math.log(lengths[0] / max(counts)) - math.log(lengths[1] / min(counts))
    # Usually there is one surplus line, possibly the first of several; or all of them are adjacent.
    surplus = max(counts) - min(counts)
    shifts = {1, surplus if surplus <= _MAX_SHIFT else 1}
    found = [_change_point(_steps(longer, shorter, shift, center), min(counts)) for shift in shifts]
    return min((line for line in found if line is not None), default=None)


def _steps(longer: Path, shorter: Path, shift: int, center: float) -> Iterator[float]:
    """For each line of the shorter file, how much worse its partner fits than the line `shift` lines later."""
    ahead = map(_features, read_lines(longer))
    window = deque(islice(ahead, shift))
    for line, later in zip(map(_features, read_lines(shorter)), ahead, strict=False):
        window.append(later)
        yield _mismatch(window.popleft(), line, center) - _mismatch(later, line, center)


def _change_point(steps: Iterator[float], count: int) -> int | None:
    """The line after the minimum of the cumulative sum of the steps; None if the minimum is not significant.

    The search stops once the sum has risen too far to be noise, because later shifts would blur the first one. An
    accidental rise against the drift becomes exponentially rarer with its height, so the height to wait for grows with
    the logarithm of the number of lines. For unrelated texts the sum is a random walk: its fall and later rise
    together, divided by the root of its summed squares, follow a chi distribution with 3 degrees of freedom (Pitman
    1975), which exceeds 3 in 3 cases of 100.
    """
    patience = 5 + math.log(count + 1)
    total = lowest = squares = 0.0
    line = 1
    tested = False
    for number, step in enumerate(steps, start=1):
        total += step
        squares += step * step
        if total <= lowest:
            lowest, line = total, number + 1
        if not tested and total - lowest > patience * math.sqrt(squares / number):
            if total - 2 * lowest >= _SIGNIFICANCE * math.sqrt(squares):
                return line
            tested = True  # only once: repeated testing would find something significant in the end
    return line if squares and total - 2 * lowest >= _SIGNIFICANCE * math.sqrt(squares) else None


class _Features(NamedTuple):
    """Features that a sentence and its translation usually share."""

    log_length: float
    final_mark: str
    digits: str


_MARKS = str.maketrans("。．？！：…؟।", "..?!:.?.")
_DIGITS = re.compile("[0-9]")


def _features(line: str) -> _Features:
    text = line.strip().rstrip("\"'”»“’)").translate(_MARKS)
    last = text[-1:] if text[-1:] in ".?!:" else ""
    return _Features(math.log(len(line) + 1), last, "".join(sorted(_DIGITS.findall(line))))


def _mismatch(longer: _Features, shorter: _Features, center: float) -> float:
    length = min(abs(longer.log_length - shorter.log_length - center), 1.5)  # limits the influence of a single line
    return length + 0.5 * (longer.final_mark != shorter.final_mark) + 0.5 * (longer.digits != shorter.digits)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
