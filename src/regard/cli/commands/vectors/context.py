"""A word in several sentences: `context`."""

import json
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from regard.cli.commands.vectors.model import app
from regard.cli.commands.vectors.pictures import PictureOption, check_picture, save_picture
from regard.cli.options import DeviceOption, JsonOption, ThreadsOption, select_device
from regard.errors import UserError

_AROUND = 14
"""Characters of a sentence on either side of the word that a picture shows."""


@app.command("context")
def context(
    group: typer.Context,
    word: Annotated[str, typer.Argument(metavar="WORD", help="The word.")],
    sentences: Annotated[
        list[str] | None,
        typer.Argument(metavar="SENTENCE", help="Sentences with it. Default: standard input, one per line."),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(min=0, help="The layer of the vectors; 0 is the embeddings. Default: the last one.")
    ] = None,
    output: PictureOption = None,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
) -> None:
    """Compare the vectors of one word in several sentences.

    A static vector is the same in all of them; a model that reads the sentence has one for each, and those of one sense
    are more alike. Prints the cosines of all pairs, a row for each time that the word occurs.
    """
    import numpy as np

    from regard.cli.lines import read_chunks
    from regard.lab.vectors.matrix import matrix_picture
    from regard.lab.vectors.svg import html_page
    from regard.model.before.word_vectors.neighbors import unit_rows
    from regard.task.contextual_vectors.vectors import occurrences

    check_picture(output, sentences)
    given = sentences or [line for chunk in read_chunks(None, None, 1000) for line in chunk if line.strip()]
    if len(given) < 2:
        raise UserError("Give two sentences or more, to compare the word in them.")
    found = occurrences(_open(group.obj.model, select_device(device, threads)), word, given, layer=layer)
    rows = unit_rows(np.stack([vector.float().cpu().numpy() for _, vector in found]))
    cosines, labels = rows @ rows.T, [sentence for sentence, _ in found]
    title = f"Cosine similarity of “{word}” in {len(found)} places"
    if output is not None:
        picture = matrix_picture([_snippet(label, word) for label in labels], cosines, title)
        save_picture(output, lambda: picture, lambda: html_page(title, picture))
        return
    table = [[round(number, 6) for number in row] for row in cosines.tolist()]
    if as_json:
        print(json.dumps({"word": word, "sentences": labels, "cosines": table}, ensure_ascii=False))
        return
    for label, row in zip(labels, table, strict=True):
        print("\t".join([*(f"{number:.4f}" for number in row), label]))


def _open(name: str, device: Any) -> Any:
    """A pipeline of texts, or something with static vectors in the place of one."""
    from regard.task.auto import open_model
    from regard.task.word_vectors.opening import has_word_vectors, open_keyed_vectors

    return SimpleNamespace(keyed=open_keyed_vectors(name)) if has_word_vectors(name) else open_model(name, device)


def _snippet(sentence: str, word: str) -> str:
    """The word with what stands around it, short enough for the margin of a picture."""
    at = sentence.lower().find(word.lower())
    start, end = max(at - _AROUND, 0), at + len(word) + _AROUND
    return f"{'…' if start else ''}{sentence[start:end].strip()}{'…' if end < len(sentence) else ''}"
