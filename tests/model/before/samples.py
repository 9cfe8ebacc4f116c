"""Small models of every kind before the Transformer, for tests of what they have in common."""

from typing import Any

import torch
from torch import Tensor

from regard.model import AUTOREGRESSIVE_MODELS, CausalLMConfig, SequenceConfig
from regard.model.before.ngram.model import NgramLM
from tests.model.small_models import VOCAB_SIZE, ids

SPECIAL = {"pad": 0, "bos": 1, "eos": 2}
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "bidirectional-lm": {
        "LSTM": {"width": 8, "layers": 2},
        "GRU": {"cell": "gru", "width": 6, "layers": 1, "tie_weights": False},
    },
    "bytenet": {
        "plain": {"width": 8, "dilations": (1, 2), "encoder_sets": 1, "decoder_sets": 1},
        "two vocabularies": {"width": 6, "dilations": (2,), "length_offset": 1, "source_vocab_size": 9}
        | {"tie_weights": False},
    },
    "context": {
        "equal weights": {"width": 8, "hidden": 12, "max_length": 20, "mixing": "mean"},
        "learned weights": {"width": 8, "hidden": 12, "max_length": 20, "mixing": "learned", "tie_weights": False},
        "cosine": {"width": 8, "hidden": 12, "max_length": 20, "mixing": "cosine"},
        "queries and keys": {"width": 8, "hidden": 12, "max_length": 20, "layers": 1, "source_vocab_size": 9},
    },
    "convolutional": {
        "plain": {"width": 8, "max_length": 20},
        "two vocabularies": {"width": 6, "hidden": 8, "kernel": 4, "source_vocab_size": 9, "tie_weights": False},
        "kernel of one token": {"width": 8, "encoder_layers": 1, "decoder_layers": 1, "kernel": 1},
    },
    "convolutional-lm": {
        "plain": {"width": 8, "layers": 2, "kernel": 2},
        "dilated": {"width": 6, "hidden": 8, "layers": 3, "kernel": 3, "dilations": (1, 2), "tie_weights": False},
    },
    "deep-att": {
        "plain": {"width": 8, "hidden": 6},
        "two vocabularies": {"width": 6, "hidden": 8, "encoder_layers": 1, "decoder_layers": 1, "source_vocab_size": 9},
    },
    "dnn1": {
        "plain": {"hidden": 12, "max_length": 20},
        "two vocabularies": {"hidden": 12, "max_length": 20, "layers": 3, "source_vocab_size": 9},
    },
    "dnn2": {
        "plain": {"width": 8, "hidden": 12, "max_length": 20},
        "two vocabularies": {"width": 8, "hidden": 12, "max_length": 20, "source_vocab_size": 9, "tie_weights": False},
    },
    "gnmt": {
        "LSTM": {"width": 8},
        "GRU": {"width": 8, "cell": "gru", "layers": 2, "tie_weights": False, "source_vocab_size": 9},
    },
    "ngram": {
        "trigrams": {"order": 3},
        "single tokens": {"order": 1},
    },
    "recurrent": {
        "summary in every step": {"width": 8, "hidden": 12},
        "first states, reversed source": {"width": 8, "hidden": 12, "cell": "lstm", "layers": 2, "reverse_source": True}
        | {"summary_input": "first_state", "source_vocab_size": 9},
    },
    "recurrent-lm": {
        "LSTM": {"width": 8, "layers": 2},
        "GRU": {"cell": "gru", "width": 6, "layers": 1, "tie_weights": False},
    },
    "recurrent-attention": {
        "plain": {"width": 8, "hidden": 12},
        "two vocabularies": {"width": 8, "hidden": 12, "source_vocab_size": 9},
        "Luong": {"width": 8, "hidden": 12, "cell": "lstm", "attention": {"kind": "dot"}, "decoder": {"kind": "luong"}},
    },
    "window-lm": {
        "plain": {"window": 3, "width": 8, "hidden": 12},
        "direct": {"window": 2, "width": 8, "hidden": 8, "direct": True, "tie_weights": True},
    },
}
"""The settings of the samples by kind and name."""


def sample(kind: str, **settings: Any) -> SequenceConfig:
    """A config of this kind for the small vocabulary."""
    config = AUTOREGRESSIVE_MODELS[kind](vocab_size=VOCAB_SIZE, special_tokens=SPECIAL, **settings)  # type: ignore[arg-type]
    assert isinstance(config, SequenceConfig)
    return config


SAMPLES = {kind: {name: sample(kind, **settings) for name, settings in some.items()} for kind, some in SETTINGS.items()}


def build(config: SequenceConfig, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """The model in evaluation mode, with every parameter moved away from its initial value.

    A model of n-grams has counted a random text in which nearly every pair of tokens occurs.
    """
    torch.manual_seed(seed)
    model: Any = config.build()
    if isinstance(model, NgramLM):
        model.fit(torch.randint(config.vocab_size, (600,)).numpy())
    model = model.to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def inputs(config: SequenceConfig, rows: int = 2, tokens: int = 7) -> tuple[Tensor, ...]:
    """Token ids, or source and target ids."""
    if isinstance(config, CausalLMConfig):
        return (ids(rows, tokens, seed=2),)
    size = getattr(config, "source_vocab_size", None) or config.vocab_size
    return ids(rows, max(tokens - 2, 4), size, seed=1), ids(rows, tokens, seed=2)
