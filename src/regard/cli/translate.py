"""`regard translate`."""

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import Device, Threads, chosen_device
from regard.cli.progress import counting
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.task import Translated

_CHUNK = 1000
"""Lines taken at once from a file or a pipe."""


def translate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder, or a model that ships: en-tr.")],
    text: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Without it, standard input.")] = None,
    file: Annotated[list[Path] | None, typer.Option(help="Translate a file, line by line; .gz, .xz, .zst too.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file, once all is translated.")] = None,
    beams: Annotated[int | None, typer.Option(min=1, help="1 is greedy; the model's own number if not given.")] = None,
    nbest: Annotated[int, typer.Option(min=1, help="How many translations of each line, best first.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, with scores.")] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Translate text, files or standard input: a line in, a line out; paragraphs keep their layout."""
    from regard.files import write_text
    from regard.task import load_translator

    if text and file:
        raise UserError("TEXT and --file both name what to translate; give one of the two.")
    translator = load_translator(model, chosen_device(device, threads))
    decode = translator.search(max(beams or translator.decode.beams, nbest))
    kept: list[str] = []
    for lines in _chunks(text, file):
        with counting("sentences", None) as progress:
            found = translator.translate_all(lines, decode, progress)
        shown = [line for one in found for line in _shown(one, nbest, as_json)]
        if output is None:
            for line in shown:
                print(line, flush=True)
        else:
            kept += shown
    if output is not None:
        write_text(output, "".join(f"{line}\n" for line in kept))


def _chunks(text: list[str] | None, files: list[Path] | None) -> Iterator[list[str]]:
    """The lines to translate, some at a time: all that were typed, a line at a time from a terminal."""
    if text:
        yield text
        return
    stream = _lines(files)
    size = 1 if not files and sys.stdin.isatty() else _CHUNK
    while chunk := list(islice(stream, size)):
        yield chunk


def _lines(files: list[Path] | None) -> Iterator[str]:
    from regard.data.text import read_lines

    if files:
        for path in files:
            yield from read_lines(path)
        return
    try:
        for line in _as_text(sys.stdin.buffer):
            yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"Standard input is not UTF-8: {error.reason}; convert it, for instance with iconv.") from None


def _as_text(lines: Iterable[bytes]) -> Iterator[str]:
    return (line.decode("utf-8") for line in lines)


def _shown(one: "Translated", nbest: int, as_json: bool) -> Iterator[str]:
    if as_json:
        yield json.dumps(_facts(one, nbest), ensure_ascii=False)
        return
    for number in range(min(nbest, max(one.candidates, 1))):
        yield one.candidate(number)


def _facts(one: "Translated", nbest: int) -> dict[str, Any]:
    sentences = [
        {
            "source": source,
            "translations": [
                {
                    "text": each.text,
                    "score": round(each.score, 4),
                    "log_probability": round(each.log_probability, 4),
                    "tokens": len(each.tokens),
                    "ended": each.ended,
                }
                for each in found[:nbest]
            ],
        }
        for source, found in one.sentences
    ]
    return {"source": one.source, "translation": one.text, "sentences": sentences}
