"""`regard average`."""

from pathlib import Path
from typing import Annotated

import typer


def average(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN", help="Run folders, finished or not, or checkpoints: RUN@STEP.")
    ],
    last: Annotated[
        int, typer.Option(min=1, help="Checkpoint averaging: the number of last checkpoints of each run.")
    ] = 5,
    out: Annotated[Path | None, typer.Option(help="Run folder to write; must not exist. Default: RUN-average.")] = None,
) -> None:
    """Average the weights of a run's last checkpoints.

    The average is written as a model of its own.
    """
    from regard.run.average import average_checkpoints

    folder, description = average_checkpoints(runs, out, last=last)
    print(f"{folder}: {description}")
