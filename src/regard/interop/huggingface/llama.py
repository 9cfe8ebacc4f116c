"""Llama (`LlamaForCausalLM`): pre-norm with RMSNorm, rotary positions, grouped queries, a gated feed-forward.

Mistral has the same layers under the same names, so it is read by the same function.
"""

from regard.attention import HeadsConfig, RotaryConfig
from regard.interop.huggingface.family import GATED_ACTIVATIONS, Family, settle_output, tokens
from regard.interop.huggingface.mapping import Rule, for_layers, part, parts
from regard.interop.huggingface.rope import read_rotary
from regard.interop.huggingface.settings import Settings
from regard.interop.huggingface.weights import Weights
from regard.model import (
    AnyModelConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    NormConfig,
    StackConfig,
)

_USUAL = {"bos_token_id": 1, "eos_token_id": 2}
_WORDS, _OUTPUT = "embed_tokens.weight", "lm_head.weight"
_THEIRS, _OURS = "layers.{decoder}", "decoder.blocks.{decoder}"
_ATTENTION, _WIDEN = f"{_OURS}.attention.function", f"{_OURS}.feed_forward.function"

RULES = parts(
    (
        Rule(_WORDS, ("vocabulary.weight",)),
        Rule(_OUTPUT, ("output.weight",)),
        Rule(f"{_THEIRS}.input_layernorm.weight", (f"{_OURS}.attention.norm.weight",)),
        Rule(f"{_THEIRS}.post_attention_layernorm.weight", (f"{_OURS}.feed_forward.norm.weight",)),
        Rule("norm.weight", ("decoder.norm.weight",)),
    ),
    part(f"{_THEIRS}.self_attn.q_proj", f"{_ATTENTION}.query"),
    part(f"{_THEIRS}.self_attn.k_proj", f"{_ATTENTION}.source.key"),
    part(f"{_THEIRS}.self_attn.v_proj", f"{_ATTENTION}.source.value"),
    part(f"{_THEIRS}.self_attn.o_proj", f"{_ATTENTION}.output"),
    part(f"{_THEIRS}.mlp.gate_proj", f"{_WIDEN}.gate"),
    part(f"{_THEIRS}.mlp.up_proj", f"{_WIDEN}.widen"),
    part(f"{_THEIRS}.mlp.down_proj", f"{_WIDEN}.narrow"),
)
FREQUENCIES = r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
"""What old versions stored of rotary positions, though it is computed."""


def read_model(
    settings: Settings, weights: Weights, *, key_heads: int, biases: bool, pattern: str = "full"
) -> LanguageModelConfig:
    """Our config. `key_heads`: how many there are; `biases`: whether the settings may ask for some; `pattern`: what a
    token sees of those before it.
    """
    # pretraining_tp only says in how many pieces a product was computed; the result is the same.
    width, heads, vocabulary = (settings.whole(key) for key in ("hidden_size", "num_attention_heads", "vocab_size"))
    base, scaling = read_rotary(settings)
    stack = StackConfig(
        layers=settings.whole("num_hidden_layers"),
        attention=HeadsConfig(
            heads=heads,
            key_heads=key_heads,
            head_width=settings.whole("head_dim") if settings.has("head_dim") else None,
            pattern=pattern,
            bias=biases and settings.flag("attention_bias", False),
            dropout=settings.number("attention_dropout", 0.0),
        ),
        feed_forward=FeedForwardConfig(
            hidden=settings.whole("intermediate_size"),
            activation=settings.choice("hidden_act", GATED_ACTIVATIONS, "silu"),
            bias=biases and settings.flag("mlp_bias", False),
        ),
        norm=NormConfig(kind="rms", epsilon=settings.number("rms_norm_eps", 1e-6)),
        dropout=0.0,
    )
    return LanguageModelConfig(
        vocabulary=vocabulary,
        width=width,
        decoder=stack,
        position=RotaryConfig(base=base, scaling=scaling),
        embedding=EmbeddingConfig(scale=False, dropout=0.0),
        tie=settle_output(weights, _WORDS, _OUTPUT, settings.flag("tie_word_embeddings", False)),
        tokens=tokens(settings, vocabulary, "bos_token_id", _USUAL),
    )


def rules(config: AnyModelConfig) -> list[Rule]:
    return for_layers(RULES, config)


def _read(settings: Settings, weights: Weights) -> LanguageModelConfig:
    heads = settings.whole("num_attention_heads")
    return read_model(settings, weights, key_heads=settings.whole("num_key_value_heads", heads), biases=True)


LLAMA = Family(
    name="Llama",
    kind="llama",
    architecture="LlamaForCausalLM",
    bare="LlamaModel",
    prefix="model.",
    read=_read,
    rules=rules,
    harmless=(FREQUENCIES,),
)
