"""Pictures of word vectors, and the numbers in them: `bars`, `matrix`, `map` and `documents`."""

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.commands.vectors.model import WordsArgument, app, read_words
from regard.cli.lines import check_files, open_output
from regard.cli.options import JsonOption
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.lab.vectors.maps import VectorMap

PictureOption = Annotated[
    Path | None,
    typer.Option("--output", readable=False, help="Write the picture: .svg or .html. Default: print its numbers."),
]


class Method(StrEnum):
    """How vectors are laid out in a plane."""

    pca = "pca"
    tsne = "tsne"


MethodOption = Annotated[
    Method, typer.Option(help="tsne keeps neighbors together, pca shows the directions of the largest variance.")
]
PerplexityOption = Annotated[
    float, typer.Option(min=1, max=1000, help="Perplexity of t-SNE: about how many neighbors of a point count.")
]


@app.command("bars")
def bars(
    context: typer.Context, words: WordsArgument = None, output: PictureOption = None, as_json: JsonOption = False
) -> None:
    """Draw the vectors of words as bars.

    There is a bar per dimension, and the most similar words stand beside them. Without --output: one line per word, the
    word and its numbers.
    """
    from regard.lab.vectors.bars import bars_picture
    from regard.lab.vectors.svg import html_page

    check_picture(output, words)
    keyed, given = context.obj.open(), read_words(words)
    if output is not None:
        picture = bars_picture(keyed, given)
        save_picture(output, lambda: picture, lambda: html_page(", ".join(given), picture))
        return
    for word in given:
        numbers = keyed[word].tolist()
        record = {"word": word, "vector": [round(number, 6) for number in numbers]}
        _print(as_json, record, "\t".join([word, *(f"{number:.4f}" for number in numbers)]))


