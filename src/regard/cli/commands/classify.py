"""`regard classify`."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.lines import LineProcessor, check_files, process_lines
from regard.cli.options import DeviceOption, JsonOption, OutputOption, ThreadsOption, select_device

if TYPE_CHECKING:
    from regard.task.classification.pipeline import TextLabeler
    from regard.task.image_classification.pipeline import ImageClassifier

Classes = list[tuple[str, float]]


def classify(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder with an image or text classifier.")],
    image: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE|TEXT", help="Image files or folders, or texts. Default: standard input, one per line."
        ),
    ] = None,
    output: OutputOption = None,
    top: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Top-k: the number of most likely classes to print.")
    ] = 1,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
) -> None:
    """Classify images or texts.

    Prints the most likely classes with their probabilities. For images, each line begins with the path of the image.
    """
    from regard.run import find_model, read_metadata

    check_files(image, None, output, *map(Path, image or ()))
    config = read_metadata(find_model(model)).get("model")
    selected = select_device(device, threads)
    if isinstance(config, dict) and config.get("kind") == "encoder":
        from regard.task.classification.pipeline import TextLabeler

        process_lines(image, None, output, "texts", _label_texts(TextLabeler.load(model, selected), top, as_json))
    else:
        from regard.task.image_classification.pipeline import ImageClassifier

        classifier = ImageClassifier.load(model, selected)
        process_lines(image, None, output, "images", _classify_images(classifier, top, as_json))


def _label_texts(labeler: "TextLabeler", top: int, as_json: bool) -> LineProcessor:
    def process(lines: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
        found = iter(labeler.classify([line for line in lines if line.strip()], top=top, progress=progress))
        labels = [next(found) if line.strip() else [] for line in lines]  # an empty line gives an empty line
        if as_json:
            return [_as_json({"text": line}, classes) for line, classes in zip(lines, labels, strict=True)]
        return ["\t".join(_columns(classes)) for classes in labels]

    return process


def _classify_images(classifier: "ImageClassifier", top: int, as_json: bool) -> LineProcessor:
    from regard.task.image_classification.pipeline import find_images

    def format_line(path: Path, classes: Classes) -> str:
        return _as_json({"path": str(path)}, classes) if as_json else "\t".join([str(path), *_columns(classes)])

    def process(lines: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
        paths = [path for line in lines for path in (find_images(line) if line.strip() else [None])]
        found = classifier.classify_each([path for path in paths if path is not None], top=top, progress=progress)
        return ("" if path is None else format_line(path, next(found)) for path in paths)

    return process


def _columns(classes: Classes) -> Iterable[str]:
    return (f"{label}\t{probability:.4f}" for label, probability in classes)


def _as_json(item: dict[str, str], classes: Classes) -> str:
    from regard.task.json_records import class_records

    return json.dumps({**item, "classes": class_records(classes)}, ensure_ascii=False)
