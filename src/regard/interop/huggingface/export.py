"""Export a run folder as a Hugging Face folder, which transformers opens without code of ours.

The rules that import an architecture's weights are applied in reverse. Whether a model fits an architecture is not
decided by a list of conditions: its config.json is written and read back as an import would read it, and whatever then
differs has no counterpart there and is named. So an exported model is one that an import gives back.

A translator trained here is pre-norm with sinusoidal positions. That is Pegasus, except that its sinusoids are in
halves (all sines before all cosines) where ours are interleaved. The features of a model have no order of their own, so
they are permuted in every tensor they occur in, and nothing else changes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from regard.attention import LatentAttentionConfig, LearnedConfig, SinusoidalConfig
from regard.config import ConfigError
from regard.errors import UserError
from regard.files import check_new_folder, new_folder
from regard.interop.huggingface.architecture import Architecture, complete_config, drop_unused_bos
from regard.interop.huggingface.architectures.bart import BART
from regard.interop.huggingface.architectures.bert import (
    BERT,
    BERT_MASKED_LM,
    BERT_SEQUENCE_CLASSIFICATION,
    BERT_TOKEN_CLASSIFICATION,
    LM_HEAD_BIAS,
    LM_HEAD_DECODER_BIAS,
)
from regard.interop.huggingface.architectures.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from regard.interop.huggingface.architectures.encoder_decoder import (
    DECODER_EMBEDDING,
    ENCODER_EMBEDDING,
    LM_HEAD,
    SHARED_EMBEDDING,
)
from regard.interop.huggingface.architectures.gpt2 import GPT2
from regard.interop.huggingface.architectures.llama import LLAMA
from regard.interop.huggingface.architectures.marian import MARIAN
from regard.interop.huggingface.architectures.mistral import MISTRAL
from regard.interop.huggingface.architectures.pegasus import HALVES, PEGASUS
from regard.interop.huggingface.architectures.vit import VIT, VIT_CLASSIFICATION, qkv_biases
from regard.interop.huggingface.export_config import (
    CONFIG_WRITERS,
    POSITIONS,
    generation_config,
    imported_config,
    no_counterpart,
)
from regard.interop.huggingface.export_tokenizer import write_tokenizers
from regard.interop.huggingface.feature_order import residual_axes
from regard.interop.huggingface.hf_config import HFConfig
from regard.interop.huggingface.image_processor import ImageProcessor, each_channel, image_processor_config
from regard.interop.huggingface.importer import ARCHITECTURES, describe
from regard.interop.huggingface.mapping import stack_configs
from regard.interop.huggingface.sentence_transformers import write_sentence
from regard.interop.huggingface.weights import HEADS, Weights, write_json
from regard.model import (
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageModelConfig,
    MixtureOfExpertsConfig,
    SequenceConfig,
    StaticVectorsConfig,
    TransformerConfig,
    VisionTransformerConfig,
    build_empty,
    read_any_config,
)
from regard.model.stack import AnyFeedForward
from regard.run import LoadedModel, find_model, load_model
from regard.run.tensors import write_tensors

_TRAINING_ONLY = ("dropout", "aux_loss", "bias_update_rate")
"""Settings that do not change what a trained model computes."""


def export_huggingface(folder: Path | str, out: Path | str) -> str:
    """Export a model for transformers; returns a sentence that says as which class.

    A model that no architecture fits exactly is refused with the setting that has no counterpart.
    """
    source, out = find_model(folder), Path(out)
    check_new_folder(out)
    loaded = load_model(folder)
    origin = loaded.origin
    if isinstance(loaded.config, SequenceConfig | StaticVectorsConfig):
        raise UserError(
            f"{source} is a model of kind {loaded.config.kind!r}, which transformers does not have; only Transformers "
            "can be exported."
        )
    architecture = _architecture(loaded.config, origin)
    _check_layer_kinds(architecture, loaded.config)
    config, tensors = _prepare(architecture, loaded)
    imported = _imported(origin, architecture)
    write_config = CONFIG_WRITERS[architecture.model_type]
    hf_config = imported_config(architecture, origin, config) if imported else write_config(config)
    hf_config |= {"architectures": [architecture.class_name], "model_type": architecture.model_type}
    other_files = dict(origin) if imported else _other_files(config, hf_config, origin)
    hf_tensors = _to_hf(architecture, config, hf_config, tensors)
    _drop_zero_qkv_biases(config, hf_config, hf_tensors)
    completed = complete_config(hf_config, other_files)
    _check_round_trip(architecture, config, completed, hf_tensors, source, loaded.tokenizer if imported else None)
    assert not set(tensors) - {name for rule in architecture.rules(config) for name in rule.ours}, (
        "a tensor has no rule"
    )
    with new_folder(out) as new:
        write_json(new / "config.json", hf_config)
        for key, name in (("generation", "generation_config.json"), ("preprocessor", "preprocessor_config.json")):
            if other_files.get(key):
                write_json(new / name, other_files[key])
        if other_files.get("sentence"):
            write_sentence(new, other_files["sentence"])
        write_tensors(new / "model.safetensors", _prefixed(architecture, config, hf_tensors))
        write_tokenizers(new, loaded, completed, imported)
    return f"exported as {architecture.class_name} {describe(loaded.model, loaded.tokenizer is not None)}."


def _other_files(config: TransformerConfig, hf_config: Mapping[str, Any], origin: Mapping[str, Any]) -> dict[str, Any]:
    """What goes into the files beside config.json, for a model that was not imported."""
    if isinstance(config, VisionTransformerConfig):
        return {
            "preprocessor": image_processor_config(ImageProcessor(config.size, pixels=config.pixels), config.channels)
        }
    return {} if isinstance(config, EncoderConfig) else {"generation": generation_config(hf_config, origin)}


# The architecture


def _architecture(config: TransformerConfig, origin: Mapping[str, Any]) -> Architecture:
    """The architecture a model was imported from, or the one that is nearest to it."""
    for architecture in (*ARCHITECTURES, PEGASUS):
        if _imported(origin, architecture):
            return architecture
    match config:
        case VisionTransformerConfig():
            return VIT_CLASSIFICATION if config.classes else VIT
        case EncoderConfig():
            return {
                "masked_lm": BERT_MASKED_LM,
                "classification": BERT_SEQUENCE_CLASSIFICATION,
                "token_classification": BERT_TOKEN_CLASSIFICATION,
            }.get(config.head.kind, BERT)
        case LanguageModelConfig():
            if isinstance(config.decoder.attention, LatentAttentionConfig):
                return DEEPSEEK_V2 if _is_like_v2(config.decoder.feed_forward) else DEEPSEEK_V3
            if config.decoder.norm.kind != "rms":
                return GPT2
            return LLAMA if config.decoder.attention.pattern == "full" else MISTRAL
    if config.decoder.norm_position != "post":
        return PEGASUS
    return BART if isinstance(config.position, LearnedConfig) else MARIAN


def _is_like_v2(config: AnyFeedForward) -> bool:
    """V2's router is a softmax; and without experts, only V2 may have biases."""
    return config.router == "softmax" if isinstance(config, MixtureOfExpertsConfig) else config.bias


