"""DeepSeek-V2 and -V3 (`DeepseekV2ForCausalLM`, `DeepseekV3ForCausalLM`): latents for attention, experts behind it.

Both have the same layers under the same names. The first `first_k_dense_replace` of them have a plain feed-forward, the
others experts. They differ in how a token finds its experts: V2 takes the largest shares of a softmax as they are, in
groups that are compared by their best; V3 takes sigmoids, divided by their sum, in groups compared by their two best,
and by a bias that counts for choosing alone. For their tensors see `deepseek_weights.py`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from regard.attention import LatentConfig, RotaryConfig
from regard.attention.rotary import AnyScaling
from regard.config import ConfigError
from regard.errors import UserError
from regard.interop.huggingface.deepseek_weights import OUTPUT, WORDS, rules, settle
from regard.interop.huggingface.family import GATED_ACTIVATIONS, Family, settle_output, tokens
from regard.interop.huggingface.llama import FREQUENCIES
from regard.interop.huggingface.rope import growth, read_rotary, rotary_table
from regard.interop.huggingface.settings import Settings
from regard.interop.huggingface.weights import Weights
from regard.model import (
    EmbeddingConfig,
    ExpertsConfig,
    FeedForwardConfig,
    FirstConfig,
    LanguageModelConfig,
    NormConfig,
    StackConfig,
)
from regard.model.feed_forward import AnyFeedForward

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
"""What transformers takes for keys that are left out. Those of the size of a model are never left out."""

_THEIR_KEYS = {
    "experts": "n_routed_experts",
    "active": "num_experts_per_tok",
    "groups": "n_group",
    "active_groups": "topk_group",
    "group_score": "n_group",
    "normalise": "norm_topk_prob",
    "factor": "routed_scaling_factor",
    "balance": "aux_loss_alpha",
    "rotary_width": "qk_rope_head_dim",
    "dropout": "attention_dropout",
    "epsilon": "rms_norm_eps",
}
"""What they call settings of ours that may not go together."""


def _read(
    usual: Mapping[str, Any],
    ids: Mapping[str, int],
    choose: Callable[[Settings], dict[str, Any]],
    settings: Settings,
    weights: Weights,
) -> LanguageModelConfig:
    """Our config. `usual`: what holds for keys that are left out; `choose`: how a token finds its experts."""
    settings = Settings({**usual, **settings.values}, settings.where)
    base, scaling = read_rotary(settings)
    try:
        config = _model(settings, weights, RotaryConfig(base=base, scaling=scaling), ids, choose)
    except ConfigError as error:
        *_, key = error.key.split(".")
        raise UserError(f"{settings.where}: {_THEIR_KEYS.get(key, key)}: {error.problem}") from None
    settle(settings, weights, config)
    return config


def _model(
    settings: Settings,
    weights: Weights,
    position: RotaryConfig,
    ids: Mapping[str, int],
    choose: Callable[[Settings], dict[str, Any]],
) -> LanguageModelConfig:
    vocabulary, layers = settings.whole("vocab_size"), settings.whole("num_hidden_layers")
    first, feed_forward = _feed_forwards(settings, layers, choose)
    stack = StackConfig(
        layers=layers,
        attention=_attention(settings, position.scaling),
        first=first,
        feed_forward=feed_forward,
        norm=NormConfig(kind="rms", epsilon=settings.number("rms_norm_eps", 1e-6)),
        dropout=0.0,
    )
    return LanguageModelConfig(
        vocabulary=vocabulary,
        width=settings.whole("hidden_size"),
        decoder=stack,
        position=position,
        embedding=EmbeddingConfig(scale=False, dropout=0.0),
        tie=settle_output(weights, WORDS, OUTPUT, settings.flag("tie_word_embeddings", False)),
        tokens=tokens(settings, vocabulary, "bos_token_id", ids),
    )


def _attention(settings: Settings, scaling: AnyScaling | None) -> LatentConfig:
    heads = settings.whole("num_attention_heads")
    settings.must_be("num_key_value_heads", heads, "every head makes its keys of the latent")
    plain, turned = settings.whole("qk_nope_head_dim"), settings.whole("qk_rope_head_dim")
    return LatentConfig(
        heads=heads,
        latent=settings.whole("kv_lora_rank"),
        query_latent=settings.whole("q_lora_rank") if settings.has("q_lora_rank") else None,
        head_width=plain,
        rotary_width=turned,
        value_width=settings.whole("v_head_dim"),
        scale=_scale(settings, plain + turned, scaling),
        bias=settings.flag("attention_bias", False),
        dropout=settings.number("attention_dropout", 0.0),
    )


def _scale(settings: Settings, width: int, scaling: AnyScaling | None) -> float | None:
    """What scores are multiplied by, where `mscale_all_dim` makes it another than 1 over the root of a head's width."""
    table = rotary_table(settings)
    strength = 0.0 if scaling is None else table.number("mscale_all_dim", 0.0)
    factor = getattr(scaling, "factor", None) or table.number("factor", 1.0)
    return width**-0.5 * growth(factor, strength) ** 2 if strength and factor > 1 else None


