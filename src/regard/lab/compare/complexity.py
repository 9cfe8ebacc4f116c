"""What Table 1 of "Attention Is All You Need" compares (Vaswani et al. 2017, §4), for every kind of model here.

The operations of a layer are the leading terms of its formula (`regard.cost.formulas`). Three more functions of the
length n say what an architecture can and cannot do, whatever its training: the sequential steps that a forward pass in
training needs at least, the longest path that a gradient travels between two tokens, counted in layers or steps, and
the receptive field, the tokens that an output can depend on at all. With a source, paths lead from its tokens to those
of the target.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from regard.cost import formula_of
from regard.model import AnyModelConfig


class Count(NamedTuple):
    """A count as text, and as a function of a length and a model's config."""

    text: str
    value: Callable[[int, Any], float]


@dataclass(frozen=True)
class Complexity:
    """What grows with the length n."""

    sequential_steps: Count
    path_length: Count
    receptive_field: Count

    def at(self, length: int, config: AnyModelConfig) -> dict[str, float]:
        """The three counts for a length."""
        return {
            "sequential_steps": self.sequential_steps.value(length, config),
            "path_length": self.path_length.value(length, config),
            "receptive_field": min(self.receptive_field.value(length, config), length),
        }


def complexity_of(config: AnyModelConfig) -> Complexity | None:
    """The counts of a model; None for a kind that is not known here."""
    return _TABLE.get(config.kind)


def operations_per_layer(config: AnyModelConfig) -> str:
    """The order of a layer's operations for n tokens, width d and kernel k."""
    formula = formula_of(config)
    # What has no formula is a Transformer whose attention sees only part of the keys, or is latent attention.
    if formula is None:
        return "at most O(n²·d + n·d²)"
    return formula.order if formula.layer.terms else "none: a table is looked up"


def _spans(config: Any) -> list[int]:
    """How many tokens back each convolution that reads the target sees."""
    if config.kind == "convolutional-lm":
        return [(config.kernel - 1) * config.dilation(layer) for layer in range(config.layers)]
    return [(config.kernel - 1) * int(dilation) for dilation in config.dilations] * int(config.decoder_sets)


def _convolutions(length: int, config: Any) -> float:
    """The fewest convolutions that connect tokens as far apart as the length or the receptive field allows.

    A residual connection leads past the others, so those that see farthest are enough.
    """
    return max(1, _fewest(sorted(_spans(config), reverse=True), length - 1))


def _fewest(spans: Sequence[int], distance: int) -> int:
    covered = 0
    for number, span in enumerate(spans):
        if covered >= distance:
            return number
        covered += span
    return len(spans)


_ONE = Count("1", lambda length, config: 1)
_ALL = Count("n", lambda length, config: length)
_LIMITED = Count("L", lambda length, config: config.max_length)
_EVERYTHING = Count("n", lambda length, config: math.inf)
_CONVOLUTIONS = Count("n/(k − 1); with dilations log n", _convolutions)
_FIELD = Count("1 + (k − 1)·Σ dilations", lambda length, config: 1 + sum(_spans(config)))

_FIXED_LENGTH = Complexity(_ONE, _ONE, _LIMITED)
_RECURRENT = Complexity(_ALL, _ALL, _EVERYTHING)
_RECURRENT_ATTENTION = Complexity(_ALL, _ONE, _EVERYTHING)
_CONVOLUTIONAL = Complexity(_ONE, _CONVOLUTIONS, _FIELD)
_ATTENTION = Complexity(_ONE, _ONE, _EVERYTHING)

_TABLE = {
    "ngram": Complexity(_ONE, _ONE, Count("t", lambda length, config: config.order - 1)),
    "window-lm": Complexity(_ONE, _ONE, Count("k", lambda length, config: config.window)),
    "dnn1": _FIXED_LENGTH,
    "dnn2": _FIXED_LENGTH,
    "context": _FIXED_LENGTH,
    "recurrent-lm": _RECURRENT,
    "bidirectional-lm": _RECURRENT,
    "recurrent": _RECURRENT,
    "recurrent-attention": _RECURRENT_ATTENTION,
    "gnmt": _RECURRENT_ATTENTION,
    "deep-att": _RECURRENT_ATTENTION,
    "convolutional": _ATTENTION,
    "convolutional-lm": _CONVOLUTIONAL,
    "bytenet": _CONVOLUTIONAL,
    "encoder-decoder": _ATTENTION,
    "language-model": _ATTENTION,
    "encoder": _ATTENTION,
    "vision": _ATTENTION,
}
"""A convolutional decoder attends to the whole source from every layer, so its path to a source token is one step."""
