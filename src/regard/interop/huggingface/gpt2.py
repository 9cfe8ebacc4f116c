"""GPT-2 (`GPT2LMHeadModel`): a pre-norm stack with learned positions.

Its linear layers are stored transposed, and query, key and value of a layer in one matrix.
"""

from regard.attention import HeadsConfig, LearnedConfig
from regard.interop.huggingface.family import ACTIVATIONS, Family, settle_output, tokens
from regard.interop.huggingface.mapping import Joined, Rule, Transposed, for_layers, part, parts
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

_USUAL = {"bos_token_id": 50256, "eos_token_id": 50256}
_WORDS, _OUTPUT = "wte.weight", "lm_head.weight"
_THEIRS, _OURS = "h.{decoder}", "decoder.blocks.{decoder}"
_ATTENTION, _WIDEN = f"{_OURS}.attention.function", f"{_OURS}.feed_forward.function"
_JOINED = f"{_THEIRS}.attn.c_attn"
_PROJECTIONS = tuple(f"{_ATTENTION}.{name}" for name in ("query", "source.key", "source.value"))

RULES = parts(
    (
        Rule(_WORDS, ("vocabulary.weight",)),
        Rule(_OUTPUT, ("output.weight",)),
        Rule("wpe.weight", ("input.position.table",)),
        Rule(f"{_JOINED}.weight", tuple(f"{name}.weight" for name in _PROJECTIONS), Joined(3, transposed=True)),
        Rule(f"{_JOINED}.bias", tuple(f"{name}.bias" for name in _PROJECTIONS), Joined(3)),
    ),
    part(f"{_THEIRS}.ln_1", f"{_OURS}.attention.norm"),
    part(f"{_THEIRS}.attn.c_proj", f"{_ATTENTION}.output", Transposed()),
    part(f"{_THEIRS}.ln_2", f"{_OURS}.feed_forward.norm"),
    part(f"{_THEIRS}.mlp.c_fc", f"{_WIDEN}.widen", Transposed()),
    part(f"{_THEIRS}.mlp.c_proj", f"{_WIDEN}.narrow", Transposed()),
    part("ln_f", "decoder.norm"),
)


def _read(settings: Settings, weights: Weights) -> LanguageModelConfig:
    settings.must_be("add_cross_attention", False, "a language model has no encoder to look at")
    width, vocabulary = settings.whole("n_embd"), settings.whole("vocab_size")
    scaled = settings.flag("scale_attn_weights", True)
    layers = settings.whole("n_layer")
    if settings.flag("scale_attn_by_inverse_layer_idx", False):
        _slow_queries(weights, layers, width)
    stack = StackConfig(
        layers=layers,
        attention=HeadsConfig(
            heads=settings.whole("n_head"),
            similarity="scaled" if scaled else "dot",
            dropout=settings.number("attn_pdrop", 0.1),
        ),
        feed_forward=FeedForwardConfig(
            hidden=settings.whole("n_inner", 4 * width),
            activation=settings.choice("activation_function", ACTIVATIONS, "gelu_new"),
        ),
        norm=NormConfig(epsilon=settings.number("layer_norm_epsilon", 1e-5)),
        dropout=settings.number("resid_pdrop", 0.1),
    )
    return LanguageModelConfig(
        vocabulary=vocabulary,
        width=width,
        decoder=stack,
        position=LearnedConfig(limit=settings.whole("n_positions")),
        embedding=EmbeddingConfig(scale=False, dropout=settings.number("embd_pdrop", 0.1)),
        tie=settle_output(weights, _WORDS, _OUTPUT, settings.flag("tie_word_embeddings", True)),
        tokens=tokens(settings, vocabulary, "bos_token_id", _USUAL),
    )


def _slow_queries(weights: Weights, layers: int, width: int) -> None:
    """Divide the queries of layer n (from 1) by n, which divides its scores by n: scale_attn_by_inverse_layer_idx."""
    for layer in range(layers):
        for name in (f"h.{layer}.attn.c_attn.weight", f"h.{layer}.attn.c_attn.bias"):
            joined = weights.tensor(name).clone()
            joined[..., :width] /= layer + 1
            weights.put(name, joined)


def _rules(config: AnyModelConfig) -> list[Rule]:
    return for_layers(RULES, config)


GPT2 = Family(
    name="GPT-2",
    kind="gpt2",
    architecture="GPT2LMHeadModel",
    bare="GPT2Model",
    prefix="transformer.",
    read=_read,
    rules=_rules,
    harmless=(r"h\.\d+\.attn\.(bias|masked_bias)",),
)
