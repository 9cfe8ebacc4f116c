"""The Transformer family, each a composition of the same parts described by a typed config."""

import torch
from torch import nn

from regard.errors import UserError
from regard.model.block import NormConfig
from regard.model.embedding import EmbeddingConfig, TokensConfig
from regard.model.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from regard.model.feed_forward import FeedForwardConfig
from regard.model.language_model import LanguageModel, LanguageModelConfig
from regard.model.paper import transformer_base, transformer_big
from regard.model.stack import StackConfig

Model = EncoderDecoder | LanguageModel
ModelConfig = EncoderDecoderConfig | LanguageModelConfig

MODELS: dict[str, type[EncoderDecoderConfig] | type[LanguageModelConfig]] = {
    "encoder-decoder": EncoderDecoderConfig,
    "language-model": LanguageModelConfig,
}
"""Every architecture, by the `kind` its config carries. A new one joins here and is tested with the rest."""


def read_config(values: object, where: str = "") -> ModelConfig:
    """A model's config from plain data, of whichever kind it says it is."""
    kind = values.get("kind") if isinstance(values, dict) else None
    if not isinstance(kind, str) or kind not in MODELS:
        prefix = f"{where}: " if where else ""
        raise UserError(f"{prefix}there is no model of kind {kind!r}; known kinds: {', '.join(MODELS)}.")
    return MODELS[kind].read(values, where)


def build_empty(config: ModelConfig) -> Model:
    """A model whose weights are still to be filled in: no time is spent on random ones, no random number is drawn."""
    with torch.device("meta"):
        model = config.build()
    return model.to_empty(device="cpu")


def count_parameters(model: nn.Module) -> int:
    """How many numbers a model learns; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


__all__ = [
    "MODELS",
    "EmbeddingConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "FeedForwardConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "Model",
    "ModelConfig",
    "NormConfig",
    "StackConfig",
    "TokensConfig",
    "build_empty",
    "count_parameters",
    "read_config",
    "transformer_base",
    "transformer_big",
]
