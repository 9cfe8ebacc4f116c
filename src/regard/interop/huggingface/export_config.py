"""Write Hugging Face's config.json and generation_config.json for a model config."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from regard.attention import LatentAttentionConfig, LearnedConfig, RotaryConfig, Sliding, read_pattern
from regard.attention.positions.rotary import AnyScaling
from regard.errors import UserError
from regard.interop.huggingface.architecture import ACTIVATIONS, GATED_ACTIVATIONS, Architecture
from regard.interop.huggingface.mapping import stack_configs
from regard.model import (
    AnyModelConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    EncoderSpecialTokensConfig,
    LanguageModelConfig,
    MaskedLMHeadConfig,
    MixtureOfExpertsConfig,
    VisionTransformerConfig,
)
from regard.model.feed_forward import Activation

POSITIONS = 1024
"""`max_position_embeddings` of an exported model without a maximum length."""
MAX_GENERATED = 256
"""The `max_length` of transformers' search; ours depends on the source length, which its config cannot express."""


def imported_config(architecture: Architecture, origin: Mapping[str, Any], config: AnyModelConfig) -> dict[str, Any]:
    """The config.json that a model was imported with, without settings that the import has applied to the weights."""
    hf_config = {**origin["config"], **_tied(config)}
    if "scale_attn_by_inverse_layer_idx" in hf_config:
        hf_config["scale_attn_by_inverse_layer_idx"] = False
    if architecture.model_type == "marian":
        hf_config |= _marian_embeddings(config)
    if architecture.model_type in ("deepseek_v2", "deepseek_v3"):
        hf_config = _normalized_deepseek(hf_config, config)
    return hf_config


def _normalized_deepseek(imported: Mapping[str, Any], config: AnyModelConfig) -> dict[str, Any]:
    """DeepSeek's config without its custom code (`auto_map`) and multi-token prediction, with interleaved RoPE.

    DeepSeek's code accepts null as the number of experts of a dense model, but transformers does not.
    """
    assert isinstance(config, LanguageModelConfig)
    normalized = {"rope_interleave": True, "num_nextn_predict_layers": 0, "num_mtp_layers": 0}
    hf_config = {key: normalized.get(key, value) for key, value in imported.items() if key != "auto_map"}
    if hf_config.get("n_shared_experts", 0) is None:
        hf_config["n_shared_experts"] = 0
    if hf_config.get("n_routed_experts", 0) is None:
        del hf_config["n_routed_experts"]
        hf_config["first_k_dense_replace"] = config.decoder.layers
    return hf_config


def _tied(config: AnyModelConfig) -> dict[str, Any]:
    """Whether the output is tied to the embedding, for a model with an LM head."""
    if isinstance(config, EncoderDecoderConfig | LanguageModelConfig):
        return {"tie_word_embeddings": config.tie_weights}
    if isinstance(config, EncoderConfig) and isinstance(config.head, MaskedLMHeadConfig):
        return {"tie_word_embeddings": config.head.tie_weights}
    return {}


def _tokens(config: AnyModelConfig) -> dict[str, Any]:
    if isinstance(config, VisionTransformerConfig):
        return {}
    tokens = config.special_tokens
    ids = {"pad_token_id": tokens.pad, "bos_token_id": tokens.bos, "eos_token_id": tokens.eos}
    if isinstance(config, EncoderDecoderConfig):
        ids["decoder_start_token_id"] = tokens.bos
    if isinstance(tokens, EncoderSpecialTokensConfig):
        ids |= {"mask_token_id": tokens.mask, "sep_token_id": tokens.sep, "cls_token_id": tokens.cls}
    return ids


def _activation_name(known: Mapping[str, Activation], config: AnyModelConfig, architecture: str) -> str:
    side, stack = next(iter(stack_configs(config).items()))
    for name, ours in known.items():
        if ours == stack.feed_forward.activation:
            return name
    raise no_counterpart(f"{side}.feed_forward.activation", stack.feed_forward.activation, architecture)


def _common(config: AnyModelConfig) -> dict[str, Any]:
    # regard computes in float32, whatever dtype is stored; without this key transformers would use the stored dtype.
    return {"dtype": "float32", **_tied(config), **_tokens(config)}


def _encoder_decoder(config: AnyModelConfig, architecture: str) -> dict[str, Any]:
    assert isinstance(config, EncoderDecoderConfig)
    position, stacks = config.position, {"encoder": config.encoder, "decoder": config.decoder}
    hf_config = _common(config) | {
        "is_encoder_decoder": True,
        "vocab_size": config.vocab_size,
        "d_model": config.width,
        "scale_embedding": config.embedding.scale,
        "max_position_embeddings": position.max_length if isinstance(position, LearnedConfig) else POSITIONS,
        "activation_function": _activation_name(ACTIVATIONS, config, architecture),
        "dropout": config.decoder.dropout,
        "attention_dropout": config.decoder.attention.dropout,
        "activation_dropout": config.decoder.feed_forward.dropout,
        "forced_eos_token_id": None,
    }
    for name, stack in stacks.items():
        hf_config[f"{name}_layers"] = stack.layers
        hf_config[f"{name}_attention_heads"] = stack.attention.heads
        hf_config[f"{name}_ffn_dim"] = stack.feed_forward.hidden
    return hf_config


