"""A config of ours as settings of a family of transformers: what config.json and generation_config.json say."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from regard.attention import LatentConfig, LearnedConfig, RotaryConfig, Sliding, read_pattern
from regard.attention.rotary import AnyScaling
from regard.errors import UserError
from regard.interop.huggingface.family import ACTIVATIONS, GATED_ACTIVATIONS, Family
from regard.interop.huggingface.mapping import stacks_of
from regard.model import (
    AnyModelConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    EncoderTokensConfig,
    ExpertsConfig,
    FillConfig,
    LanguageModelConfig,
    VisionTransformerConfig,
)
from regard.model.feed_forward import Activation

POSITIONS = 1024
"""Rows of a table of sinusoids, where a model of ours has no limit of its own."""
LONGEST = 256
"""Tokens at which their search gives up; ours goes by the length of the source, which their settings cannot say."""


def kept_settings(family: Family, origin: Mapping[str, Any], config: AnyModelConfig) -> dict[str, Any]:
    """The settings a model was imported with, less what the import has settled in its weights."""
    kept = {**origin["config"], **_tied(config)}
    if "scale_attn_by_inverse_layer_idx" in kept:
        kept["scale_attn_by_inverse_layer_idx"] = False
    if family.kind == "marian":
        kept |= _marian_words(config)
    if family.kind in ("deepseek_v2", "deepseek_v3"):
        kept = _settled_deepseek(kept, config)
    return kept


def _settled_deepseek(given: Mapping[str, Any], config: AnyModelConfig) -> dict[str, Any]:
    """DeepSeek's settings less their own code, layers that look further ahead and other orders of features.

    Where experts are spelled null their own code means none, but transformers would not open the file.
    """
    assert isinstance(config, LanguageModelConfig)
    settled = {"rope_interleave": True, "num_nextn_predict_layers": 0, "num_mtp_layers": 0}
    kept = {key: settled.get(key, value) for key, value in given.items() if key != "auto_map"}
    if kept.get("n_shared_experts", 0) is None:
        kept["n_shared_experts"] = 0
    if kept.get("n_routed_experts", 0) is None:
        del kept["n_routed_experts"]
        kept["first_k_dense_replace"] = config.decoder.layers
    return kept


def _tied(config: AnyModelConfig) -> dict[str, Any]:
    """Whether words are scored by the vectors they are looked up in, of a model that scores words."""
    if isinstance(config, EncoderDecoderConfig | LanguageModelConfig):
        return {"tie_word_embeddings": config.tie}
    if isinstance(config, EncoderConfig) and isinstance(config.head, FillConfig):
        return {"tie_word_embeddings": config.head.tie}
    return {}


def _tokens(config: AnyModelConfig) -> dict[str, Any]:
    if isinstance(config, VisionTransformerConfig):
        return {}
    tokens = config.tokens
    ids = {"pad_token_id": tokens.padding, "bos_token_id": tokens.start, "eos_token_id": tokens.end}
    if isinstance(config, EncoderDecoderConfig):
        ids["decoder_start_token_id"] = tokens.start
    if isinstance(tokens, EncoderTokensConfig):
        ids |= {"mask_token_id": tokens.mask, "sep_token_id": tokens.separator, "cls_token_id": tokens.classify}
    return ids


def _name(known: Mapping[str, Activation], config: AnyModelConfig, family: str) -> str:
    side, stack = next(iter(stacks_of(config).items()))
    for name, ours in known.items():
        if ours == stack.feed_forward.activation:
            return name
    raise no_counterpart(f"{side}.feed_forward.activation", stack.feed_forward.activation, family)


def _common(config: AnyModelConfig) -> dict[str, Any]:
    # Ours computes in float32 whatever its file holds; without this key theirs would go by the file.
    return {"dtype": "float32", **_tied(config), **_tokens(config)}


def _translator(config: AnyModelConfig, family: str) -> dict[str, Any]:
    assert isinstance(config, EncoderDecoderConfig)
    position, stacks = config.position, {"encoder": config.encoder, "decoder": config.decoder}
    settings = _common(config) | {
        "is_encoder_decoder": True,
        "vocab_size": config.vocabulary,
        "d_model": config.width,
        "scale_embedding": config.embedding.scale,
        "max_position_embeddings": position.limit if isinstance(position, LearnedConfig) else POSITIONS,
        "activation_function": _name(ACTIVATIONS, config, family),
        "dropout": config.decoder.dropout,
        "attention_dropout": config.decoder.attention.dropout,
        "activation_dropout": config.decoder.feed_forward.dropout,
        "forced_eos_token_id": None,
    }
    for name, stack in stacks.items():
        settings[f"{name}_layers"] = stack.layers
        settings[f"{name}_attention_heads"] = stack.attention.heads
        settings[f"{name}_ffn_dim"] = stack.feed_forward.hidden
    return settings


def _write_pegasus(config: AnyModelConfig) -> dict[str, Any]:
    size = getattr(config, "source_vocabulary", None)
    if size is not None:
        raise no_counterpart("source_vocabulary", size, "Pegasus", "; there both sides share one vocabulary")
    return _translator(config, "Pegasus")


def _write_marian(config: AnyModelConfig) -> dict[str, Any]:
    return _translator(config, "Marian") | _marian_words(config)


def _marian_words(config: AnyModelConfig) -> dict[str, Any]:
    assert isinstance(config, EncoderDecoderConfig)
    source = config.source_vocabulary
    return {
        "vocab_size": source or config.vocabulary,
        "decoder_vocab_size": config.vocabulary,
        "share_encoder_decoder_embeddings": source is None,
    }


def _write_gpt2(config: AnyModelConfig) -> dict[str, Any]:
    assert isinstance(config, LanguageModelConfig)
    stack, position = config.decoder, config.position
    return _common(config) | {
        "vocab_size": config.vocabulary,
        "n_embd": config.width,
        "n_layer": stack.layers,
        "n_head": stack.attention.heads,
        "n_inner": stack.feed_forward.hidden,
        "n_positions": position.limit if isinstance(position, LearnedConfig) else POSITIONS,
        "activation_function": _name(ACTIVATIONS, config, "GPT-2"),
        "layer_norm_epsilon": stack.norm.epsilon,
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
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "intermediate_size": stack.feed_forward.hidden,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.key_heads,
        "head_dim": sizes.head_width,
        "hidden_act": _name(GATED_ACTIVATIONS, config, "Llama"),
        "rms_norm_eps": stack.norm.epsilon,
        "attention_bias": stack.attention.bias,
        "mlp_bias": stack.feed_forward.bias,
        "attention_dropout": stack.attention.dropout,
        "max_position_embeddings": getattr(rotary.scaling, "trained", 2048),
        "rope_parameters": {"rope_theta": rotary.base, **_scaling(rotary.scaling)},
    }


def _write_mistral(config: AnyModelConfig) -> dict[str, Any]:
    assert isinstance(config, LanguageModelConfig)
    pattern = read_pattern(config.decoder.attention.pattern)
    window = pattern.window if isinstance(pattern, Sliding) else None
    return _write_llama(config) | {"sliding_window": window}


def _write_deepseek(config: AnyModelConfig, version: str) -> dict[str, Any]:
    assert isinstance(config, LanguageModelConfig)
    stack, attention, position = config.decoder, config.decoder.attention, config.position
    assert isinstance(attention, LatentConfig)
    sizes, family = attention.sizes(config.width), f"DeepSeek-{version}"
    if not isinstance(position, RotaryConfig):
        raise no_counterpart("position.kind", position.kind, family, "; there it is always 'rotary'")
    plain = sizes.head_width - attention.rotary_width
    if version == "V2" and config.width % sizes.heads:
        raise no_counterpart("decoder.attention.heads", sizes.heads, family, f"; there they divide {config.width}")
    for name, size in (("head_width", plain), ("latent", attention.latent)):
        if version == "V2" and size % 2:  # it turns pairs of numbers where they lie, as single complex ones
            raise no_counterpart(f"decoder.attention.{name}", size, family, "; there it is always even")
    middle = stack.feed_forward
    settings = _common(config) | {
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "intermediate_size": stack.feed_forwards[0].hidden,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.heads,
        "kv_lora_rank": attention.latent,
        "q_lora_rank": attention.query_latent,
        "qk_nope_head_dim": plain,
        "qk_rope_head_dim": attention.rotary_width,
        "v_head_dim": sizes.value_width,
        "hidden_act": _name(GATED_ACTIVATIONS, config, family),
        "rms_norm_eps": stack.norm.epsilon,
        "attention_bias": attention.bias,
        "attention_dropout": attention.dropout,
        "max_position_embeddings": getattr(position.scaling, "trained", 2048),
        "rope_parameters": {"rope_theta": position.base, **_scaling(position.scaling)},
    }
    if not isinstance(middle, ExpertsConfig):
        return settings | {"first_k_dense_replace": stack.layers, "mlp_bias": middle.bias}
    chosen = (
        {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": middle.normalise}
        if version == "V3"
        else {"scoring_func": "softmax", "topk_method": "greedy" if middle.groups == 1 else "group_limited_greedy"}
    )
    return settings | {
        "first_k_dense_replace": 0 if stack.first is None else stack.first.layers,
        "moe_intermediate_size": middle.hidden,
        "moe_layer_freq": 1,
        "n_routed_experts": middle.experts,
        "num_experts_per_tok": middle.active,
        "n_shared_experts": middle.shared,
        "routed_scaling_factor": middle.factor,
        "n_group": middle.groups,
        "topk_group": middle.active_groups,
        "aux_loss_alpha": middle.strength,
        **chosen,
    }


def _write_bert(config: AnyModelConfig) -> dict[str, Any]:
    assert isinstance(config, EncoderConfig)
    stack, position = config.encoder, config.position
    return _common(config) | {
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": stack.attention.heads,
        "intermediate_size": stack.feed_forward.hidden,
        "hidden_act": _name(ACTIVATIONS, config, "BERT"),
        "layer_norm_eps": stack.norm.epsilon,
        "max_position_embeddings": position.limit if isinstance(position, LearnedConfig) else POSITIONS,
        "position_embedding_type": "absolute",
        "type_vocab_size": config.segments,
        "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention.dropout,
        **_labels(config.labels),
    }


def _write_vit(config: AnyModelConfig) -> dict[str, Any]:
    assert isinstance(config, VisionTransformerConfig)
    stack = config.encoder
    named = {"num_labels": config.classes} if isinstance(config.classes, int) else _labels(config.labels)
    return _common(config) | {
        "image_size": config.image if isinstance(config.image, int) else list(config.image),
        "patch_size": config.patch,
        "num_channels": config.channels,
        "hidden_size": config.width,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": stack.attention.heads,
        "intermediate_size": stack.feed_forward.hidden,
        "hidden_act": _name(ACTIVATIONS, config, "ViT"),
        "layer_norm_eps": stack.norm.epsilon,
        "pooler_output_size": config.representation or config.width,
        "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention.dropout,
        **(named if config.classes else {}),
    }


def _labels(names: Sequence[str]) -> dict[str, Any]:
    if not names:
        return {}
    numbered = {str(number): name for number, name in enumerate(names)}
    return {"id2label": numbered, "label2id": {name: int(number) for number, name in numbered.items()}}


def _scaling(scaling: AnyScaling | None) -> dict[str, Any]:
    """The scaling of rotary positions in their spelling."""
    if scaling is None:
        return {"rope_type": "default"}
    ours = scaling.plain()
    kind = ours.pop("kind")
    names = {
        "trained": "original_max_position_embeddings",
        "fast": "beta_fast",
        "slow_turns": "beta_slow",
        "sharpness": "attention_factor",
        "short_factors": "short_factor",
        "long_factors": "long_factor",
        "low": "low_freq_factor",
        "high": "high_freq_factor",
    }
    theirs = {names.get(key, key): value for key, value in ours.items() if value is not None}
    return {"rope_type": {"long": "longrope", "band": "llama3"}.get(kind, kind), **theirs}


WRITERS: dict[str, Callable[[AnyModelConfig], dict[str, Any]]] = {
    "pegasus": _write_pegasus,
    "marian": _write_marian,
    "bart": lambda config: _translator(config, "BART"),
    "gpt2": _write_gpt2,
    "llama": _write_llama,
    "mistral": _write_mistral,
    "deepseek_v2": lambda config: _write_deepseek(config, "V2"),
    "deepseek_v3": lambda config: _write_deepseek(config, "V3"),
    "bert": _write_bert,
    "vit": _write_vit,
}
"""How a family's settings are written from a config of ours, by their model_type."""


def generation_settings(settings: Mapping[str, Any], origin: Mapping[str, Any]) -> dict[str, Any]:
    """How their library is to write: the search a translator was made for, as far as theirs can be told.

    Their penalty is a power of the length. Ours of the same form is the same; the paper's, ((5 + length) / 6)^strength,
    has no counterpart, and gets the power that is as steep at ten tokens.
    """
    generation = {key: settings[key] for key in settings if key.endswith("_token_id")}
    generation |= {"max_length": LONGEST} if settings.get("is_encoder_decoder") else {}
    decode = origin.get("decode")
    if isinstance(decode, dict) and decode.get("beams", 1) > 1:
        steep = {"paper": 2 / 3, "power": 1.0}.get(str(decode.get("penalty")), 0.0)
        strength = round(steep * float(decode.get("strength", 0.0)), 3)
        generation |= {"num_beams": decode["beams"], "length_penalty": strength}
    return generation


def no_counterpart(key: str, value: object, name: str, rest: str = "") -> UserError:
    return UserError(
        f"{key} is {value!r}, which has no counterpart in {name}, the nearest architecture of transformers{rest}. "
        "The model cannot be exported."
    )
