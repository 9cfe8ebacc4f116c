"""What Table 1 of "Attention Is All You Need" compares (Vaswani et al. 2017, §4), for every kind of model here.

Three functions of the length n say what an architecture can and cannot do, whatever its training: the sequential steps
that a forward pass in training needs at least, the longest path between two tokens that a gradient travels, and the
receptive field, the tokens that an output can depend on at all.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Settings = Mapping[str, Any]
Count = Callable[[int, Settings], float]


@dataclass(frozen=True)
class Complexity:
    """The cost of a layer, and what grows with the length n."""

    per_layer: str
    """Operations of a layer: n tokens, width d, kernel k, window m, vocabulary V."""
    sequential_steps: Count
    path_length: Count
    receptive_field: Count

    def at(self, length: int, settings: Settings) -> dict[str, float]:
        """The three counts for a length."""
        return {
            "sequential_steps": self.sequential_steps(length, settings),
            "path_length": self.path_length(length, settings),
            "receptive_field": min(self.receptive_field(length, settings), length),
        }


def complexity_of(settings: Settings) -> Complexity | None:
    """The row of a model by the `kind` in its settings; None for an unknown kind."""
    kind = str(settings.get("kind", "encoder-decoder"))
    if kind == "context" and settings.get("mixing", "query_key") not in ("mean", "learned"):
        return _PAIRWISE_MIXING
    return _TABLE.get(kind)


def _one(length: int, settings: Settings) -> float:
    return 1


def _all(length: int, settings: Settings) -> float:
    return length


def _number(settings: Settings, *names: str, default: int) -> int:
    """The first of these settings that is a number, also inside a table of the decoder or the encoder."""
    for table in (settings, settings.get("decoder"), settings.get("encoder")):
        for name in names:
            value = table.get(name) if isinstance(table, Mapping) else None
            if type(value) is int:
                return value
            if isinstance(value, list | tuple) and value:
                return len(value)
    return default


def _window(length: int, settings: Settings) -> float:
    return _number(settings, "window", "order", "max_length", "context", default=length)


def _order(length: int, settings: Settings) -> float:
    return _number(settings, "order", default=3) - 1


def _layers_of(settings: Settings) -> int:
    return _number(settings, "layers", default=1)


def _kernel(settings: Settings) -> int:
    return _number(settings, "kernel", "kernel_size", default=3)


def _convolution_field(length: int, settings: Settings) -> float:
    return 1 + _layers_of(settings) * (_kernel(settings) - 1)


def _dilated_field(length: int, settings: Settings) -> float:
    dilations = settings.get("dilations") or (1, 2, 4, 8, 16)
    repeats = _number(settings, "sets", "repeats", "blocks", default=1)
    return 1 + repeats * (_kernel(settings) - 1) * sum(dilations)


def _stack_path(length: int, settings: Settings) -> float:
    reach = min(length, _convolution_field(length, settings))
    return max(1, math.ceil((reach - 1) / max(_kernel(settings) - 1, 1)))


def _logarithm(length: int, settings: Settings) -> float:
    return max(1, math.ceil(math.log(max(length, 2), max(_kernel(settings), 2))))


_WINDOW = Complexity("O(m · d²)", _one, _one, _window)
_MIXING = Complexity("O(n · d)", _one, _one, _window)
_PAIRWISE_MIXING = Complexity("O(n² · d)", _one, _one, _window)
_RECURRENT = Complexity("O(n · d²)", _all, _all, _all)
_RECURRENT_ATTENTION = Complexity("O(n · d² + n² · d)", _all, _one, _all)
_SELF_ATTENTION = Complexity("O(n² · d + n · d²)", _one, _one, _all)

_TABLE = {
    "ngram": Complexity("O(1): a table of up to Vⁿ entries", _one, _one, _order),
    "window-lm": Complexity("O(n · m · d²)", _one, _one, _window),
    "dnn1": Complexity("O(m · V · d)", _one, _one, _window),
    "dnn2": _WINDOW,
    "context": _MIXING,
    "recurrent-lm": _RECURRENT,
    "recurrent": _RECURRENT,
    "recurrent-attention": _RECURRENT_ATTENTION,
    "gnmt": _RECURRENT_ATTENTION,
    "deep-att": _RECURRENT_ATTENTION,
    "convolutional": Complexity("O(k · n · d²)", _one, _one, _all),
    "convolutional-lm": Complexity("O(k · n · d²)", _one, _stack_path, _convolution_field),
    "bytenet": Complexity("O(k · n · d²)", _one, _logarithm, _dilated_field),
    "encoder-decoder": _SELF_ATTENTION,
    "language-model": _SELF_ATTENTION,
}
"""A convolutional decoder attends to the whole source from every layer, so its path to a source token is one step; its
own field over the target is 1 + L(k − 1)."""
