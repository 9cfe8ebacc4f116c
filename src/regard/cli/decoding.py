"""Helpers of the commands that decode (`translate`, `generate`, `parse`, `score`)."""

import difflib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from regard.cli.options import Dtype, Engine, select_device
from regard.errors import UserError

if TYPE_CHECKING:
    import torch

    from regard.decode import Constraints, DecodeConfig
    from regard.task.backend import Backend


def check_alternatives(alternatives: int, as_json: bool) -> None:
    if alternatives and not as_json:
        raise UserError("--alternatives are printed in JSON only; add --json.")


def decode_changes(
    overrides: Sequence[str] | None,
    *,
    length_penalty: float | None = None,
    **options: int | None,
) -> dict[str, Any]:
    """The decoding settings given on the command line, as options for `DecodeConfig.with_options`.

    `options` are those with an option of their own, or None; they count more than the same setting in `overrides`
    (--set).
    """
    from regard.decode import DecodeConfig
    from regard.task.recipe_io import apply_override

    values: dict[str, Any] = {}
    for override in overrides or ():
        key = override.partition("=")[0].strip()
        if not key.startswith("decode."):
            near = difflib.get_close_matches(key.rpartition(".")[2], list(DecodeConfig.model_fields), n=1)
            raise UserError(
                f"--set {override}: only decoding settings can be set here, such as "
                f"decode.{near[0] if near else 'beam_size'}."
            )
        values = apply_override(values, override)
    changes: dict[str, Any] = values.get("decode", {})
    changes |= {key: value for key, value in options.items() if value is not None}
    if length_penalty is not None:
        table = changes.get("length_penalty")
        changes["length_penalty"] = (table if isinstance(table, dict) else {}) | {"alpha": length_penalty}
    return changes


def change_decode(config: "DecodeConfig", changes: dict[str, Any]) -> "DecodeConfig":
    """The settings with changes from the command line."""
    try:
        return config.with_options(changes)
    except UserError as error:
        raise UserError(f"decode.{error}") from None


def configure_backend(backend: "Backend[Any]", fused: bool | None, dtype: Dtype) -> None:
    """Set kernels and dtype, or refuse what this model or device does not support."""
    backend.configure(dtype.value, fused)


def announce_compilation(backend: "Backend[Any]", inputs: int) -> None:
    """Explain the wait if kernels are about to be compiled for the first time on this machine."""
    if backend.uses_fused(inputs) and not backend.is_compiled():
        device = "GPU" if backend.on_cuda else "CPU"
        avoid = "" if backend.precision == "int8" else " (avoid it with --no-fused)"
        print(f"Compiling fused {device} kernels, once; this takes a few seconds{avoid}.", file=sys.stderr)


def check_engine(engine: Engine, processes: int | None) -> None:
    """Refuse several processes with CTranslate2."""
    from regard.train.distributed.process_group import world_size

    if engine is Engine.ctranslate2 and (processes or world_size()) > 1:
        raise UserError("CTranslate2 distributes the work over threads itself; leave out --processes, or --engine.")


def ctranslate2_device(device: str, threads: int | None, seed: int | None) -> "torch.device":
    """The device to use: CTranslate2 knows cpu and cuda. It has no seed per line, so seeds are refused."""
    if seed is not None:
        raise UserError(
            "CTranslate2 cannot sample with a seed for each line; leave out --seed, or use --engine regard."
        )
    selected = select_device(device, threads)
    return select_device("cpu", threads) if device == "auto" and selected.type != "cuda" else selected


def check_ctranslate2(
    decode: "DecodeConfig", constraints: "Constraints", alternatives: int, fused: bool | None, dtype: Dtype
) -> None:
    """Refuse what CTranslate2 cannot do, and report how its search differs from ours."""
    from regard.task.translation.ctranslate2 import check_possible, differs

    if fused is not None or dtype is not Dtype.float32:
        raise UserError("CTranslate2 has its own kernels; leave out --fused and --dtype, or use --engine regard.")
    check_possible(decode, constraints, alternatives)
    if difference := differs(decode):
        print(difference, file=sys.stderr)
