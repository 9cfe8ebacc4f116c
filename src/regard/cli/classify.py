"""`regard classify`."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.labels import label_lines, labels_texts
from regard.cli.lines import work_through
from regard.cli.options import Device, Output, Threads, chosen_device

if TYPE_CHECKING:
    from regard.task.classifier import Classes


def classify(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder with a classifier of pictures or texts.")],
    image: Annotated[
        list[str] | None,
        typer.Argument(metavar="[IMAGE]...", help="Files, folders, or texts. Without any, standard input, one a line."),
    ] = None,
    output: Output = None,
    top: Annotated[int, typer.Option(min=1, help="How many of the likeliest classes to name.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Say what pictures show: of each its path, then classes with their probabilities, the likeliest first.

    A model that labels texts takes these in the place of paths, and gives the classes of each.
    """
    if labels_texts(model):
        label_lines(model, image, output, top, as_json, device, threads)
        return
    from regard.task.classifier import load_classifier, pictures_in

    show = _as_json if as_json else _as_text
    classifier = load_classifier(model, chosen_device(device, threads))

    def work(lines: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
        paths = [path for line in lines for path in (pictures_in(line) if line.strip() else [None])]
        found = classifier.classify_each([path for path in paths if path is not None], top=top, progress=progress)
        return _shown(paths, found, show)

    work_through(image, None, output, "pictures", work)


def _shown(
    paths: list[Path | None], found: Iterator["Classes"], show: Callable[[Path, "Classes"], str]
) -> Iterator[str]:
    """An empty line stays one."""
    return ("" if path is None else show(path, next(found)) for path in paths)


def _as_text(path: Path, classes: "Classes") -> str:
    return "\t".join([str(path), *(f"{label}\t{chance:.4f}" for label, chance in classes)])


def _as_json(path: Path, classes: "Classes") -> str:
    found = [{"label": label, "probability": round(chance, 6)} for label, chance in classes]
    return json.dumps({"path": str(path), "classes": found}, ensure_ascii=False)
