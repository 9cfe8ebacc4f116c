"""`regard fill`."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.lines import work_through
from regard.cli.options import Device, Output, Threads, chosen_device
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.task.filler import Guess


def fill(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder with a model that fills gaps.")],
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="Texts with [MASK] in them. Without any, standard input, one a line."),
    ] = None,
    file: Annotated[list[Path] | None, typer.Option(help="Texts from a file, one a line; .gz, .xz, .zst too.")] = None,
    output: Output = None,
    top: Annotated[
        int | None,
        typer.Option(min=1, help="Show so many of the likeliest words of each gap, instead of the filled text."),
    ] = None,
    pieces: Annotated[int, typer.Option(min=1, help="How many tokens are missing in each gap.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Fill gaps: write [MASK] where a word is missing. Several gaps of a text are each filled by themselves."""
    from regard.task.filler import MASK, load_filler

    if text and file:
        raise UserError("TEXT and --file both name what to fill; give one of the two.")
    filler = load_filler(model, chosen_device(device, threads))
    shown = top or (5 if as_json else 1)

    def work(lines: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
        for number, line in zip(numbers, lines, strict=True):
            if line.strip() and MASK not in line:
                where = "" if text and len(text) == 1 else f"Line {number + 1}: "
                raise UserError(f"{where}there is no gap in {line!r}; write {MASK} where a word is missing.")
        wanted = [line for line in lines if line.strip()]
        found = iter(filler.fill_all(wanted, top=shown, pieces=pieces, progress=progress))
        results = []
        for line in lines:
            gaps = next(found) if line.strip() else []  # an empty line stays one
            if as_json:
                results.append(_as_json(line, gaps))
            elif top is None:
                results.append(filler.filled(line, gaps))
            else:
                results.append("\t".join(_as_text(guesses) for guesses in gaps))
        return results

    work_through(text, file, output, "texts", work)


def _as_text(guesses: "Sequence[Guess]") -> str:
    return ", ".join(f"{guess.text} {guess.probability:.4f}" for guess in guesses)


def _as_json(line: str, gaps: "Sequence[Sequence[Guess]]") -> str:
    found = [[{"text": one.text, "probability": round(one.probability, 6)} for one in guesses] for guesses in gaps]
    return json.dumps({"text": line, "gaps": found}, ensure_ascii=False)
