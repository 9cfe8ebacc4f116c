"""Mistral (`MistralForCausalLM`): Llama's layers without biases, in which a token sees the last ones before it only.

Their `sliding_window` counts as ours does: in a window of W the query at i sees the keys at j with i - j < W.
"""

from regard.errors import UserError
from regard.interop.huggingface.family import Family
from regard.interop.huggingface.llama import FREQUENCIES, read_model, rules
from regard.interop.huggingface.settings import Settings
from regard.interop.huggingface.weights import Weights
from regard.model import LanguageModelConfig

_KEY_HEADS, _WINDOW = 8, 4096  # where their settings do not say
_FULL, _SLIDING = "full_attention", "sliding_attention"


def _read(settings: Settings, weights: Weights) -> LanguageModelConfig:
    return read_model(settings, weights, key_heads=_key_heads(settings), biases=False, pattern=_pattern(settings))


def _key_heads(settings: Settings) -> int:
    """Left out there are eight; null means as many as there are heads."""
    named = "num_key_value_heads" in settings.values
    return settings.whole("num_key_value_heads", settings.whole("num_attention_heads") if named else _KEY_HEADS)


def _pattern(settings: Settings) -> str:
    """The window of every layer; null means none. A list of kinds of layers must say the same of all of them."""
    named = "sliding_window" in settings.values
    window = None if named and not settings.has("sliding_window") else settings.whole("sliding_window", _WINDOW)
    pattern = "full" if window is None else f"sliding({window})"
    kinds = settings.values.get("layer_types")
    if kinds is None:
        return pattern
    if not isinstance(kinds, list) or not all(kind in (_FULL, _SLIDING) for kind in kinds):
        raise settings.wrong("layer_types", f"a list of {_FULL} and {_SLIDING}")
    other = next((number for number, kind in enumerate(kinds) if kind != kinds[0]), None)
    if other is not None:
        raise UserError(
            f"{settings.where}: by layer_types layer 0 has {kinds[0]} and layer {other} has {kinds[other]}, but regard "
            "has one window for all layers; a model like that cannot be imported."
        )
    if kinds and (kinds[0] == _FULL) != (window is None):
        spelled = "null" if window is None else window
        raise UserError(
            f"{settings.where}: layer_types says {kinds[0]} for every layer, but sliding_window is {spelled}; "
            "change the one that is not meant."
        )
    return pattern


MISTRAL = Family(
    name="Mistral",
    kind="mistral",
    architecture="MistralForCausalLM",
    bare="MistralModel",
    prefix="model.",
    read=_read,
    rules=rules,
    harmless=(FREQUENCIES,),
)
