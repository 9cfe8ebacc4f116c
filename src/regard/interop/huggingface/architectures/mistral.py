"""Mistral (`MistralForCausalLM`): Llama's layers without biases, with a sliding window.

`sliding_window` counts as ours does: in a window of W the query at i sees the keys at j with i - j < W.
"""

from regard.errors import UserError
from regard.interop.huggingface.architecture import Architecture
from regard.interop.huggingface.architectures.llama import ROPE_FREQUENCIES, read_model, rules
from regard.interop.huggingface.hf_config import HFConfig
from regard.interop.huggingface.weights import Weights
from regard.model import LanguageModelConfig

_DEFAULT_KV_HEADS, _DEFAULT_WINDOW = 8, 4096  # defaults of transformers
_FULL, _SLIDING = "full_attention", "sliding_attention"


def _read(hf_config: HFConfig, weights: Weights) -> LanguageModelConfig:
    return read_model(hf_config, weights, kv_heads=_key_heads(hf_config), biases=False, pattern=_pattern(hf_config))


def _key_heads(hf_config: HFConfig) -> int:
    """Missing means eight; null means as many as there are heads."""
    named = "num_key_value_heads" in hf_config.values
    return hf_config.integer(
        "num_key_value_heads", hf_config.integer("num_attention_heads") if named else _DEFAULT_KV_HEADS
    )


def _pattern(hf_config: HFConfig) -> str:
    """The window of every layer; null means none. A list of layer types must be the same for all layers."""
    named = "sliding_window" in hf_config.values
    window = (
        None if named and not hf_config.has("sliding_window") else hf_config.integer("sliding_window", _DEFAULT_WINDOW)
    )
    pattern = "full" if window is None else f"sliding({window})"
    kinds = hf_config.values.get("layer_types")
    if kinds is None:
        return pattern
    if not isinstance(kinds, list) or not all(kind in (_FULL, _SLIDING) for kind in kinds):
        raise hf_config.invalid("layer_types", f"a list of {_FULL} and {_SLIDING}")
    other = next((number for number, kind in enumerate(kinds) if kind != kinds[0]), None)
    if other is not None:
        raise UserError(
            f"{hf_config.location}: layer_types has {kinds[0]} for layer 0 and {kinds[other]} for layer {other}, but "
            "regard has one window for all layers; such a model cannot be imported."
        )
    if kinds and (kinds[0] == _FULL) != (window is None):
        shown = "null" if window is None else window
        raise UserError(
            f"{hf_config.location}: layer_types says {kinds[0]} for every layer, but sliding_window is {shown}; "
            "correct one of the two."
        )
    return pattern


MISTRAL = Architecture(
    name="Mistral",
    model_type="mistral",
    class_name="MistralForCausalLM",
    base_class="MistralModel",
    prefix="model.",
    read=_read,
    rules=rules,
    ignored_tensors=(ROPE_FREQUENCIES,),
)
