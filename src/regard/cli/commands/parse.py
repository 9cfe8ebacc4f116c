"""`regard parse`."""

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.decoding import announce_compilation, configure_backend
from regard.cli.lines import check_files, partial_output_note, process_lines
from regard.cli.options import (
    BeamSizeOption,
    DeviceOption,
    Dtype,
    DtypeOption,
    FusedOption,
    JsonOption,
    OutputOption,
    ThreadsOption,
)
from regard.cli.processes import TIMEOUT, ProcessesOption, join_process_group, launch_processes, report_errors_once
from regard.errors import UserError


def parse(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder with a parser.")],
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Sentences to parse. Default: standard input, one per line."),
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option(help="Read sentences from a file; also .gz, .xz, .zst. Repeatable.")
    ] = None,
    output: OutputOption = None,
    tokenized: Annotated[
        bool, typer.Option("--tokenized", help="Pretokenized input: words are already separated by spaces.")
    ] = False,
    draw: Annotated[bool, typer.Option("--draw", help="Draw each tree instead of printing brackets.")] = False,
    svg: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also draw the trees as 1.svg, 2.svg … in this folder.")
    ] = None,
    beam_size: BeamSizeOption = None,
    as_json: JsonOption = False,
    fused: FusedOption = None,
    dtype: DtypeOption = Dtype.float32,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    processes: ProcessesOption = None,
) -> None:
    """Parse sentences into constituency trees.

    Each tree is well-formed, and has exactly the words of its sentence.
    """
    with report_errors_once():
        if text and file:
            raise UserError("TEXT and --file both name what to parse; give one of the two.")
        if draw and as_json:
            raise UserError("--draw and --json are different outputs; give one of the two.")
        check_files(text, file, output, processes=processes)
        if svg is not None:
            _make_folder(svg, [*(file or ()), *([] if output is None else [output])])
        launch_processes(processes, device, threads, partial_output_note(output))
    with join_process_group(device, threads, TIMEOUT) as (process_group, own_device):
        from regard.data.text.treebank_tokenizer import treebank_tokenize
        from regard.data.trees.drawing import draw_tree, tree_svg
        from regard.files import write_text
        from regard.task.json_records import parse_record
        from regard.task.parsing.pipeline import Parser

        parser = Parser.load(model, own_device)
        configure_backend(parser.backend, fused, dtype)
        decode = parser.search(beam_size).only_best()

        def process(lines: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
            if numbers[0] == 0:
                announce_compilation(parser.backend, len(lines))
            sentences = [line.split() if tokenized else treebank_tokenize(line) for line in lines]
            found = iter(parser.parse_words([words for words in sentences if words], decode, progress))
            results = []
            for number, words in zip(numbers, sentences, strict=True):
                parsed = next(found) if words else None  # an empty line gives an empty line
                if parsed is not None and svg is not None:
                    write_text(svg / f"{number + 1}.svg", tree_svg(parsed.tree))
                tree = "" if parsed is None else draw_tree(parsed.tree) if draw else str(parsed.tree)
                results.append(json.dumps(parse_record(parsed), ensure_ascii=False) if as_json else tree)
            return results

        process_lines(text, file, output, "sentences", process, process_group=process_group)


def _make_folder(path: Path, others: Iterable[Path]) -> None:
    """Create the folder of drawings, which must not overwrite the command's other files."""
    for other in others:
        if re.fullmatch(r"[0-9]+\.svg", other.name) and other.resolve().parent == path.resolve():
            raise UserError(f"--svg {path}: a drawing may overwrite {other}; choose another folder.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--svg {path}: the folder cannot be created ({error.strerror}); choose another.") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise UserError(f"--svg {path}: the folder cannot be written (Permission denied); choose another.")
