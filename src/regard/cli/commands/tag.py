"""`regard tag`."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.lines import check_files, process_lines
from regard.cli.options import DeviceOption, OutputOption, ThreadsOption, select_device
from regard.errors import UserError


def tag(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder with a token classifier.")],
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Sentences to tag. Default: standard input, one per line."),
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option(help="Read sentences from a file; also .gz, .xz, .zst. Repeatable.")
    ] = None,
    output: OutputOption = None,
    tokenized: Annotated[
        bool, typer.Option("--tokenized", help="Pretokenized input: words are already separated by spaces.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON output: print one object per line, with probabilities.")
    ] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
) -> None:
    """Tag the words of sentences, for example cat/NN."""
    from regard.data.text.treebank_tokenizer import treebank_tokenize
    from regard.task.classification.pipeline import TextLabeler
    from regard.task.json_records import tags_record

    if text and file:
        raise UserError("TEXT and --file both name what to tag; give one of the two.")
    check_files(text, file, output)
    labeler = TextLabeler.load(model, select_device(device, threads))

    def process(lines: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
        sentences = [line.split() if tokenized else treebank_tokenize(line) for line in lines]
        found = iter(labeler.tag_words([words for words in sentences if words], progress=progress))
        tagged = [next(found) if words else None for words in sentences]  # an empty line gives an empty line
        return [json.dumps(tags_record(one), ensure_ascii=False) if as_json else str(one or "") for one in tagged]

    process_lines(text, file, output, "sentences", process)
