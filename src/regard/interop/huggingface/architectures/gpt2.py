"""GPT-2 (`GPT2LMHeadModel`): a pre-norm stack with learned positions.

Its linear layers are stored transposed, with query, key and value of a layer in one matrix.
"""

from regard.attention import LearnedConfig, MultiHeadConfig
from regard.interop.huggingface.architecture import ACTIVATIONS, Architecture, resolve_tied_embeddings, special_tokens
from regard.interop.huggingface.hf_config import HFConfig
from regard.interop.huggingface.mapping import Concatenated, Rule, Transpose, expand_layers, join_rules, module_rules
from regard.interop.huggingface.weights import Weights
from regard.model import (
    AnyModelConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    NormConfig,
    StackConfig,
)

_DEFAULTS = {"bos_token_id": 50256, "eos_token_id": 50256}
_EMBEDDING, _LM_HEAD = "wte.weight", "lm_head.weight"
_HF_LAYER, _LAYER = "h.{decoder}", "decoder.layers.{decoder}"
_ATTENTION, _FEED_FORWARD = f"{_LAYER}.self_attn", f"{_LAYER}.feed_forward"
_HF_QKV = f"{_HF_LAYER}.attn.c_attn"
_PROJECTIONS = tuple(f"{_ATTENTION}.{name}" for name in ("q_proj", "k_proj", "v_proj"))

RULES = join_rules(
    (
        Rule(_EMBEDDING, ("embed_tokens.weight",)),
        Rule(_LM_HEAD, ("lm_head.weight",)),
        Rule("wpe.weight", ("embedding.embed_positions.weight",)),
        Rule(f"{_HF_QKV}.weight", tuple(f"{name}.weight" for name in _PROJECTIONS), Concatenated(3, transposed=True)),
        Rule(f"{_HF_QKV}.bias", tuple(f"{name}.bias" for name in _PROJECTIONS), Concatenated(3)),
    ),
    module_rules(f"{_HF_LAYER}.ln_1", f"{_LAYER}.self_attn_norm"),
    module_rules(f"{_HF_LAYER}.attn.c_proj", f"{_ATTENTION}.o_proj", Transpose()),
    module_rules(f"{_HF_LAYER}.ln_2", f"{_LAYER}.feed_forward_norm"),
    module_rules(f"{_HF_LAYER}.mlp.c_fc", f"{_FEED_FORWARD}.up_proj", Transpose()),
    module_rules(f"{_HF_LAYER}.mlp.c_proj", f"{_FEED_FORWARD}.down_proj", Transpose()),
    module_rules("ln_f", "decoder.final_norm"),
)


def _read(hf_config: HFConfig, weights: Weights) -> LanguageModelConfig:
    hf_config.require("add_cross_attention", False, "a language model has no encoder to attend to")
    width, vocab_size = hf_config.integer("n_embd"), hf_config.integer("vocab_size")
    scaled = hf_config.flag("scale_attn_weights", True)
    layers = hf_config.integer("n_layer")
    if hf_config.flag("scale_attn_by_inverse_layer_idx", False):
        _scale_queries(weights, layers, width)
    stack = StackConfig(
        layers=layers,
        attention=MultiHeadConfig(
            heads=hf_config.integer("n_head"),
            similarity="scaled" if scaled else "dot",
            dropout=hf_config.number("attn_pdrop", 0.1),
        ),
        feed_forward=FeedForwardConfig(
            hidden=hf_config.integer("n_inner", 4 * width),
            activation=hf_config.choice("activation_function", ACTIVATIONS, "gelu_new"),
        ),
        norm=NormConfig(eps=hf_config.number("layer_norm_epsilon", 1e-5)),
        dropout=hf_config.number("resid_pdrop", 0.1),
    )
    return LanguageModelConfig(
        vocab_size=vocab_size,
        width=width,
        decoder=stack,
        position=LearnedConfig(max_length=hf_config.integer("n_positions")),
        embedding=EmbeddingConfig(scale=False, dropout=hf_config.number("embd_pdrop", 0.1)),
        tie_weights=resolve_tied_embeddings(weights, _EMBEDDING, _LM_HEAD, hf_config.flag("tie_word_embeddings", True)),
        special_tokens=special_tokens(hf_config, vocab_size, "bos_token_id", _DEFAULTS),
    )


def _scale_queries(weights: Weights, layers: int, width: int) -> None:
    """Divide the queries of layer n (from 1) by n, which divides its logits by n: scale_attn_by_inverse_layer_idx."""
    for layer in range(layers):
        for name in (f"h.{layer}.attn.c_attn.weight", f"h.{layer}.attn.c_attn.bias"):
            joined = weights.tensor(name).clone()
            joined[..., :width] /= layer + 1
            weights.put(name, joined)


def _rules(config: AnyModelConfig) -> list[Rule]:
    return expand_layers(RULES, config)


GPT2 = Architecture(
    name="GPT-2",
    model_type="gpt2",
    class_name="GPT2LMHeadModel",
    base_class="GPT2Model",
    prefix="transformer.",
    read=_read,
    rules=_rules,
    ignored_tensors=(r"h\.\d+\.attn\.(bias|masked_bias)",),
)