def _write_pegasus(config: AnyModelConfig) -> dict[str, Any]:
    size = getattr(config, "source_vocab_size", None)
    if size is not None:
        raise no_counterpart("source_vocab_size", size, "Pegasus", "; it has one vocabulary for both sides")
    return _encoder_decoder(config, "Pegasus")


def _write_marian(config: AnyModelConfig) -> dict[str, Any]:
    return _encoder_decoder(config, "Marian") | _marian_embeddings(config)


def _marian_embeddings(config: AnyModelConfig) -> dict[str, Any]:
    assert isinstance(config, EncoderDecoderConfig)
    source = config.source_vocab_size
    return {
        "vocab_size": source or config.vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": source is None,
    }


def _write_gpt2(config: AnyModelConfig) -> dict[str, Any]:
    assert isinstance(config, LanguageModelConfig)
    stack, position = config.decoder, config.position
    return _common(config) | {
        "vocab_size": config.vocab_size,
        "n_embd": config.width,
        "n_layer": stack.layers,
        "n_head": stack.attention.heads,
        "n_inner": stack.feed_forward.hidden,
        "n_positions": position.max_length if isinstance(position, LearnedConfig) else POSITIONS,
        "activation_function": _activation_name(ACTIVATIONS, config, "GPT-2"),
        "layer_norm_epsilon": stack.norm.eps,
        "scale_attn_weights": stack.attention.similarity == "scaled",
        "attn_pdrop": stack.attention.dropout,
        "resid_pdrop": stack.dropout,
        "embd_pdrop": config.embedding.dropout,
    }


def _write_llama(config: AnyModelConfig) -> dict[str, Any]:
    assert isinstance(config, LanguageModelConfig)
    stack, position = config.decoder, config.position
    sizes = stack.attention.sizes(config.width)
    rotary = position if isinstance(position, RotaryConfig) else RotaryConfig()
    return _common(config) | {
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": stack.feed_forward.hidden,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "hidden_act": _activation_name(GATED_ACTIVATIONS, config, "Llama"),
        "rms_norm_eps": stack.norm.eps,
        "attention_bias": stack.attention.bias,
        "mlp_bias": stack.feed_forward.bias,
        "attention_dropout": stack.attention.dropout,
        "max_position_embeddings": getattr(rotary.scaling, "original_max_length", 2048),
        "rope_parameters": {"rope_theta": rotary.theta, **_scaling(rotary.scaling)},
    }


def _write_mistral(config: AnyModelConfig) -> dict[str, Any]:
    assert isinstance(config, LanguageModelConfig)
    pattern = read_pattern(config.decoder.attention.pattern)
    window = pattern.window if isinstance(pattern, Sliding) else None
    return _write_llama(config) | {"sliding_window": window}


