"""The Transformer family, each a composition of the same parts described by a typed config."""

from typing import overload

import torch
from torch import nn

from regard.errors import UserError
from regard.model.block import NormConfig
from regard.model.embedding import EmbeddingConfig, TokensConfig, Vocabulary
from regard.model.encoder import Encoder, EncoderConfig, EncoderTokensConfig
from regard.model.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from regard.model.feed_forward import ExpertsConfig, FeedForwardConfig
from regard.model.language_model import LanguageModel, LanguageModelConfig
from regard.model.paper import transformer_base, transformer_big
from regard.model.readout import ClassifyConfig, FillConfig, NoHeadConfig, TagConfig
from regard.model.stack import FirstConfig, StackConfig
from regard.model.vision import PixelsConfig, VisionTransformer, VisionTransformerConfig

Model = EncoderDecoder | LanguageModel
"""Those that write."""
ModelConfig = EncoderDecoderConfig | LanguageModelConfig

AnyModel = Model | Encoder | VisionTransformer
AnyModelConfig = ModelConfig | EncoderConfig | VisionTransformerConfig

WRITERS: dict[str, type[EncoderDecoderConfig] | type[LanguageModelConfig]] = {
    "encoder-decoder": EncoderDecoderConfig,
    "language-model": LanguageModelConfig,
}
"""Architectures that write word after word, by the `kind` their config carries."""

MODELS: dict[str, type[AnyModelConfig]] = {
    **WRITERS,
    "encoder": EncoderConfig,
    "vision": VisionTransformerConfig,
}
"""Every architecture, by the `kind` its config carries. A new one joins here and is tested with the rest."""


def read_config(values: object, where: str = "") -> ModelConfig:
    """The config of a model that writes, from plain data, of whichever kind it says it is."""
    return WRITERS[_kind(values, where, list(WRITERS))].read(values, where)


def read_any_config(values: object, where: str = "") -> AnyModelConfig:
    """A model's config from plain data, of whichever kind it says it is."""
    return MODELS[_kind(values, where, list(MODELS))].read(values, where)


@overload
def build_empty(config: ModelConfig) -> Model: ...
@overload
def build_empty(config: AnyModelConfig) -> AnyModel: ...
def build_empty(config: AnyModelConfig) -> AnyModel:
    """A model whose weights are still to be filled in: no time is spent on random ones, no random number is drawn."""
    with torch.device("meta"):
        model = config.build()
    return model.to_empty(device="cpu")


def count_parameters(model: nn.Module) -> int:
    """How many numbers a model learns; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_table_parameters(model: nn.Module) -> int:
    """How many of them are in tables of word vectors."""
    return sum(count_parameters(part) for part in model.modules() if isinstance(part, Vocabulary))


def _kind(values: object, where: str, known: list[str]) -> str:
    kind = values.get("kind") if isinstance(values, dict) else None
    if isinstance(kind, str) and kind in known:
        return kind
    prefix = f"{where}: " if where else ""
    if isinstance(kind, str) and kind in MODELS:
        raise UserError(
            f"{prefix}a model of kind {kind!r} does not write; kinds that can be used here: {', '.join(known)}."
        )
    raise UserError(f"{prefix}there is no model of kind {kind!r}; known kinds: {', '.join(known)}.")


__all__ = [
    "MODELS",
    "WRITERS",
    "AnyModel",
    "AnyModelConfig",
    "ClassifyConfig",
    "EmbeddingConfig",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "EncoderTokensConfig",
    "ExpertsConfig",
    "FeedForwardConfig",
    "FillConfig",
    "FirstConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "Model",
    "ModelConfig",
    "NoHeadConfig",
    "NormConfig",
    "PixelsConfig",
    "StackConfig",
    "TagConfig",
    "TokensConfig",
    "VisionTransformer",
    "VisionTransformerConfig",
    "build_empty",
    "count_parameters",
    "count_table_parameters",
    "read_any_config",
    "read_config",
    "transformer_base",
    "transformer_big",
]
