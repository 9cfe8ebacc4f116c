"""DeepSeek-V2 and -V3 (`DeepseekV2ForCausalLM`, `DeepseekV3ForCausalLM`): latent attention and mixtures of experts.

Both have the same layers under the same names. The first `first_k_dense_replace` have a dense feed-forward, the others
experts. They differ in the router: V2 takes the top k of a softmax, unnormalized, with groups compared by their best
expert; V3 takes sigmoids, normalized, with groups compared by their two best and with an expert bias that counts for
the selection alone. For their tensors see `deepseek_weights.py`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from regard.attention import LatentAttentionConfig, RotaryConfig
from regard.attention.positions.rotary import AnyScaling
from regard.config import ConfigError
from regard.errors import UserError
from regard.interop.huggingface.architecture import (
    GATED_ACTIVATIONS,
    Architecture,
    resolve_tied_embeddings,
    special_tokens,
)
from regard.interop.huggingface.architectures.deepseek_weights import EMBEDDING, LM_HEAD, normalize_weights, rules
from regard.interop.huggingface.architectures.llama import ROPE_FREQUENCIES
from regard.interop.huggingface.hf_config import HFConfig
from regard.interop.huggingface.rope import read_rotary, rotary_table, yarn_scale
from regard.interop.huggingface.weights import Weights
from regard.model import (
    DensePrefixConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    MixtureOfExpertsConfig,
    NormConfig,
    StackConfig,
)
from regard.model.stack import AnyFeedForward

_BOTH: dict[str, Any] = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_V2 = _BOTH | {
    "first_k_dense_replace": 0,
    "max_position_embeddings": 2048,
    "moe_intermediate_size": 1407,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.0,
}
_V3 = _BOTH | {
    "first_k_dense_replace": 3,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "routed_scaling_factor": 2.5,
    "topk_group": 4,
}
"""transformers' defaults. Keys for the size of a model are never left out."""

_HF_KEYS = {
    "experts": "n_routed_experts",
    "top_k": "num_experts_per_tok",
    "groups": "n_group",
    "top_groups": "topk_group",
    "group_score": "n_group",
    "normalize": "norm_topk_prob",
    "routed_scale": "routed_scaling_factor",
    "aux_loss": "aux_loss_alpha",
    "rope_head_dim": "qk_rope_head_dim",
    "dropout": "attention_dropout",
    "eps": "rms_norm_eps",
}
"""Hugging Face's keys for settings of ours that may contradict each other."""


def _read(
    defaults: Mapping[str, Any],
    ids: Mapping[str, int],
    router: Callable[[HFConfig], dict[str, Any]],
    hf_config: HFConfig,
    weights: Weights,
) -> LanguageModelConfig:
    """Our config. `defaults`: values of missing keys; `router`: reads the settings of the router."""
    hf_config = HFConfig({**defaults, **hf_config.values}, hf_config.location)
    base, scaling = read_rotary(hf_config)
    try:
        config = _model(hf_config, weights, RotaryConfig(theta=base, scaling=scaling), ids, router)
    except ConfigError as error:
        *_, key = error.key.split(".")
        raise UserError(f"{hf_config.location}: {_HF_KEYS.get(key, key)}: {error.problem}") from None
    normalize_weights(hf_config, weights, config)
    return config


def _model(
    hf_config: HFConfig,
    weights: Weights,
    position: RotaryConfig,
    ids: Mapping[str, int],
    router: Callable[[HFConfig], dict[str, Any]],
) -> LanguageModelConfig:
    vocab_size, layers = hf_config.integer("vocab_size"), hf_config.integer("num_hidden_layers")
    first, feed_forward = _feed_forwards(hf_config, layers, router)
    stack = StackConfig(
        layers=layers,
        attention=_attention(hf_config, position.scaling),
        dense_prefix=first,
        feed_forward=feed_forward,
        norm=NormConfig(kind="rms", eps=hf_config.number("rms_norm_eps", 1e-6)),
        dropout=0.0,
    )
    return LanguageModelConfig(
        vocab_size=vocab_size,
        width=hf_config.integer("hidden_size"),
        decoder=stack,
        position=position,
        embedding=EmbeddingConfig(scale=False, dropout=0.0),
        tie_weights=resolve_tied_embeddings(weights, EMBEDDING, LM_HEAD, hf_config.flag("tie_word_embeddings", False)),
        special_tokens=special_tokens(hf_config, vocab_size, "bos_token_id", ids),
    )


def _attention(hf_config: HFConfig, scaling: AnyScaling | None) -> LatentAttentionConfig:
    heads = hf_config.integer("num_attention_heads")
    hf_config.require("num_key_value_heads", heads, "every head computes its keys from the latent")
    nope, rope = hf_config.integer("qk_nope_head_dim"), hf_config.integer("qk_rope_head_dim")
    return LatentAttentionConfig(
        heads=heads,
        kv_latent=hf_config.integer("kv_lora_rank"),
        query_latent=hf_config.integer("q_lora_rank") if hf_config.has("q_lora_rank") else None,
        head_dim=nope,
        rope_head_dim=rope,
        value_head_dim=hf_config.integer("v_head_dim"),
        scale=_scale(hf_config, nope + rope, scaling),
        bias=hf_config.flag("attention_bias", False),
        dropout=hf_config.number("attention_dropout", 0.0),
    )