def _imported(origin: Mapping[str, Any], architecture: Architecture) -> bool:
    from_hf = origin.get("library") == "huggingface" and isinstance(origin.get("config"), dict)
    return from_hf and origin.get("architecture") == architecture.class_name


def _check_layer_kinds(architecture: Architecture, config: TransformerConfig) -> None:
    """Refuse kinds of layers that an architecture lacks: only DeepSeek has latent attention and experts."""
    deep = architecture in (DEEPSEEK_V2, DEEPSEEK_V3)
    for name, stack in stack_configs(config).items():
        for key, kind, expected in (
            ("attention.kind", stack.attention.kind, "latent" if deep else "multi_head"),
            ("feed_forward.kind", stack.feed_forward.kind, stack.feed_forward.kind if deep else "dense"),
            ("dense_prefix.layers", 0 if stack.dense_prefix is None or deep else stack.dense_prefix.layers, 0),
        ):
            if kind != expected:
                raise no_counterpart(f"{name}.{key}", kind, architecture.name, f"; there it is always {expected!r}")


def _check_round_trip(
    architecture: Architecture,
    config: TransformerConfig,
    hf_config: dict[str, Any],
    hf_tensors: dict[str, Tensor],
    source: Path,
    tokenizer: Tokenizer | None,
) -> None:
    """Read what was written as an import would, and refuse the model if a different one would come back."""
    weights = Weights([], architecture.prefix)
    for name, tensor in hf_tensors.items():
        weights.put(name, tensor)
    try:
        back: Any = drop_unused_bos(architecture.read(HFConfig(hf_config, "config.json"), weights), tokenizer)
    except ConfigError as error:
        raise UserError(f"{source} cannot be exported as {architecture.name}: {error}") from None
    ours, imported = _flat(_with_sizes(config)), _flat(_with_sizes(back))
    different = [key for key in {**ours, **imported} if ours.get(key) != imported.get(key)]
    if different:
        key = min(different, key=lambda one: not one.endswith("kind"))
        raise no_counterpart(key, ours.get(key), architecture.name, f"; there it is always {imported.get(key)!r}")


def _with_sizes(config: TransformerConfig) -> dict[str, Any]:
    """The settings that decide what a model computes, with default sizes filled in."""
    values = config.plain()
    for name, stack in stack_configs(config).items():
        sizes = stack.attention.sizes(config.width)
        widths = {"kv_heads": sizes.kv_heads, "head_dim": sizes.head_dim, "value_head_dim": sizes.value_head_dim}
        values[name]["attention"] |= widths
        values[name]["norm"]["bias"] |= stack.norm.kind == "rms"  # which has none in any case
        if values[name]["feed_forward"].get("groups") == 1:  # then it does not matter how groups are compared
            values[name]["feed_forward"] |= {"group_score": "max", "top_groups": 1}
    if isinstance(config, VisionTransformerConfig):
        values["pixels"] = {key: each_channel(value, config.channels) for key, value in values["pixels"].items()}
    return values


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys and their values, without what only matters in training."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        elif key not in _TRAINING_ONLY:
            flat[f"{prefix}{key}"] = value
    return flat


