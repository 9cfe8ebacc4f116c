"""Processing text line by line: from arguments, files or standard input to standard output or a file."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli.progress import offset_progress, progress_bar
from regard.cli.standard_streams import (
    check_standard_input,
    check_standard_output,
    print_error,
    standard_input_descriptor,
)
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.train.distributed.process_group import ProcessGroup

CHUNK_LINES = 4000
"""Lines read at a time from a file or a pipe: enough to sort them by length, few enough to keep in memory."""

CHUNK_CHARACTERS = 1 << 22
"""A chunk ends when its lines have this many characters, however few they are."""

LineProcessor = Callable[[list[str], list[int], Callable[[int], None]], Iterable[str]]
"""Called with some lines, the index of the first item of each, and a progress callback; returns the lines to write."""


def process_lines(
    text: list[str] | None,
    files: list[Path] | None,
    output: Path | None,
    unit: str,
    process: LineProcessor,
    *,
    items_in: Callable[[str], int] = lambda line: 1,
    process_group: "ProcessGroup | None" = None,
) -> None:
    """Pass the arguments, files or standard input through `process`, in chunks, and write the results.

    `items_in` counts the items of a line. In a process group the lines are sharded, rank 0 reads and writes, and
    `process` returns one result per line.
    """
    from regard.kernels.cpu.threads import report_busy_cores
    from regard.train.distributed.process_group import SINGLE_PROCESS

    process_group = process_group or SINGLE_PROCESS
    is_rank0 = process_group.is_rank0
    is_typed = not text and not files and sys.stdin is not None and sys.stdin.isatty()
    with (
        _rank0_writer(output, process_group) as write,
        progress_bar("Processing", unit, None, visible=is_rank0 and not is_typed) as progress,
        report_busy_cores(lambda message: print(message, file=sys.stderr) if is_rank0 else None),
    ):
        done = 0
        chunks = read_chunks(text, files, CHUNK_LINES * process_group.size)
        for lines in _broadcast_chunks(chunks, process_group):
            *first_items, after = accumulate(map(items_in, lines), initial=done)
            shard = process_group.shard(lines)
            report = offset_progress(progress, done, process_group.size)
            results = process(shard, process_group.shard(first_items), report) if shard else ()
            for result in results if process_group.size == 1 else process_group.gather_interleaved(list(results)):
                write(result)
            done = after


def check_files(
    text: list[str] | None,
    files: list[Path] | None,
    output: Path | None,
    *other_inputs: Path | None,
    processes: int | None = None,
) -> None:
    """Refuse what cannot be read or written before a model is loaded; `other_inputs` are only compared with the output.

    Of several processes only rank 0 reads and writes, so only rank 0 checks.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    from regard.data.text.lines import check_file
    from regard.files import check_output

    inputs: list[Path | int] = [path for path in (*(files or ()), *other_inputs) if path is not None]
    for path in files or ():
        check_file(path)
        if (processes or 1) > 1 and str(path).startswith(("/dev/fd/", "/proc/self/fd/")):
            raise UserError(
                f"{path} is open in this process only; with --processes, give a file or use standard input."
            )
    if not text and not files:
        check_standard_input()
        if (descriptor := standard_input_descriptor()) is not None:
            inputs.append(descriptor)
    if output is None:
        check_standard_output()
    else:
        check_output(output, inputs)


@contextmanager
def open_output(output: Path | None) -> Iterator[Callable[[str], None]]:
    """A function that writes lines: to standard output, or to a file that gets its name once it is complete."""
    from regard.files import growing_file, partial_path

    if output is None:
        yield lambda line: print(line, flush=True)
        return
    count = 0
    try:
        with growing_file(output) as file:

            def write(line: str) -> None:
                nonlocal count
                count += 1 + line.count("\n")
                file.write(f"{line}\n")
                file.flush()

            yield write
    except KeyboardInterrupt:
        lines = "1 line is" if count == 1 else f"{count:,} lines are"
        done = f"{lines} in {partial_path(output)}" if count else "nothing was written"
        print_error(f"Stopped: {done}.")
        raise SystemExit(130) from None


def read_chunks(text: list[str] | None, files: list[Path] | None, max_lines: int) -> Iterator[list[str]]:
    """All arguments at once, or chunks of lines from files or standard input; from a terminal, line by line."""
    if text:
        yield text
        return
    lines = _read_lines(files)
    size = 1 if not files and sys.stdin.isatty() else max_lines
    chunk: list[str] = []
    characters = 0
    for line in lines:
        chunk.append(line)
        characters += len(line)
        if len(chunk) >= size or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def pad_lines(lines: Iterable[str], count: int) -> list[str]:
    """Exactly `count` lines, padded with empty ones, so that outputs stay aligned with their inputs."""
    first = list(islice(lines, count))
    return first + [""] * (count - len(first))


def partial_output_note(output: Path | None) -> str:
    """A note for the message about a lost process."""
    from regard.files import partial_path

    return "" if output is None else f" The results so far, if any, are in {partial_path(output)}."


def _broadcast_chunks(chunks: Iterator[list[str]], process_group: "ProcessGroup") -> Iterator[list[str]]:
    """The lines that rank 0 reads, in all processes."""
    if process_group.size == 1:
        yield from chunks
        return
    while lines := process_group.all_gather_object(next(chunks, []) if process_group.is_rank0 else [])[0]:
        yield lines


@contextmanager
def _rank0_writer(output: Path | None, process_group: "ProcessGroup") -> Iterator[Callable[[str], None]]:
    if process_group.is_rank0:
        with open_output(output) as write:
            yield write
        return
    try:
        yield lambda line: None
    except KeyboardInterrupt:  # rank 0 reports what was written
        raise SystemExit(130) from None


def _read_lines(files: list[Path] | None) -> Iterator[str]:
    from regard.data.text.lines import STANDARD_INPUT, decode_lines, read_lines

    if files:
        for path in files:
            yield from read_lines(path)
    else:
        yield from decode_lines(sys.stdin.buffer, STANDARD_INPUT)
