"""RoPE parameters in the two forms of config.json, and which of our scalings each `rope_type` is.

Newer files have one object, `rope_parameters`, with `rope_type` and `rope_theta` in it; older ones have `rope_theta`
beside an object `rope_scaling` whose type may be called `type`. If a file has both, `rope_scaling` counts, as in
transformers.
"""

import math
from collections.abc import Callable

from regard.attention import DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, YarnScaling
from regard.attention.positions.rotary import AnyScaling
from regard.errors import UserError
from regard.interop.huggingface.hf_config import HFConfig


def read_rotary(hf_config: HFConfig) -> tuple[float, AnyScaling | None]:
    """RoPE's theta, and how its frequencies are scaled for longer texts, if they are."""
    table = rotary_table(hf_config)
    for each in (hf_config, table):
        each.require("partial_rotary_factor", 1, "RoPE rotates every feature of a head")
    nested = next((key for key, value in table.values.items() if isinstance(value, dict)), None)
    if nested is not None:
        raise UserError(
            f"{table.location} gives {nested} its own RoPE parameters, but regard has the same in every layer; "
            "such a model cannot be imported."
        )
    base = table.number("rope_theta") if table.has("rope_theta") else hf_config.number("rope_theta", 10_000.0)
    read = table.choice("rope_type" if table.has("rope_type") else "type", ROPE_TYPES, "default")
    return base, read(table, hf_config)


def rotary_table(hf_config: HFConfig) -> HFConfig:
    """The object with the RoPE parameters; empty if there is none."""
    return hf_config.table("rope_scaling") or hf_config.table("rope_parameters") or HFConfig({}, hf_config.location)


def yarn_scale(factor: float, mscale: float = 1.0) -> float:
    """YaRN's factor on the attention logits for this stretch of the context (transformers' `get_mscale`)."""
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def _default(table: HFConfig, hf_config: HFConfig) -> AnyScaling | None:
    return None


def _linear(table: HFConfig, hf_config: HFConfig) -> AnyScaling | None:
    return LinearScaling(factor=table.number("factor"))


def _dynamic(table: HFConfig, hf_config: HFConfig) -> AnyScaling | None:
    """The original length is max_position_embeddings, whatever the object says."""
    return DynamicScaling(factor=table.number("factor"), original_max_length=_max_length(hf_config))


def _yarn(table: HFConfig, hf_config: HFConfig) -> AnyScaling | None:
    factor, trained = _factor(table, hf_config), _original_length(table, hf_config)
    return YarnScaling(
        factor=factor,
        original_max_length=trained,
        beta_fast=table.number("beta_fast", 32.0) or 32.0,
        beta_slow=table.number("beta_slow", 1.0) or 1.0,
        attention_factor=_yarn_attention_factor(table, factor),
        truncate=table.flag("truncate", True),
    )


def _yarn_attention_factor(table: HFConfig, factor: float) -> float | None:
    """The factor on cosine and sine, unless it is left to the paper's formula.

    `mscale` and `mscale_all_dim` together (DeepSeek) give the quotient of two such formulas.
    """
    if table.has("attention_factor"):
        return table.number("attention_factor")
    above, below = table.number("mscale", 0.0), table.number("mscale_all_dim", 0.0)
    if not (above and below):
        return None
    return yarn_scale(factor, above) / yarn_scale(factor, below)


def _longrope(table: HFConfig, hf_config: HFConfig) -> AnyScaling | None:
    factor, trained = _factor(table, hf_config), _original_length(table, hf_config)
    attention_factor = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 and trained > 1 else 1.0
    return LongRopeScaling(
        short_factors=table.numbers("short_factor"),
        long_factors=table.numbers("long_factor"),
        original_max_length=trained,
        attention_factor=table.number("attention_factor", attention_factor),
    )


def _llama3(table: HFConfig, hf_config: HFConfig) -> AnyScaling | None:
    low, high = table.number("low_freq_factor"), table.number("high_freq_factor")
    if high <= low:
        raise table.invalid("high_freq_factor", f"more than low_freq_factor, which is {low:g}")
    return Llama3Scaling(
        factor=table.number("factor"),
        original_max_length=_original_length(table, hf_config),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _max_length(hf_config: HFConfig) -> int:
    return hf_config.integer("max_position_embeddings", 2048)


def _original_length(table: HFConfig, hf_config: HFConfig) -> int:
    """The original context length: transformers looks beside the object first, then in it."""
    key = "original_max_position_embeddings"
    return hf_config.integer(key) if hf_config.has(key) else table.integer(key, _max_length(hf_config))


def _factor(table: HFConfig, hf_config: HFConfig) -> float:
    """The factor of the stretch; if it is missing, it follows from the two lengths."""
    factor = table.number("factor", _max_length(hf_config) / _original_length(table, hf_config))
    if factor <= 0:
        raise table.invalid("factor", "a number above 0")
    return factor


ROPE_TYPES: dict[str, Callable[[HFConfig, HFConfig], AnyScaling | None]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}
"""Every supported `rope_type`."""
