"""What Marian and BART share: the same post-norm layers under the same names, and three embedding matrices.

The matrices (encoder embedding, decoder embedding, output) may be one, two or three tensors. config.json says what was
meant, the file what is; `resolve_embeddings` goes by both.
"""

from collections.abc import Mapping

from regard.attention import LearnedConfig, MultiHeadConfig, SinusoidalConfig
from regard.interop.huggingface.architecture import ACTIVATIONS, equal_tensors, resolve_tied_embeddings, special_tokens
from regard.interop.huggingface.hf_config import HFConfig
from regard.interop.huggingface.mapping import Rule, Unsqueeze, join_rules, module_rules
from regard.interop.huggingface.weights import Weights
from regard.model import (
    AnyModelConfig,
    EmbeddingConfig,
    EncoderDecoderConfig,
    FeedForwardConfig,
    NormConfig,
    StackConfig,
)

SHARED_EMBEDDING, ENCODER_EMBEDDING, DECODER_EMBEDDING = (
    "shared.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
)
LM_HEAD, LOGITS_BIAS = "lm_head.weight", "final_logits_bias"


def _attention(stack: str, hf: str, ours: str) -> tuple[Rule, ...]:
    """One attention sublayer and the norm after it."""
    hf, ours = f"{stack}.layers.{{{stack}}}.{hf}", f"{stack}.layers.{{{stack}}}.{ours}"
    return join_rules(
        module_rules(f"{hf}.q_proj", f"{ours}.q_proj"),
        module_rules(f"{hf}.k_proj", f"{ours}.k_proj"),
        module_rules(f"{hf}.v_proj", f"{ours}.v_proj"),
        module_rules(f"{hf}.out_proj", f"{ours}.o_proj"),
        module_rules(f"{hf}_layer_norm", f"{ours}_norm"),
    )


def _feed_forward(stack: str) -> tuple[Rule, ...]:
    hf, ours = f"{stack}.layers.{{{stack}}}", f"{stack}.layers.{{{stack}}}.feed_forward"
    return join_rules(
        module_rules(f"{hf}.fc1", f"{ours}.up_proj"),
        module_rules(f"{hf}.fc2", f"{ours}.down_proj"),
        module_rules(f"{hf}.final_layer_norm", f"{ours}_norm"),
    )


LAYERS = join_rules(
    _attention("encoder", "self_attn", "self_attn"),
    _feed_forward("encoder"),
    _attention("decoder", "self_attn", "self_attn"),
    _attention("decoder", "encoder_attn", "cross_attn"),
    _feed_forward("decoder"),
    (Rule(LM_HEAD, ("lm_head.weight",)), Rule(LOGITS_BIAS, ("lm_head_bias",), Unsqueeze())),
)
SHARED_EMBEDDING_RULES = (Rule(SHARED_EMBEDDING, ("embed_tokens.weight",)),)
SEPARATE_EMBEDDING_RULES = (
    Rule(ENCODER_EMBEDDING, ("source_embed_tokens.weight",)),
    Rule(DECODER_EMBEDDING, ("embed_tokens.weight",)),
)


def layer_rules(config: AnyModelConfig) -> tuple[Rule, ...]:
    """The rules of both architectures, before they are repeated for every layer."""
    separate = isinstance(config, EncoderDecoderConfig) and config.source_vocab_size is not None
    return LAYERS + (SEPARATE_EMBEDDING_RULES if separate else SHARED_EMBEDDING_RULES)


def read_model(
    hf_config: HFConfig,
    weights: Weights,
    position: LearnedConfig | SinusoidalConfig,
    embedding_norm: NormConfig | None,
    *,
    shared: bool,
    sizes: tuple[int, int],
    defaults: Mapping[str, int],
) -> EncoderDecoderConfig:
    """Our config. `shared`: both sides use one embedding; `sizes`: vocabulary sizes of both; `defaults`: the
    architecture's special token ids.
    """
    tied, separate = resolve_embeddings(weights, tied=hf_config.flag("tie_word_embeddings", True), shared=shared)
    dropout = hf_config.number("dropout", 0.1)
    return EncoderDecoderConfig(
        vocab_size=sizes[1],
        source_vocab_size=sizes[0] if separate else None,
        width=hf_config.integer("d_model"),
        encoder=_stack(hf_config, "encoder", dropout),
        decoder=_stack(hf_config, "decoder", dropout),
        position=position,
        embedding=EmbeddingConfig(scale=hf_config.flag("scale_embedding", False), norm=embedding_norm, dropout=dropout),
        tie_weights=tied,
        output_bias=_resolve_logits_bias(weights),
        special_tokens=special_tokens(hf_config, sizes[1], "decoder_start_token_id", defaults),
    )


def resolve_embeddings(weights: Weights, *, tied: bool, shared: bool) -> tuple[bool, bool]:
    """Store the embeddings under the names that the rules use. Returns whether output and target embedding are tied,
    and whether source and target embeddings are separate.

    A shared embedding may be stored under any of its names, or several. Names with different values are separate
    matrices, whatever config.json says; transformers reads them the same way.
    """
    if not shared:
        return resolve_tied_embeddings(weights, DECODER_EMBEDDING, LM_HEAD, tied), True
    names = (SHARED_EMBEDDING, DECODER_EMBEDDING, ENCODER_EMBEDDING, LM_HEAD) if tied else (SHARED_EMBEDDING,)
    common = next((tensor for name in names if (tensor := weights.get(name)) is not None), None)
    source, target, output = weights.get(ENCODER_EMBEDDING), weights.get(DECODER_EMBEDDING), weights.get(LM_HEAD)
    if common is None:
        common = weights.tensor(SHARED_EMBEDDING) if source is None or target is None else target  # raises the error
    source, target = common if source is None else source, common if target is None else target
    output = common.clone() if output is None and tied else output  # two names never share storage in a file
    tied = tied and output is not None and equal_tensors(output, target)
    separate = not equal_tensors(source, target)
    weights.put(SHARED_EMBEDDING, None if separate else target)
    weights.put(ENCODER_EMBEDDING, source if separate else None)
    weights.put(DECODER_EMBEDDING, target if separate else None)
    weights.put(LM_HEAD, None if tied else output)
    return tied, separate


def _resolve_logits_bias(weights: Weights) -> bool:
    """Whether logits have a bias. Most files store one that was never trained: zeros, which are as good as none."""
    bias = weights.get(LOGITS_BIAS)
    if bias is None or bias.any():
        return bias is not None
    weights.put(LOGITS_BIAS, None)
    return False


def _stack(hf_config: HFConfig, side: str, dropout: float) -> StackConfig:
    return StackConfig(
        layers=hf_config.integer(f"{side}_layers"),
        attention=MultiHeadConfig(
            heads=hf_config.integer(f"{side}_attention_heads"), dropout=hf_config.number("attention_dropout", 0.0)
        ),
        feed_forward=FeedForwardConfig(
            hidden=hf_config.integer(f"{side}_ffn_dim"),
            activation=hf_config.choice("activation_function", ACTIVATIONS, "gelu"),
            dropout=hf_config.number("activation_dropout", 0.0),
        ),
        norm_position="post",
        dropout=dropout,
    )
