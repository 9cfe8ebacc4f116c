"""The Transformer family, each model built from the same parts, and the models that came before it (`before/`)."""

from typing import Any, overload

import torch
from torch import nn

from regard.errors import UserError
from regard.model.autoregressive import CausalLM, Seq2SeqLM
from regard.model.before import CAUSAL_MODELS as CAUSAL_BEFORE
from regard.model.before import SEQ2SEQ_MODELS as SEQ2SEQ_BEFORE
from regard.model.before import (
    STATIC_VECTORS,
    CausalLMConfig,
    CausalSequenceModel,
    Seq2SeqConfig,
    SequenceConfig,
    SequenceToSequence,
    StaticVectorsConfig,
)
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
"""Transformers that generate text."""
ModelConfig = EncoderDecoderConfig | LanguageModelConfig
GenerativeConfig = ModelConfig | SequenceConfig

AnyModel = Seq2SeqLM | CausalLM | Encoder | VisionTransformer
AnyModelConfig = GenerativeConfig | EncoderConfig | VisionTransformerConfig

TransformerConfig = ModelConfig | EncoderConfig | VisionTransformerConfig

SEQ2SEQ_MODELS: dict[str, type[GenerativeConfig]] = {"encoder-decoder": EncoderDecoderConfig, **SEQ2SEQ_BEFORE}
"""Architectures that generate a target from a source, by the `kind` of their config."""
CAUSAL_MODELS: dict[str, type[GenerativeConfig]] = {"language-model": LanguageModelConfig, **CAUSAL_BEFORE}
"""Architectures that continue a sequence, by the `kind` of their config."""

TRANSFORMERS: dict[str, type[AnyModelConfig]] = {
    "encoder-decoder": EncoderDecoderConfig,
    "language-model": LanguageModelConfig,
    "encoder": EncoderConfig,
    "vision": VisionTransformerConfig,
}
"""Transformers, by the `kind` of their config."""
AUTOREGRESSIVE_MODELS: dict[str, type[GenerativeConfig]] = {
    "encoder-decoder": EncoderDecoderConfig,
    "language-model": LanguageModelConfig,
    **SEQ2SEQ_BEFORE,
    **CAUSAL_BEFORE,
}
"""Architectures that generate token by token, by the `kind` of their config."""
MODELS: dict[str, Any] = {**TRANSFORMERS, **AUTOREGRESSIVE_MODELS, **STATIC_VECTORS}
"""Every architecture, by the `kind` of its config. A new one is added here and is tested with the rest. Static word
vectors are not `AnyModel`: they are no networks, and have no batches, logits and layers."""


def register_model(config: type[SequenceConfig]) -> type[SequenceConfig]:
    """Add an architecture under the `kind` of its config, so that recipes can name it. Usable as a decorator."""
    kind = config.model_fields["kind"].default
    family = CAUSAL_MODELS if issubclass(config, CausalLMConfig) else SEQ2SEQ_MODELS
    for registry in (family, AUTOREGRESSIVE_MODELS, MODELS):
        if registry.get(kind, config).__qualname__ != config.__qualname__:
            raise UserError(f"There is already a model of kind {kind!r}; choose another name.")
        registry[kind] = config
    return config


def read_config(values: object, where: str = "") -> GenerativeConfig:
    """Read the config of an autoregressive model from plain data; `kind` selects its class."""
    return AUTOREGRESSIVE_MODELS[_kind(values, where, list(AUTOREGRESSIVE_MODELS))].read(values, where)


def read_any_config(values: object, where: str = "") -> AnyModelConfig:
    """Read the config of any model from plain data; `kind` selects its class."""
    config: AnyModelConfig = MODELS[_kind(values, where, list(MODELS))].read(values, where)
    return config


@overload
def build_empty(config: ModelConfig) -> Model: ...
@overload
def build_empty(config: GenerativeConfig) -> Seq2SeqLM | CausalLM: ...
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
    "CAUSAL_MODELS",
    "MODELS",
    "SEQ2SEQ_MODELS",
    "STATIC_VECTORS",
    "TRANSFORMERS",
    "AnyModel",
    "AnyModelConfig",
    "CausalLM",
    "CausalLMConfig",
    "CausalSequenceModel",
    "ClassificationHeadConfig",
    "DensePrefixConfig",
    "EmbeddingConfig",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "EncoderSpecialTokensConfig",
    "FeedForwardConfig",
    "GenerativeConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "MaskedLMHeadConfig",
    "MixtureOfExpertsConfig",
    "Model",
    "ModelConfig",
    "NoHeadConfig",
    "NormConfig",
    "PixelsConfig",
    "Seq2SeqConfig",
    "Seq2SeqLM",
    "SequenceConfig",
    "SequenceToSequence",
    "SpecialTokensConfig",
    "StackConfig",
    "StaticVectorsConfig",
    "TokenClassificationHeadConfig",
    "TransformerConfig",
    "VisionTransformer",
    "VisionTransformerConfig",
    "build_empty",
    "build_meta",
    "count_embedding_parameters",
    "count_parameters",
    "read_any_config",
    "read_config",
    "register_model",
    "transformer_base",
    "transformer_big",
]
