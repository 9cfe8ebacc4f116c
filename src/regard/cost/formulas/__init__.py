"""Closed forms: what a model costs as functions of lengths, widths and the vocabulary.

`counted.py` counts any model; what it finds is a number. A formula says why it is that number, and how it grows. There
is a function for each kind of model, in a file for each family of models; tests hold all of them against PyTorch's
FLOP counter, the models' parameters and their decoding states. A model with parts that no formula knows has none.
"""

from collections.abc import Callable
from typing import Any

from regard.cost.formulas.convolutional import bytenet, convolutional, convolutional_lm
from regard.cost.formulas.fixed_window import context, dnn1, dnn2, window
from regard.cost.formulas.ngram import entries, entry_bytes, full_table, full_table_power, ngram
from regard.cost.formulas.parts import Formula
from regard.cost.formulas.recurrent import (
    bidirectional_lm,
    deep_att,
    gnmt,
    recurrent,
    recurrent_attention,
    recurrent_lm,
)
from regard.cost.formulas.transformer import encoder, encoder_decoder, language_model, vision
from regard.model import AnyModelConfig

_FORMULAS: dict[str, Callable[[Any], Formula | None]] = {
    "ngram": ngram,
    "window-lm": window,
    "dnn1": dnn1,
    "dnn2": dnn2,
    "context": context,
    "recurrent": recurrent,
    "recurrent-lm": recurrent_lm,
    "bidirectional-lm": bidirectional_lm,
    "recurrent-attention": recurrent_attention,
    "gnmt": gnmt,
    "deep-att": deep_att,
    "convolutional": convolutional,
    "convolutional-lm": convolutional_lm,
    "bytenet": bytenet,
    "encoder-decoder": encoder_decoder,
    "language-model": language_model,
    "encoder": encoder,
    "vision": vision,
}
"""By the `kind` of a config."""


def formula_of(config: AnyModelConfig) -> Formula | None:
    """The closed form of a model; None if there is none."""
    function = _FORMULAS.get(config.kind)
    return None if function is None else function(config)


__all__ = ["Formula", "entries", "entry_bytes", "formula_of", "full_table", "full_table_power"]
