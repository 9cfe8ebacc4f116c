"""The table that GloVe starts from: `ratios`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.commands.vectors.model import app
from regard.cli.options import JsonOption


@app.command("ratios")
def ratios(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(metavar="I J K...", help="Two words and those to compare near them: ice steam solid gas water."),
    ],
    data: Annotated[
        Path | None, typer.Option(help="Another text to count in. Default: the one that the model was trained on.")
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="The most words between two that are near. Default: GloVe's, or else 15."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print how likely words are near I and near J, and the ratio.

    The probabilities P(k|i) and P(k|j) come from how often words occur together in the text that the model, a run of
    word vectors, was trained on. The counts stand beside them: where they are low, the ratio says little.
    """
    from regard.run.locate import note
    from regard.task.word_vectors.counts import count_run

    table = count_run(context.obj.model, data=data, window=window, log=note).ratios(words)
    print(json.dumps(table.to_dict(), ensure_ascii=False) if as_json else table)
