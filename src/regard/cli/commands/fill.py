"""`regard fill`."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.lines import check_files, process_lines
from regard.cli.options import DeviceOption, JsonOption, OutputOption, ThreadsOption, select_device
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.task.masked_lm.pipeline import Guess


def fill(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder with a masked language model.")],
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Texts with [MASK] in them. Default: standard input, one per line."),
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option(help="Read texts from a file, one per line; also .gz, .xz, .zst. Repeatable.")
    ] = None,
    output: OutputOption = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Top-k: print this many of the most likely words for each [MASK] instead of the filled text.",
        ),
    ] = None,
    tokens_per_mask: Annotated[
        int, typer.Option(min=1, max=1000, help="The number of tokens that each [MASK] stands for.")
    ] = 1,
    pieces: Annotated[
        bool,
        typer.Option(
            "--pieces",
            help="Give the most likely tokens, continuations of words included, as the vocabulary spells them: ##ing.",
        ),
    ] = False,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
) -> None:
    """Fill in masked words, written as [MASK].

    Several masks of a text are filled independently. A mask stands for one token. After a space or at the beginning of
    a text it is filled with a token that begins a word, directly after a letter with one that continues it: whole
    words. Words that are not a token of the model's vocabulary need --tokens-per-mask; --pieces gives the tokens
    themselves.
    """
    from regard.task.masked_lm.pipeline import MASK, FillMask

    if text and file:
        raise UserError("TEXT and --file both name what to fill; give one of the two.")
    check_files(text, file, output)
    filler = FillMask.load(model, select_device(device, threads))
    count = top or (5 if as_json or pieces else 1)

    def process(lines: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
        for number, line in zip(numbers, lines, strict=True):
            if line.strip() and MASK not in line:
                where = "" if text and len(text) == 1 else f"Line {number + 1}: "
                raise UserError(f"{where}found no {MASK} in {line!r}; write it in place of the missing word.")
        texts = [line for line in lines if line.strip()]
        found = iter(filler.fill(texts, top=count, tokens_per_mask=tokens_per_mask, pieces=pieces, progress=progress))
        results = []
        for line in lines:
            masks = next(found) if line.strip() else []  # an empty line gives an empty line
            if as_json:
                results.append(_as_json(line, masks))
            elif top is None and not pieces:
                results.append(filler.filled(line, masks))
            else:
                results.append("\t".join(_as_text(guesses) for guesses in masks))
        return results

    process_lines(text, file, output, "texts", process)


def _as_text(guesses: "Sequence[Guess]") -> str:
    return ", ".join(f"{guess.text} {guess.probability:.4f}" for guess in guesses)


def _as_json(line: str, masks: "Sequence[Sequence[Guess]]") -> str:
    from regard.task.json_records import guess_records

    return json.dumps({"text": line, "masks": guess_records(masks)}, ensure_ascii=False)
