"""Options that several commands share, and what they mean."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from regard.data.corpus import CorpusConfig
from regard.errors import UserError

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


class EngineName(StrEnum):
    """What computes."""

    regard = "regard"
    ctranslate2 = "ctranslate2"


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


def chosen_device(name: str, threads: int | None) -> torch.device:
    """The device that is meant, once it is known to be there."""
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


def given_pairs(pairs: Path | None, source: Path | None, target: Path | None, second: str) -> CorpusConfig | None:
    """Pairs from one file or folder, or from two aligned files; None where nothing is given."""
    if pairs is not None and (source or target):
        raise UserError(f"--pairs and --source/--{second} both name the data; give one of the two.")
    if pairs is not None:
        return CorpusConfig(path=str(pairs.absolute()))
    if source is None and target is None:
        return None
    if source is None or target is None:
        raise UserError(f"--source and --{second} belong together: two files, line by line the same sentences.")
    return CorpusConfig(source=str(source.absolute()), target=str(target.absolute()))