def _feed_forwards(
    settings: Settings, layers: int, choose: Callable[[Settings], dict[str, Any]]
) -> tuple[FirstConfig | None, AnyFeedForward]:
    """Those of the first layers, if they are others, and of the rest.

    A number of experts that is null means, by DeepSeek's own code, that there are none in any layer.
    """
    settings.must_be("moe_layer_freq", 1, "behind the first layers every one has experts")
    plain = settings.whole("first_k_dense_replace", least=0) if settings.has("n_routed_experts") else layers
    if plain >= layers:
        return None, _dense(settings, bias=settings.flag("mlp_bias", False))
    first = FirstConfig(layers=plain, feed_forward=_dense(settings, bias=False)) if plain else None
    return first, _experts(settings, choose(settings))


def _dense(settings: Settings, *, bias: bool) -> FeedForwardConfig:
    return FeedForwardConfig(
        hidden=settings.whole("intermediate_size"),
        activation=settings.choice("hidden_act", GATED_ACTIVATIONS, "silu"),
        bias=bias,
    )


def _experts(settings: Settings, chosen: Mapping[str, Any]) -> ExpertsConfig:
    settings.must_be("mlp_bias", False, "of experts all have biases here or none has, and there only shared ones would")
    return ExpertsConfig(
        hidden=settings.whole("moe_intermediate_size"),
        activation=settings.choice("hidden_act", GATED_ACTIVATIONS, "silu"),
        bias=False,
        experts=settings.whole("n_routed_experts"),
        active=settings.whole("num_experts_per_tok"),
        shared=settings.whole("n_shared_experts", least=0) if settings.has("n_shared_experts") else 0,
        factor=settings.number("routed_scaling_factor"),
        balance=settings.number("aux_loss_alpha") if settings.has("aux_loss_alpha") else None,
        **chosen,
    )


def _choose_v2(settings: Settings) -> dict[str, Any]:
    settings.must_be("scoring_func", "softmax", "DeepSeek-V2 has no other")
    settings.must_be("norm_topk_prob", False, "DeepSeek's own code and transformers do not agree on what true means")
    grouped = settings.choice("topk_method", {"greedy": False, "group_limited_greedy": True}, "greedy")
    return {"gate": "softmax", "normalise": False, "balancing": "loss", **_groups(settings, "best", grouped=grouped)}


def _choose_v3(settings: Settings) -> dict[str, Any]:
    settings.must_be("scoring_func", "sigmoid", "DeepSeek-V3 has no other")
    settings.must_be("topk_method", "noaux_tc", "DeepSeek-V3 has no other")
    normalise = settings.flag("norm_topk_prob", True)
    return {"gate": "sigmoid", "normalise": normalise, "balancing": "bias", **_groups(settings, "best-two")}


def _groups(settings: Settings, score: str, *, grouped: bool = True) -> dict[str, Any]:
    """How groups are chosen; nothing where there is but one."""
    groups = settings.whole("n_group") if grouped else 1
    active = settings.whole("topk_group") if grouped else 1
    return {"groups": groups, "active_groups": active, "group_score": score} if groups > 1 else {}


DEEPSEEK_V2, DEEPSEEK_V3 = (
    Family(
        name=f"DeepSeek-{version}",
        kind=f"deepseek_{version.lower()}",
        architecture=f"Deepseek{version}ForCausalLM",
        bare=f"Deepseek{version}Model",
        prefix="model.",
        read=partial(_read, usual, ids, choose),
        rules=rules,
        harmless=(FREQUENCIES,),
    )
    for version, usual, ids, choose in (
        ("V2", _V2, {"bos_token_id": 1, "eos_token_id": 2}, _choose_v2),
        ("V3", _V3, {"bos_token_id": 0, "eos_token_id": 1}, _choose_v3),
    )
)
