"""Options that several commands share.

Neither this module nor the commands import PyTorch before it is needed, so that help and usage errors appear at once.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import UserError

if TYPE_CHECKING:
    import torch

    from regard.data.text.corpus import CorpusConfig


class Engine(StrEnum):
    """The inference engine."""

    regard = "regard"
    ctranslate2 = "ctranslate2"


class Dtype(StrEnum):
    """The precision that a model computes in."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    int8 = "int8"


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A run folder, a checkpoint (RUN@last, RUN@best, RUN@STEP), or a pretrained model: en-tr.",
    ),
]
DeviceOption = Annotated[
    str, typer.Option(help="The device to compute on: cpu, cuda, cuda:1, mps, or auto, a GPU if there is one.")
]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="The number of CPU threads to compute with.")]
OverridesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting, such as train.steps=1000; `regard settings` explains all. Repeatable.",
    ),
]
BeamSizeOption = Annotated[
    int | None,
    typer.Option(min=1, max=1000, help="Beam size of beam search; 1 is greedy search. Default: the model's own."),
]
DecodeOverridesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a decoding setting: decode.beam_size=8; `regard settings decode` explains all. Repeatable.",
    ),
]
MinLengthOption = Annotated[
    int | None, typer.Option(min=0, help="Minimum length of an output, in tokens. Default: the model's own.")
]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(min=0, help="Length penalty (alpha) of beam search: above 0, longer outputs are favored."),
]
NoRepeatNgramOption = Annotated[
    int | None,
    typer.Option(
        min=0, help="No-repeat n-gram size: no n-gram of this many tokens occurs twice in an output; 0 is no limit."
    ),
]
SplitOption = Annotated[
    bool | None,
    typer.Option(
        "--split/--no-split", help="Sentence splitting: split lines into sentences, or translate each as it is."
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        min=0, max=1000, help="Sampling temperature: below 1, likely tokens are favored; 0 takes the most likely one."
    ),
]
TopKOption = Annotated[
    int | None, typer.Option(min=1, max=10_000_000, help="Top-k sampling: sample from the k most likely tokens only.")
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, help="Nucleus sampling (top-p): sample from the most likely tokens with this total probability."
    ),
]
MinPOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Min-p sampling: sample from tokens at least this many times as likely as the most likely one.",
    ),
]
RepetitionPenaltyOption = Annotated[
    float | None,
    typer.Option(
        min=0, max=1000, help="Repetition penalty of sampling: above 1, tokens already generated become less likely."
    ),
]
SeedOption = Annotated[int | None, typer.Option(help="Random seed of sampling: the same seed gives the same output.")]
PrefixOption = Annotated[str, typer.Option(help="Prefix constraint: text that the output begins with.")]
RequireOption = Annotated[
    list[str] | None, typer.Option(help="Lexical constraint: a word that the output must contain. Repeatable.")
]
ForbidOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Negative constraint: a text that must not occur in the output, not even inside a word. Repeatable."
    ),
]
AlternativesOption = Annotated[
    int,
    typer.Option(
        min=0,
        max=1000,
        help="Alternatives (top-k tokens): with --json, the number of most likely tokens to report at every step.",
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        readable=False, help="Output file instead of standard output; until it is complete, its name ends in .partial."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON output: print one object per line.")]
DtypeOption = Annotated[
    Dtype,
    typer.Option(
        help="The dtype to compute in: float32; or faster and slightly less precise, bfloat16 on a GPU, int8 on a CPU."
    ),
]
FusedOption = Annotated[
    bool | None,
    typer.Option(
        "--fused/--no-fused",
        help="Use fused kernels, or plain PyTorch. Default: fused kernels if they are worth compiling.",
    ),
]
EngineOption = Annotated[
    Engine, typer.Option(help="The inference engine: regard, or ctranslate2 (CTranslate2 must be installed).")
]


def sampling_settings(
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    repetition_penalty: float | None,
    seed: int | None,
) -> dict[str, Any]:
    """The sampling options that were given, as keys of a `DecodeConfig`."""
    options = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
    }
    return {name: value for name, value in options.items() if value is not None}


def select_device(name: str, threads: int | None) -> "torch.device":
    """The device of this name, checked to be available."""
    import torch

    from regard.kernels.cpu.threads import check_threads

    if threads is not None:
        torch.set_num_threads(check_threads(threads, "--threads"))
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UserError(
            f"--device {name}: this device is not available; cpu always is, and auto selects the best."
        ) from None
    return device


def parallel_corpus(
    pairs: Path | None, source: Path | None, target: Path | None, target_option: str, dataset: str | None = None
) -> "CorpusConfig | None":
    """Sentence pairs from one file or folder, or from two aligned files; None if no option was given.

    `target_option` is the name of the option for the target side; `dataset` names the dataset that the files are in.
    """
    if pairs is not None and (source or target):
        raise UserError(f"--pairs and --source/--{target_option} both name the data; give one of the two.")
    if pairs is None and source is None and target is None:
        if dataset is not None:
            raise UserError(
                f"--dataset {dataset}: also name the files in it, with --pairs, or --source and --{target_option}."
            )
        return None
    if pairs is None and (source is None or target is None):
        raise UserError(f"--source and --{target_option} belong together: two files with aligned lines.")

    from regard.data.text.corpus import CorpusConfig

    def as_string(path: Path | None) -> str | None:
        return None if path is None else str(path.absolute() if dataset is None else path)

    return CorpusConfig(dataset=dataset, path=as_string(pairs), source=as_string(source), target=as_string(target))
