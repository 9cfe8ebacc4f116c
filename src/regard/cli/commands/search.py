"""`regard search`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import DeviceOption, ThreadsOption, select_device

if TYPE_CHECKING:
    from regard.task.contextual_vectors.search import Hit, SearchResult


def search(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A run folder of an encoder, a language model, a translator or vectors."),
    ],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to search, a text per line; also .gz, .xz, .zst.")
    ],
    query: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUERY", help="What to look for. Default: standard input, one query per line."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=1_000_000, help="The number of lines to find for each query.")] = 10,
    layer: Annotated[
        int | None,
        typer.Option(min=0, help="The layer whose vectors are compared; 0 is the embeddings. Default: the last layer."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON output: print one object per query and hit, with its whole text.")
    ] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
) -> None:
    """Find the lines of a file that are most similar to a query.

    Similarity is the cosine of the vectors of query and line. Every line is compared, and the file may be larger than
    memory. Columns are the cosine, the line number and the line; with several queries, the query comes first.
    """
    from regard.cli.lines import check_files, read_chunks
    from regard.cli.progress import progress_bar
    from regard.data.text.lines import check_file
    from regard.errors import UserError
    from regard.task.auto import open_model
    from regard.task.contextual_vectors.search import search_file

    check_file(file)
    check_files(query, None, None)
    queries = query or [line for chunk in read_chunks(None, None, 1000) for line in chunk if line.strip()]
    if not queries:
        raise UserError("There is no query; give some words after the file, or a query per line on standard input.")
    pipeline = open_model(model, select_device(device, threads))
    with progress_bar("Searching", "lines", None) as progress:
        result = search_file(pipeline, file, queries, top=top, layer=layer, progress=progress)
    for each, hits in zip(queries, result.hits, strict=True):
        for hit in hits:
            print(_as_json(each, hit) if as_json else _as_text(each if len(queries) > 1 else None, hit))
    _report(file, result)


def _as_text(query: str | None, hit: "Hit") -> str:
    columns = [f"{hit.score:.4f}", str(hit.line), hit.text]
    return "\t".join(columns if query is None else [query, *columns])


def _as_json(query: str, hit: "Hit") -> str:
    record = {"query": query, "score": round(hit.score, 6), "line": hit.line, "text": hit.text}
    return json.dumps(record, ensure_ascii=False)


def _report(file: Path, result: "SearchResult") -> None:
    """What was not compared, on standard error."""
    if result.truncated:
        lines = "1 line is" if result.truncated == 1 else f"{result.truncated:,} lines are"
        print(f"{file}: {lines} longer than the model can read; only the beginning was compared.", file=sys.stderr)
    if result.skipped:
        lines = "1 line has" if result.skipped == 1 else f"{result.skipped:,} lines have"
        print(f"{file}: {lines} no word with a vector.", file=sys.stderr)