def _write_deepseek(config: AnyModelConfig, version: str) -> dict[str, Any]:
    assert isinstance(config, LanguageModelConfig)
    stack, attention, position = config.decoder, config.decoder.attention, config.position
    assert isinstance(attention, LatentAttentionConfig)
    sizes, architecture = attention.sizes(config.width), f"DeepSeek-{version}"
    if not isinstance(position, RotaryConfig):
        raise no_counterpart("position.kind", position.kind, architecture, "; it is always 'rotary' there")
    nope_head_dim = sizes.head_dim - attention.rope_head_dim
    if version == "V2" and config.width % sizes.heads:
        raise no_counterpart(
            "decoder.attention.heads", sizes.heads, architecture, f"; it must divide {config.width} there"
        )
    for name, size in (("head_dim", nope_head_dim), ("kv_latent", attention.kv_latent)):
        if version == "V2" and size % 2:  # it rotates adjacent pairs as complex numbers
            raise no_counterpart(f"decoder.attention.{name}", size, architecture, "; it is always even there")
    feed_forward = stack.feed_forward
    hf_config = _common(config) | {
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": stack.feed_forwards[0].hidden,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.heads,
        "kv_lora_rank": attention.kv_latent,
        "q_lora_rank": attention.query_latent,
        "qk_nope_head_dim": nope_head_dim,
        "qk_rope_head_dim": attention.rope_head_dim,
        "v_head_dim": sizes.value_head_dim,
        "hidden_act": _activation_name(GATED_ACTIVATIONS, config, architecture),
        "rms_norm_eps": stack.norm.eps,
        "attention_bias": attention.bias,
        "attention_dropout": attention.dropout,
        "max_position_embeddings": getattr(position.scaling, "original_max_length", 2048),
        "rope_parameters": {"rope_theta": position.theta, **_scaling(position.scaling)},
    }
    if not isinstance(feed_forward, MixtureOfExpertsConfig):
        return hf_config | {"first_k_dense_replace": stack.layers, "mlp_bias": feed_forward.bias}
    router = (
        {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": feed_forward.normalize}
        if version == "V3"
        else {
            "scoring_func": "softmax",
            "topk_method": "greedy" if feed_forward.groups == 1 else "group_limited_greedy",
        }
    )
    return hf_config | {
        "first_k_dense_replace": 0 if stack.dense_prefix is None else stack.dense_prefix.layers,
        "moe_intermediate_size": feed_forward.hidden,
        "moe_layer_freq": 1,
        "n_routed_experts": feed_forward.experts,
        "num_experts_per_tok": feed_forward.top_k,
        "n_shared_experts": feed_forward.shared_experts,
        "routed_scaling_factor": feed_forward.routed_scale,
        "n_group": feed_forward.groups,
        "topk_group": feed_forward.top_groups,
        "aux_loss_alpha": feed_forward.aux_loss_weight,
        **router,
    }


def _write_bert(config: AnyModelConfig) -> dict[str, Any]:
    assert isinstance(config, EncoderConfig)
    stack, position = config.encoder, config.position
    return _common(config) | {
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": stack.attention.heads,
        "intermediate_size": stack.feed_forward.hidden,
        "hidden_act": _activation_name(ACTIVATIONS, config, "BERT"),
        "layer_norm_eps": stack.norm.eps,
        "max_position_embeddings": position.max_length if isinstance(position, LearnedConfig) else POSITIONS,
        "position_embedding_type": "absolute",
        "type_vocab_size": config.token_types,
        "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention.dropout,
        **_labels(config.labels),
    }


def _write_vit(config: AnyModelConfig) -> dict[str, Any]:
    assert isinstance(config, VisionTransformerConfig)
    stack = config.encoder
    labels = {"num_labels": config.classes} if isinstance(config.classes, int) else _labels(config.labels)
    return _common(config) | {
        "image_size": config.image_size if isinstance(config.image_size, int) else list(config.image_size),
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "hidden_size": config.width,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": stack.attention.heads,
        "intermediate_size": stack.feed_forward.hidden,
        "hidden_act": _activation_name(ACTIVATIONS, config, "ViT"),
        "layer_norm_eps": stack.norm.eps,
        "pooler_output_size": config.representation_size or config.width,
        "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention.dropout,
        **(labels if config.classes else {}),
    }


def _labels(names: Sequence[str]) -> dict[str, Any]:
    if not names:
        return {}
    numbered = {str(number): name for number, name in enumerate(names)}
    return {"id2label": numbered, "label2id": {name: int(number) for number, name in numbered.items()}}


def _scaling(scaling: AnyScaling | None) -> dict[str, Any]:
    """RoPE scaling in Hugging Face's names."""
    if scaling is None:
        return {"rope_type": "default"}
    ours = scaling.plain()
    kind = ours.pop("kind")
    names = {
        "original_max_length": "original_max_position_embeddings",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "attention_factor": "attention_factor",
        "short_factors": "short_factor",
        "long_factors": "long_factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
    }
    hf_names = {names.get(key, key): value for key, value in ours.items() if value is not None}
    return {"rope_type": kind, **hf_names}


CONFIG_WRITERS: dict[str, Callable[[AnyModelConfig], dict[str, Any]]] = {
    "pegasus": _write_pegasus,
    "marian": _write_marian,
    "bart": lambda config: _encoder_decoder(config, "BART"),
    "gpt2": _write_gpt2,
    "llama": _write_llama,
    "mistral": _write_mistral,
    "deepseek_v2": lambda config: _write_deepseek(config, "V2"),
    "deepseek_v3": lambda config: _write_deepseek(config, "V3"),
    "bert": _write_bert,
    "vit": _write_vit,
}
"""The function that writes the config.json of each model_type."""


def generation_config(hf_config: Mapping[str, Any], origin: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json: the search settings of a translator, as far as transformers can express them.

    Its length penalty is a power of the length. Our kind "power" is the same; "gnmt", ((5 + length) / 6)^alpha, has no
    counterpart and is approximated by the power that grows equally at ten tokens.
    """
    generation = {key: hf_config[key] for key in hf_config if key.endswith("_token_id")}
    generation |= {"max_length": MAX_GENERATED} if hf_config.get("is_encoder_decoder") else {}
    decode = origin.get("decode")
    if isinstance(decode, dict) and decode.get("beam_size", 1) > 1:
        penalty = decode.get("length_penalty", {})
        exponent = {"gnmt": 2 / 3, "power": 1.0}.get(str(penalty.get("kind")), 0.0) * float(penalty.get("alpha", 0.0))
        generation |= {"num_beams": decode["beam_size"], "length_penalty": round(exponent, 3)}
    return generation


def no_counterpart(key: str, value: object, architecture: str, hint: str = "") -> UserError:
    return UserError(
        f"{key} is {value!r}, which has no counterpart in {architecture}, the closest architecture of "
        f"transformers{hint}. The model cannot be exported."
    )