@app.command("matrix")
def matrix(
    context: typer.Context,
    words: WordsArgument = None,
    softmax: Annotated[
        bool, typer.Option("--softmax", help="Normalize each row with a softmax, as attention does.")
    ] = False,
    causal: Annotated[bool, typer.Option("--causal", help="Causal mask: a word sees none of the later ones.")] = False,
    output: PictureOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw the cosines of all pairs of words as a matrix.

    With the words of a sentence in their order, --softmax and --causal give the simplest attention matrix: each word
    is its own query and key. Without --output: the matrix, a row per line.
    """
    from regard.lab.vectors.matrix import attention_matrix, matrix_picture
    from regard.lab.vectors.svg import html_page

    check_picture(output, words)
    keyed, given = context.obj.open(), read_words(words)
    found = attention_matrix(keyed.similarities(given), softmax=softmax, causal=causal)
    title = ("Softmax of cosine similarity" if softmax else "Cosine similarity") + (", causal mask" if causal else "")
    if output is not None:
        picture = matrix_picture(given, found, title, causal=causal)
        save_picture(output, lambda: picture, lambda: html_page(title, picture))
        return
    rows = [[None if number != number else round(number, 6) for number in row] for row in found.tolist()]
    if as_json:
        _print(True, {"words": given, "matrix": rows}, "")
        return
    print("\t".join(["", *given]))
    for word, row in zip(given, rows, strict=True):
        print("\t".join([word, *("" if number is None else f"{number:.4f}" for number in row)]))


@app.command("map")
def map_(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORD", help="Words to show. Default: frequent ones, see --count.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Read the words from a file, one per line; after a tab, a group to color by.")
    ] = None,
    count: Annotated[int, typer.Option(min=3, help="Show this many frequent words, if none are given.")] = 300,
    skip: Annotated[int, typer.Option(min=0, help="Leave out this many of the most frequent ones.")] = 100,
    method: MethodOption = Method.tsne,
    perplexity: PerplexityOption = 30.0,
    output: PictureOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw a map of words by t-SNE or PCA.

    An .html file can be zoomed and searched. Words are laid out by the directions of their vectors, that is by their
    cosines. Without --output: one line per word, the word and its two coordinates.
    """
    if words and file:
        raise UserError("WORD and --file both name the words; give one of the two.")
    check_picture(output, words or [""], file)
    keyed = context.obj.open()
    pairs = _read_groups(file) if file else [(word, "") for word in words or keyed.words[skip : skip + count]]
    if len(pairs) < 3:
        raise UserError(f"A map needs at least 3 words; found {len(pairs)} (with --skip {skip}).")
    title = f"{len(pairs):,} words of {Path(keyed.name).name}"
    groups = [group for _, group in pairs] if any(group for _, group in pairs) else []
    drawn = _project(
        title, [word for word, _ in pairs], groups, keyed.of([word for word, _ in pairs]), method, perplexity
    )
    _show_map(drawn, output, as_json)


@app.command("documents")
def documents(
    context: typer.Context,
    data: Annotated[
        Path | None,
        typer.Option(help="Your own texts with labels: a table, or a folder per label. Default: the Brown corpus."),
    ] = None,
    broad: Annotated[
        bool, typer.Option("--broad", help="The four categories of the Brown corpus instead of its 15 genres.")
    ] = False,
    method: MethodOption = Method.tsne,
    perplexity: PerplexityOption = 30.0,
    output: PictureOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw a map of documents by genre, with silhouettes.

    A document is the mean of its words' vectors. The silhouette of a genre is near 1 if its documents are near each
    other and far from all others, 0 on a border, and negative if another genre is nearer. It is computed from the
    cosines of the vectors, not from the map.
    """
    from regard.lab.vectors.documents import brown_documents, document_vectors, labeled_documents, silhouettes

    if data is not None and broad:
        raise UserError("--broad is about the Brown corpus; leave it out, or --data.")
    check_picture(output, [""], data)
    keyed = context.obj.open()
    read = brown_documents(broad=broad) if data is None else labeled_documents(data)
    kept, means, known = document_vectors(keyed, read)
    genres = [document.genre for document in kept]
    each = silhouettes(means, genres)
    if output is not None:
        title = f"{len(kept):,} documents as means of {Path(keyed.name).name}"
        drawn = _project(title, [document.name for document in kept], genres, means, method, perplexity)
        _save_map(drawn.without_labels(), output)
    by_genre = {genre: [] for genre in genres}  # type: dict[str, list[float]]
    for genre, value in zip(genres, each.tolist(), strict=True):
        by_genre[genre].append(value)
    rows = [
        {"genre": genre, "documents": len(values), "silhouette": round(sum(values) / len(values), 4)}
        for genre, values in by_genre.items()
    ]
    record = {"documents": len(kept), "known_words": round(known, 4), "silhouette": round(float(each.mean()), 4)}
    summary = f"{len(kept):,} documents, {known:.1%} of their words known, silhouette {each.mean():.3f}"
    lines = [f"{row['genre']}\t{row['documents']}\t{row['silhouette']:.3f}" for row in rows]
    _print(as_json, record | {"genres": rows}, "\n".join([*lines, summary]))


def _project(
    title: str, labels: list[str], groups: list[str], found: Any, method: Method, perplexity: float
) -> "VectorMap":
    from regard.lab.vectors.maps import VectorMap
    from regard.model.before.word_vectors.neighbors import unit_rows
    from regard.model.before.word_vectors.projection import pca, tsne

    units = unit_rows(found)
    if method is Method.pca:
        points, quality = pca(units)
        note = f"Principal component analysis: the two axes have {quality:.0%} of the variance."
    else:
        points, quality = tsne(units, perplexity)
        note = f"t-SNE, perplexity {perplexity:g}; Kullback–Leibler divergence {quality:.2f}."
    return VectorMap.of(title, note, labels, points, groups)


def _show_map(drawn: "VectorMap", output: Path | None, as_json: bool) -> None:
    if output is not None:
        _save_map(drawn, output)
        return
    for point in drawn.points:
        record = {"word": point.label, "x": round(point.x, 4), "y": round(point.y, 4)}
        _print(as_json, record, f"{point.label}\t{point.x:.4f}\t{point.y:.4f}")


def _save_map(drawn: "VectorMap", output: Path) -> None:
    from regard.lab.vectors.maps import map_html, map_svg

    save_picture(output, lambda: map_svg(drawn), lambda: map_html(drawn))


def check_picture(output: Path | None, words: list[str] | None, file: Path | None = None) -> None:
    """Refuse a name that is neither .svg nor .html, and what cannot be read or written."""
    if output is not None and output.suffix not in (".svg", ".html"):
        raise UserError(f"{output}: the picture is written as .svg or .html; let the name end with one of these.")
    check_files(words, None, output, file)


def save_picture(output: Path, svg: Callable[[], str], html: Callable[[], str]) -> None:
    with open_output(output) as write:
        write((html if output.suffix == ".html" else svg)().rstrip("\n"))


def _read_groups(file: Path) -> list[tuple[str, str]]:
    """The words of a file with their groups."""
    from regard.data.text.lines import read_lines

    rows = (line.partition("\t") for line in read_lines(file) if line.strip())
    return [(word.strip(), group.strip()) for word, _, group in rows]


def _print(as_json: bool, record: dict[str, Any], text: str) -> None:
    print(json.dumps(record, ensure_ascii=False) if as_json else text)
