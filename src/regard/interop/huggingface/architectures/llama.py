"""Llama (`LlamaForCausalLM`): pre-norm with RMSNorm, RoPE, grouped-query attention, a gated feed-forward.

Mistral has the same layers under the same names, so the same function reads it.
"""

from regard.attention import MultiHeadConfig, RotaryConfig
from regard.interop.huggingface.architecture import (
    GATED_ACTIVATIONS,
    Architecture,
    resolve_tied_embeddings,
    special_tokens,
)
from regard.interop.huggingface.hf_config import HFConfig
from regard.interop.huggingface.mapping import Rule, expand_layers, join_rules, module_rules
from regard.interop.huggingface.rope import read_rotary
from regard.interop.huggingface.weights import Weights
from regard.model import (
    AnyModelConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    NormConfig,
    StackConfig,
)

_DEFAULTS = {"bos_token_id": 1, "eos_token_id": 2}
_EMBEDDING, _LM_HEAD = "embed_tokens.weight", "lm_head.weight"
_HF_LAYER, _LAYER = "layers.{decoder}", "decoder.layers.{decoder}"
_ATTENTION, _FEED_FORWARD = f"{_LAYER}.self_attn", f"{_LAYER}.feed_forward"

RULES = join_rules(
    (
        Rule(_EMBEDDING, ("embed_tokens.weight",)),
        Rule(_LM_HEAD, ("lm_head.weight",)),
        Rule(f"{_HF_LAYER}.input_layernorm.weight", (f"{_LAYER}.self_attn_norm.weight",)),
        Rule(f"{_HF_LAYER}.post_attention_layernorm.weight", (f"{_LAYER}.feed_forward_norm.weight",)),
        Rule("norm.weight", ("decoder.final_norm.weight",)),
    ),
    module_rules(f"{_HF_LAYER}.self_attn.q_proj", f"{_ATTENTION}.q_proj"),
    module_rules(f"{_HF_LAYER}.self_attn.k_proj", f"{_ATTENTION}.k_proj"),
    module_rules(f"{_HF_LAYER}.self_attn.v_proj", f"{_ATTENTION}.v_proj"),
    module_rules(f"{_HF_LAYER}.self_attn.o_proj", f"{_ATTENTION}.o_proj"),
    module_rules(f"{_HF_LAYER}.mlp.gate_proj", f"{_FEED_FORWARD}.gate_proj"),
    module_rules(f"{_HF_LAYER}.mlp.up_proj", f"{_FEED_FORWARD}.up_proj"),
    module_rules(f"{_HF_LAYER}.mlp.down_proj", f"{_FEED_FORWARD}.down_proj"),
)
ROPE_FREQUENCIES = r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
"""RoPE frequencies, which old versions stored although they are computed."""


def read_model(
    hf_config: HFConfig, weights: Weights, *, kv_heads: int, biases: bool, pattern: str = "full"
) -> LanguageModelConfig:
    """Our config. `kv_heads` is the number of key/value heads, `biases` whether the config may ask for some, `pattern`
    the attention pattern.
    """
    # pretraining_tp only says in how many pieces a matmul was computed; the result is the same.
    width, heads, vocab_size = (hf_config.integer(key) for key in ("hidden_size", "num_attention_heads", "vocab_size"))
    base, scaling = read_rotary(hf_config)
    stack = StackConfig(
        layers=hf_config.integer("num_hidden_layers"),
        attention=MultiHeadConfig(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=hf_config.integer("head_dim") if hf_config.has("head_dim") else None,
            pattern=pattern,
            bias=biases and hf_config.flag("attention_bias", False),
            dropout=hf_config.number("attention_dropout", 0.0),
        ),
        feed_forward=FeedForwardConfig(
            hidden=hf_config.integer("intermediate_size"),
            activation=hf_config.choice("hidden_act", GATED_ACTIVATIONS, "silu"),
            bias=biases and hf_config.flag("mlp_bias", False),
        ),
        norm=NormConfig(kind="rms", eps=hf_config.number("rms_norm_eps", 1e-6)),
        dropout=0.0,
    )
    return LanguageModelConfig(
        vocab_size=vocab_size,
        width=width,
        decoder=stack,
        position=RotaryConfig(theta=base, scaling=scaling),
        embedding=EmbeddingConfig(scale=False, dropout=0.0),
        tie_weights=resolve_tied_embeddings(
            weights, _EMBEDDING, _LM_HEAD, hf_config.flag("tie_word_embeddings", False)
        ),
        special_tokens=special_tokens(hf_config, vocab_size, "bos_token_id", _DEFAULTS),
    )


def rules(config: AnyModelConfig) -> list[Rule]:
    return expand_layers(RULES, config)


def _read(hf_config: HFConfig, weights: Weights) -> LanguageModelConfig:
    heads = hf_config.integer("num_attention_heads")
    return read_model(hf_config, weights, kv_heads=hf_config.integer("num_key_value_heads", heads), biases=True)


LLAMA = Architecture(
    name="Llama",
    model_type="llama",
    class_name="LlamaForCausalLM",
    base_class="LlamaModel",
    prefix="model.",
    read=_read,
    rules=rules,
    ignored_tensors=(ROPE_FREQUENCIES,),
)