def _scale(hf_config: HFConfig, width: int, scaling: AnyScaling | None) -> float | None:
    """The factor on attention logits, where `mscale_all_dim` makes it another than 1 / √head_dim."""
    table = rotary_table(hf_config)
    strength = 0.0 if scaling is None else table.number("mscale_all_dim", 0.0)
    factor = getattr(scaling, "factor", None) or table.number("factor", 1.0)
    return width**-0.5 * yarn_scale(factor, strength) ** 2 if strength and factor > 1 else None


def _feed_forwards(
    hf_config: HFConfig, layers: int, router: Callable[[HFConfig], dict[str, Any]]
) -> tuple[DensePrefixConfig | None, AnyFeedForward]:
    """The feed-forward of the first layers, if it is another, and that of the rest.

    A number of experts that is null means, in DeepSeek's own code, that no layer has any.
    """
    hf_config.require("moe_layer_freq", 1, "after the first layers every one has experts")
    plain = hf_config.integer("first_k_dense_replace", minimum=0) if hf_config.has("n_routed_experts") else layers
    if plain >= layers:
        return None, _dense(hf_config, bias=hf_config.flag("mlp_bias", False))
    first = DensePrefixConfig(layers=plain, feed_forward=_dense(hf_config, bias=False)) if plain else None
    return first, _experts(hf_config, router(hf_config))


def _dense(hf_config: HFConfig, *, bias: bool) -> FeedForwardConfig:
    return FeedForwardConfig(
        hidden=hf_config.integer("intermediate_size"),
        activation=hf_config.choice("hidden_act", GATED_ACTIVATIONS, "silu"),
        bias=bias,
    )


def _experts(hf_config: HFConfig, chosen: Mapping[str, Any]) -> MixtureOfExpertsConfig:
    hf_config.require(
        "mlp_bias", False, "here either all experts have biases or none, there only the shared ones would"
    )
    return MixtureOfExpertsConfig(
        hidden=hf_config.integer("moe_intermediate_size"),
        activation=hf_config.choice("hidden_act", GATED_ACTIVATIONS, "silu"),
        bias=False,
        experts=hf_config.integer("n_routed_experts"),
        top_k=hf_config.integer("num_experts_per_tok"),
        shared_experts=hf_config.integer("n_shared_experts", minimum=0) if hf_config.has("n_shared_experts") else 0,
        routed_scale=hf_config.number("routed_scaling_factor"),
        aux_loss=hf_config.number("aux_loss_alpha") if hf_config.has("aux_loss_alpha") else None,
        **chosen,
    )


def _router_v2(hf_config: HFConfig) -> dict[str, Any]:
    hf_config.require("scoring_func", "softmax", "DeepSeek-V2 has no other")
    hf_config.require("norm_topk_prob", False, "DeepSeek's own code and transformers do not agree on what true means")
    grouped = hf_config.choice("topk_method", {"greedy": False, "group_limited_greedy": True}, "greedy")
    return {"router": "softmax", "normalize": False, "balancing": "loss", **_groups(hf_config, "max", grouped=grouped)}


def _router_v3(hf_config: HFConfig) -> dict[str, Any]:
    hf_config.require("scoring_func", "sigmoid", "DeepSeek-V3 has no other")
    hf_config.require("topk_method", "noaux_tc", "DeepSeek-V3 has no other")
    normalize = hf_config.flag("norm_topk_prob", True)
    return {"router": "sigmoid", "normalize": normalize, "balancing": "bias", **_groups(hf_config, "top2_sum")}


def _groups(hf_config: HFConfig, score: str, *, grouped: bool = True) -> dict[str, Any]:
    """How groups of experts are selected; nothing if there is only one."""
    groups = hf_config.integer("n_group") if grouped else 1
    active = hf_config.integer("topk_group") if grouped else 1
    return {"groups": groups, "top_groups": active, "group_score": score} if groups > 1 else {}


DEEPSEEK_V2, DEEPSEEK_V3 = (
    Architecture(
        name=f"DeepSeek-{version}",
        model_type=f"deepseek_{version.lower()}",
        class_name=f"Deepseek{version}ForCausalLM",
        base_class=f"Deepseek{version}Model",
        prefix="model.",
        read=partial(_read, defaults, ids, router),
        rules=rules,
        ignored_tensors=(ROPE_FREQUENCIES,),
    )
    for version, defaults, ids, router in (
        ("V2", _V2, {"bos_token_id": 1, "eos_token_id": 2}, _router_v2),
        ("V3", _V3, {"bos_token_id": 0, "eos_token_id": 1}, _router_v3),
    )
)
