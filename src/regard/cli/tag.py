"""`regard tag`."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.lines import work_through
from regard.cli.options import Device, Output, Threads, chosen_device
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.task.labeller import TaggedWords


def tag(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder with a model that tags words.")],
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Without it, standard input, a sentence a line.")
    ] = None,
    file: Annotated[list[Path] | None, typer.Option(help="Sentences from a file; .gz, .xz, .zst too.")] = None,
    output: Output = None,
    tokenised: Annotated[bool, typer.Option("--tokenised", help="Words are apart already, by blanks.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, with probabilities.")] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Tag words: each word of a sentence with its tag behind a slash, as in cat/NN."""
    from regard.data.words import split_words
    from regard.task.labeller import load_labeller

    if text and file:
        raise UserError("TEXT and --file both name what to tag; give one of the two.")
    labeller = load_labeller(model, chosen_device(device, threads))

    def work(lines: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
        sentences = [line.split() if tokenised else split_words(line) for line in lines]
        found = iter(labeller.tag_words([words for words in sentences if words], progress=progress))
        tagged = [next(found) if words else None for words in sentences]  # an empty line stays one
        return [_as_json(one) if as_json else str(one or "") for one in tagged]

    work_through(text, file, output, "sentences", work)


def _as_json(tagged: "TaggedWords | None") -> str:
    facts = {
        "words": [] if tagged is None else list(tagged.words),
        "tags": [] if tagged is None else list(tagged.tags),
        "probabilities": [] if tagged is None else [round(one, 4) for one in tagged.probabilities],
    }
    return json.dumps(facts, ensure_ascii=False)