# Weights


def _prepare(architecture: Architecture, loaded: LoadedModel) -> tuple[TransformerConfig, dict[str, Tensor]]:
    """The same model with every bias and at least one token type (new ones are zero), and with sinusoids in halves.

    For V3 experts balanced by a loss get an expert bias, which is zero too.
    """
    config, tensors = loaded.config, dict(loaded.model.state_dict())
    values = config.plain()
    if architecture not in (LLAMA, MISTRAL, DEEPSEEK_V2, DEEPSEEK_V3):  # whose config says which biases there are
        _set_biases(values)
    if architecture is DEEPSEEK_V3 and isinstance(config, LanguageModelConfig):
        _set_expert_bias(values["decoder"]["feed_forward"])
    if architecture.model_type == "bert":
        values["token_types"] = max(1, values["token_types"])
    if isinstance(config.position, SinusoidalConfig) and config.position.layout == "interleaved":
        order = torch.cat((torch.arange(0, config.width, 2), torch.arange(1, config.width, 2)))
        if config.position.combine == "add":
            axes = residual_axes(loaded.model)
            tensors = {
                name: tensor.index_select(axes[name], order) if name in axes else tensor
                for name, tensor in tensors.items()
            }
            values["position"]["layout"] = "halves"
    full: Any = read_any_config(values)  # of the same kind
    dtype = next(loaded.model.parameters()).dtype
    for name, tensor in build_empty(full).state_dict().items():
        if name not in tensors:
            tensors[name] = torch.zeros(tensor.shape, dtype=dtype)
    return full, tensors


def _set_biases(table: dict[str, Any]) -> None:
    for key, value in table.items():
        if isinstance(value, dict):
            _set_biases(value)
        elif key == "bias":
            table[key] = True


def _set_expert_bias(table: dict[str, Any]) -> None:
    if table["kind"] == "moe":
        table["balancing"] = "bias"


def _to_hf(
    architecture: Architecture, config: TransformerConfig, hf_config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Hugging Face tensors from ours."""
    hf_tensors: dict[str, Tensor] = {}
    for rule in architecture.rules(config):
        if all(name in tensors for name in rule.ours):
            hf_tensors |= rule.to_hf([tensors[name] for name in rule.ours])
    shares = hf_config.get("share_encoder_decoder_embeddings") is not False
    if (
        isinstance(config, EncoderDecoderConfig)
        and shares
        and not (config.tie_weights and config.source_vocab_size is None)
    ):
        # Unless all embeddings are one matrix, transformers ties none: each is stored under its own name.
        embedding, source = tensors["embed_tokens.weight"], tensors.get("source_embed_tokens.weight")
        embeddings = {
            SHARED_EMBEDDING: embedding,
            DECODER_EMBEDDING: embedding,
            ENCODER_EMBEDDING: embedding if source is None else source,
        }
        hf_tensors |= {name: tensor.clone() for name, tensor in embeddings.items()}
        hf_tensors |= {LM_HEAD: embedding.clone()} if config.tie_weights else {}
    if LM_HEAD_BIAS in hf_tensors and hf_config.get("tie_word_embeddings") is False:
        hf_tensors[LM_HEAD_DECODER_BIAS] = hf_tensors[LM_HEAD_BIAS].clone()
    return hf_tensors


def _drop_zero_qkv_biases(config: TransformerConfig, hf_config: dict[str, Any], hf_tensors: dict[str, Tensor]) -> None:
    """Remove the query, key and value biases of a ViT that came without, unless they are no longer zero."""
    if hf_config.get("qkv_bias") is False:
        names = qkv_biases(stack_configs(config)["encoder"].layers)
        hf_config["qkv_bias"] = any(bool(hf_tensors[name].any()) for name in names)
        for name in () if hf_config["qkv_bias"] else names:
            del hf_tensors[name]


def _prefixed(
    architecture: Architecture, config: TransformerConfig, hf_tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Tensors under their names in a file, with those that a file has and our model lacks."""
    tensors = dict(hf_tensors)
    if architecture is PEGASUS:
        table = HALVES.encoding(config.width).encode(torch.arange(POSITIONS))
        tensors |= {f"{stack}.embed_positions.weight": table.clone() for stack in ("encoder", "decoder")}
    if isinstance(config, EncoderDecoderConfig) and "final_logits_bias" not in tensors:
        tensors["final_logits_bias"] = torch.zeros(1, config.vocab_size, dtype=next(iter(hf_tensors.values())).dtype)
    without_head = architecture.class_name == architecture.base_class  # without a head no prefix is needed
    return {
        name if without_head or name.startswith(HEADS) else architecture.prefix + name: tensor
        for name, tensor in tensors.items()
    }
