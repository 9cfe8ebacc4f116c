"""`regard parse`."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.lines import partial_stays, say_what_it_costs, set_forms, work_through
from regard.cli.options import Device, Kernels, Output, Precision, PrecisionName, Threads
from regard.cli.processes import PATIENCE, Processes, one_voice, start_others, taking_part
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.task.parser import Parsed


def parse(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder with a parser.")],
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Without it, standard input, a sentence a line.")
    ] = None,
    file: Annotated[list[Path] | None, typer.Option(help="Sentences from a file; .gz, .xz, .zst too.")] = None,
    output: Output = None,
    tokenised: Annotated[bool, typer.Option("--tokenised", help="Words are apart already, by blanks.")] = False,
    draw: Annotated[bool, typer.Option("--draw", help="Draw each tree instead of writing brackets.")] = False,
    svg: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw the trees as 1.svg, 2.svg … in this folder, too.")
    ] = None,
    beams: Annotated[int | None, typer.Option(min=1, help="1 is greedy; the model's own number if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    kernels: Kernels = None,
    precision: Precision = PrecisionName.float32,
    device: Device = "auto",
    threads: Threads = None,
    processes: Processes = None,
) -> None:
    """Parse sentences: one well-formed tree over exactly the words of each."""
    with one_voice():
        if text and file:
            raise UserError("TEXT and --file both name what to parse; give one of the two.")
        if draw and as_json:
            raise UserError("--draw is for people, --json for programs; give one of the two.")
        if svg is not None:
            _make_folder(svg)
        start_others(processes, device, threads, partial_stays(output))
    with taking_part(device, threads, PATIENCE) as (world, place):
        from regard.data.tree_picture import draw_tree, tree_svg
        from regard.data.words import split_words
        from regard.files import write_text
        from regard.task.parser import load_parser

        parser = load_parser(model, place)
        set_forms(parser.forms, kernels, precision)
        decode = parser.search(beams).only_best()

        def work(lines: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
            if numbers[0] == 0:
                say_what_it_costs(parser.forms, len(lines))
            sentences = [line.split() if tokenised else split_words(line) for line in lines]
            found = iter(parser.parse_words([words for words in sentences if words], decode, progress))
            results = []
            for number, words in zip(numbers, sentences, strict=True):
                parsed = next(found) if words else None  # an empty line stays one
                if parsed is not None and svg is not None:
                    write_text(svg / f"{number + 1}.svg", tree_svg(parsed.tree))
                shown = "" if parsed is None else draw_tree(parsed.tree) if draw else str(parsed.tree)
                results.append(json.dumps(_facts(parsed), ensure_ascii=False) if as_json else shown)
            return results

        work_through(text, file, output, "sentences", work, world=world)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--svg {path}: cannot write there ({error.strerror}); choose another folder.") from None


def _facts(parsed: "Parsed | None") -> dict[str, Any]:
    if parsed is None:
        return {"words": [], "tree": None}
    return {
        "words": list(parsed.words),
        "tags": list(parsed.tree.tags()),
        "tree": str(parsed.tree),
        "score": round(parsed.score, 4),
        "log_probability": round(parsed.log_probability, 4),
    }
