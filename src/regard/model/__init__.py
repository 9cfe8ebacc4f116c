"""The Transformer family: each model is built from the same parts, as its typed config describes."""

from typing import overload

import torch
from torch import nn

from regard.errors import UserError
from regard.model.embedding import EmbeddingConfig, SpecialTokensConfig, TokenEmbedding
from regard.model.encoder import Encoder, EncoderConfig, EncoderSpecialTokensConfig
from regard.model.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from regard.model.feed_forward import FeedForwardConfig
from regard.model.heads import ClassificationHeadConfig, MaskedLMHeadConfig, NoHeadConfig, TokenClassificationHeadConfig
from regard.model.language_model import LanguageModel, LanguageModelConfig
from regard.model.mixture_of_experts import MixtureOfExpertsConfig
from regard.model.presets import transformer_base, transformer_big
from regard.model.stack import DensePrefixConfig, NormConfig, StackConfig
from regard.model.vision_transformer import PixelsConfig, VisionTransformer, VisionTransformerConfig

Model = EncoderDecoder | LanguageModel
"""Models that generate text."""
ModelConfig = EncoderDecoderConfig | LanguageModelConfig

AnyModel = Model | Encoder | VisionTransformer
AnyModelConfig = ModelConfig | EncoderConfig | VisionTransformerConfig

AUTOREGRESSIVE_MODELS: dict[str, type[EncoderDecoderConfig] | type[LanguageModelConfig]] = {
    "encoder-decoder": EncoderDecoderConfig,
    "language-model": LanguageModelConfig,
}
"""Architectures that generate token by token, by the `kind` of their config."""

MODELS: dict[str, type[AnyModelConfig]] = {
    **AUTOREGRESSIVE_MODELS,
    "encoder": EncoderConfig,
    "vision": VisionTransformerConfig,
}
"""Every architecture, by the `kind` of its config. A new one is added here and is tested with the rest."""


def read_config(values: object, where: str = "") -> ModelConfig:
    """Read the config of an autoregressive model from plain data; `kind` selects its class."""
    return AUTOREGRESSIVE_MODELS[_kind(values, where, list(AUTOREGRESSIVE_MODELS))].read(values, where)


def read_any_config(values: object, where: str = "") -> AnyModelConfig:
    """Read the config of any model from plain data; `kind` selects its class."""
    return MODELS[_kind(values, where, list(MODELS))].read(values, where)


@overload
def build_empty(config: ModelConfig) -> Model: ...
@overload
def build_empty(config: AnyModelConfig) -> AnyModel: ...
def build_empty(config: AnyModelConfig) -> AnyModel:
    """A model with uninitialized weights, to be loaded from a file. No random numbers are drawn."""
    return build_meta(config).to_empty(device="cpu")


def build_meta(config: AnyModelConfig) -> AnyModel:
    """A model on the meta device: the names and shapes of its tensors without any memory for them."""
    with torch.device("meta"):
        return config.build()


def count_parameters(model: nn.Module) -> int:
    """The number of parameters; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_embedding_parameters(model: nn.Module) -> int:
    """The number of parameters in token embeddings."""
    return sum(count_parameters(module) for module in model.modules() if isinstance(module, TokenEmbedding))


def _kind(values: object, where: str, known: list[str]) -> str:
    kind = values.get("kind") if isinstance(values, dict) else None
    if isinstance(kind, str) and kind in known:
        return kind
    prefix = f"{where}: " if where else ""
    if isinstance(kind, str) and kind in MODELS:
        raise UserError(f"{prefix}a model of kind {kind!r} does not generate text; expected one of {', '.join(known)}.")
    raise UserError(f"{prefix}there is no model of kind {kind!r}; expected one of {', '.join(known)}.")


__all__ = [
    "AUTOREGRESSIVE_MODELS",
    "MODELS",
    "AnyModel",
    "AnyModelConfig",
    "ClassificationHeadConfig",
    "DensePrefixConfig",
    "EmbeddingConfig",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "EncoderSpecialTokensConfig",
    "FeedForwardConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "MaskedLMHeadConfig",
    "MixtureOfExpertsConfig",
    "Model",
    "ModelConfig",
    "NoHeadConfig",
    "NormConfig",
    "PixelsConfig",
    "SpecialTokensConfig",
    "StackConfig",
    "TokenClassificationHeadConfig",
    "VisionTransformer",
    "VisionTransformerConfig",
    "build_empty",
    "build_meta",
    "count_embedding_parameters",
    "count_parameters",
    "read_any_config",
    "read_config",
    "transformer_base",
    "transformer_big",
]
