"""Lines in, lines out: what the commands share that make something of every line of a text."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.options import EngineName, PrecisionName, chosen_device
from regard.cli.progress import counting, further
from regard.errors import UserError

if TYPE_CHECKING:
    import torch

    from regard.data.tokenizer import TextTokenizer
    from regard.decode import DecodeConfig, Wish
    from regard.task.forms import Forms
    from regard.train.world import World

CHUNK = 4000
"""Lines taken at once from a file or a pipe: enough to sort them by length, few enough to hold."""

Work = Callable[[list[str], list[int], Callable[[int], None]], Iterable[str]]
"""Given some lines, the number of the first thing in each, and who hears how many are done: what to write."""


def work_through(
    text: list[str] | None,
    files: list[Path] | None,
    output: Path | None,
    what: str,
    work: Work,
    *,
    things: Callable[[str], int] = lambda line: 1,
    world: "World | None" = None,
) -> None:
    """Let what was typed, files or standard input go through `work`, some lines at a time, and write what comes.

    `things`: how many there are in a line. Processes of a `world` share lines out, and the first of them reads and
    writes; `work` then gives one result for each line.
    """
    from regard.train.world import ALONE

    world = world or ALONE
    with _written_by_first(output, world) as write, counting(what, None, shown=world.first) as progress:
        before = 0
        for lines in _told(chunks_of_lines(text, files, CHUNK * world.size), world):
            *numbers, after = accumulate(map(things, lines), initial=before)
            mine, heard = world.share(lines), further(progress, before, world.size)
            results = work(mine, world.share(numbers), heard) if mine else ()
            for result in results if world.size == 1 else world.whole(list(results)):
                write(result)
            before = after


def _told(chunks: Iterator[list[str]], world: "World") -> Iterator[list[str]]:
    """The lines that the first process reads, for all."""
    if world.size == 1:
        yield from chunks
        return
    while lines := world.gather(next(chunks, []) if world.first else [])[0]:
        yield lines


@contextmanager
def _written_by_first(output: Path | None, world: "World") -> Iterator[Callable[[str], None]]:
    if world.first:
        with written(output) as write:
            yield write
        return
    try:
        yield lambda line: None
    except KeyboardInterrupt:  # the first says what was done
        raise SystemExit(130) from None


@contextmanager
def written(output: Path | None) -> Iterator[Callable[[str], None]]:
    """Takes results as they come: to standard output, or to a file that is whole only at the end."""
    from regard.files import growing_file

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
        done = f"{lines} in {output}.partial" if count else "nothing was written"
        print(f"Stopped: {done}.", file=sys.stderr)
        raise SystemExit(130) from None


def chunks_of_lines(text: list[str] | None, files: list[Path] | None, most: int) -> Iterator[list[str]]:
    """What is to be worked on, some lines at a time: all that were typed, a line at a time from a terminal."""
    if text:
        yield text
        return
    stream = _lines(files)
    size = 1 if not files and sys.stdin.isatty() else most
    while chunk := list(islice(stream, size)):
        yield chunk


def padded(lines: Iterable[str], count: int) -> list[str]:
    """Exactly `count` lines: empty ones where there are fewer, so that outputs stay beside their inputs."""
    some = list(islice(lines, count))
    return some + [""] * (count - len(some))


def shown_alternatives(alternatives: int, as_json: bool) -> int:
    """How many alternatives of a token to show. Only JSON has a place for them."""
    if alternatives and not as_json:
        raise UserError("--alternatives are shown in JSON only; add --json.")
    return alternatives


def set_forms(forms: "Forms[Any]", kernels: bool | None, precision: PrecisionName) -> None:
    """Let a model be searched in this form, or refuse what cannot be had."""
    forms.compile, forms.precision = kernels, precision.value
    forms.check()


def say_what_it_costs(forms: "Forms[Any]", inputs: int) -> None:
    """Who has never compiled on this machine will wait for it, and should know why."""
    if forms.pays_to_compile(inputs) and not forms.is_compiled():
        where = "GPU" if forms.on_gpu else "CPU"
        avoid = "" if forms.precision == "int8" else " (--no-compile avoids it)"
        print(f"Compiling for this {where}, once; that takes some seconds{avoid}.", file=sys.stderr)


def token_facts(
    tokenizer: "TextTokenizer",
    tokens: tuple[int, ...],
    steps: tuple[float, ...],
    alternatives: tuple[tuple[tuple[int, float], ...], ...],
) -> list[dict[str, Any]]:
    """Every token with its text and log-probability, and what else could have stood there. The end has no text."""
    facts: list[dict[str, Any]] = []
    for number, gain in enumerate(steps):
        text = tokenizer.decode([tokens[number]]) if number < len(tokens) else ""
        fact: dict[str, Any] = {"text": text, "log_probability": round(gain, 4)}
        if alternatives:
            fact["alternatives"] = [
                {"text": tokenizer.decode([token]), "log_probability": round(chance, 4)}
                for token, chance in alternatives[number]
            ]
        facts.append(fact)
    return facts


def check_engine(engine: EngineName, processes: int | None) -> None:
    """CTranslate2 is not shared out over processes."""
    from regard.train.world import joined_size

    if engine is EngineName.ctranslate2 and (processes or joined_size()) > 1:
        raise UserError("CTranslate2 shares work out over threads by itself; leave out --processes, or --engine.")


def partial_stays(output: Path | None) -> str:
    """What to know when a process was lost."""
    return "" if output is None else f" What was done by then, if anything, is in {output}.partial."


def ctranslate2_device(device: str, threads: int | None, seed: int | None) -> "torch.device":
    """The device that is meant: CTranslate2 knows cpu and cuda. Its seeds are not ours, and are not taken."""
    if seed is not None:
        raise UserError("CTranslate2 cannot draw by a seed for each line; leave out --seed, or use --engine regard.")
    where = chosen_device(device, threads)
    return chosen_device("cpu", threads) if device == "auto" and where.type != "cuda" else where


def check_for_ctranslate2(
    decode: "DecodeConfig", wish: "Wish", alternatives: int, kernels: bool | None, precision: PrecisionName
) -> None:
    """Refuse at once what CTranslate2 cannot do, and say where its search differs from ours."""
    from regard.task.ctranslate2 import check_possible, differs

    if kernels is not None or precision is not PrecisionName.float32:
        raise UserError("CTranslate2 has its own kernels; leave out --compile and --precision, or use --engine regard.")
    check_possible(decode, wish, alternatives)
    if sentence := differs(decode):
        print(sentence, file=sys.stderr)


def _lines(files: list[Path] | None) -> Iterator[str]:
    from regard.data.text import read_lines

    if files:
        for path in files:
            yield from read_lines(path)
        return
    try:
        for line in sys.stdin.buffer:
            yield line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"Standard input is not UTF-8: {error.reason}; convert it, for instance with iconv.") from None
