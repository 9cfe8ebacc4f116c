"""Options that several commands share, and what they mean.

Nothing here or in the commands imports PyTorch before it is needed: help comes at once, and so does what is wrong.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import UserError

if TYPE_CHECKING:
    import torch

    from regard.data.corpus import CorpusConfig

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto: a GPU where there is one.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads for computing on the CPU.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as train.steps=1000.")
]

Temperature = Annotated[
    float | None, typer.Option(min=0, help="Draw words by chance: below 1 likelier ones, above 1 bolder ones.")
]
TopK = Annotated[int | None, typer.Option(min=1, help="Draw among the so many likeliest only.")]
TopP = Annotated[float | None, typer.Option(min=0, max=1, help="Draw among the likeliest with this share together.")]
MinP = Annotated[
    float | None, typer.Option(min=0, max=1, help="Draw among those at least so many times as likely as the likeliest.")
]
Repetition = Annotated[float | None, typer.Option(min=0, help="Above 1: words already written become less likely.")]
Seed = Annotated[int | None, typer.Option(help="The same seed draws the same words.")]
Prefix = Annotated[str, typer.Option(help="What the output begins with.")]
Require = Annotated[list[str] | None, typer.Option(help="A word that the output has; may be given several times.")]
Forbid = Annotated[list[str] | None, typer.Option(help="A word that the output has not; may be given several times.")]
Alternatives = Annotated[int, typer.Option(min=0, help="With --json: so many of the likeliest tokens at every step.")]

Output = Annotated[Path | None, typer.Option(help="Write to this file; until all is done, to its name with .partial.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line, with scores and tokens.")]


class EngineName(StrEnum):
    """What computes."""

    regard = "regard"
    ctranslate2 = "ctranslate2"


class PrecisionName(StrEnum):
    """What models compute in."""

    float32 = "float32"
    bf16 = "bf16"
    int8 = "int8"


Precision = Annotated[
    PrecisionName, typer.Option(help="float32; faster and a little less exact, bf16 on a GPU, int8 on a CPU.")
]
Kernels = Annotated[
    bool | None, typer.Option("--compile/--no-compile", help="Compiled steps; if not given, where they pay.")
]
Engine = Annotated[EngineName, typer.Option(help="What computes: regard, or ctranslate2, quicker on a CPU.")]


def drawing(
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    repetition: float | None,
    seed: int | None,
) -> dict[str, Any]:
    """What was asked for about drawing words by chance, as settings of a search; nothing where nothing was."""
    given = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition": repetition,
        "seed": seed,
    }
    return {name: value for name, value in given.items() if value is not None}


def chosen_device(name: str, threads: int | None) -> "torch.device":
    """The device that is meant, once it is known to be there."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UserError(
            f"--device {name}: there is no such device here; cpu always works, auto takes the best."
        ) from None
    return device


def given_pairs(
    pairs: Path | None, source: Path | None, target: Path | None, second: str, data: str | None = None
) -> "CorpusConfig | None":
    """Pairs from one file or folder, or from two aligned files; None where nothing is given.

    `data` names a data set that these are in.
    """
    if pairs is not None and (source or target):
        raise UserError(f"--pairs and --source/--{second} both name the data; give one of the two.")
    if pairs is None and source is None and target is None:
        if data is not None:
            raise UserError(f"--data names a data set; say which of its files: --pairs, or --source and --{second}.")
        return None
    if pairs is None and (source is None or target is None):
        raise UserError(f"--source and --{second} belong together: two files, line by line the same sentences.")

    from regard.data.corpus import CorpusConfig

    def place(path: Path | None) -> str | None:
        return None if path is None else str(path.absolute() if data is None else path)

    return CorpusConfig(set=data, path=place(pairs), source=place(source), target=place(target))
