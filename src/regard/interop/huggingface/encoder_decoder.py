"""What Marian and BART share: the same layers under the same names, post-norm, and three tables of words.

Their tables (what the encoder looks up, what the decoder looks up, what words are scored with) may be one, two or three
tensors. The settings say what was meant, the file what is; `settle_words` goes by both.
"""

from collections.abc import Mapping

from regard.attention import HeadsConfig, LearnedConfig, SinusoidalConfig
from regard.interop.huggingface.family import ACTIVATIONS, same, settle_output, tokens
from regard.interop.huggingface.mapping import Row, Rule, part, parts
from regard.interop.huggingface.settings import Settings
from regard.interop.huggingface.weights import Weights
from regard.model import (
    AnyModelConfig,
    EmbeddingConfig,
    EncoderDecoderConfig,
    FeedForwardConfig,
    NormConfig,
    StackConfig,
)

SHARED, ENCODER, DECODER = "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
OUTPUT, BIAS = "lm_head.weight", "final_logits_bias"


def _attention(stack: str, theirs: str, ours: str) -> tuple[Rule, ...]:
    """One attention of a layer and the norm behind it."""
    theirs, ours = f"{stack}.layers.{{{stack}}}.{theirs}", f"{stack}.blocks.{{{stack}}}.{ours}"
    return parts(
        part(f"{theirs}.q_proj", f"{ours}.function.query"),
        part(f"{theirs}.k_proj", f"{ours}.function.source.key"),
        part(f"{theirs}.v_proj", f"{ours}.function.source.value"),
        part(f"{theirs}.out_proj", f"{ours}.function.output"),
        part(f"{theirs}_layer_norm", f"{ours}.norm"),
    )


def _feed_forward(stack: str) -> tuple[Rule, ...]:
    theirs, ours = f"{stack}.layers.{{{stack}}}", f"{stack}.blocks.{{{stack}}}.feed_forward"
    return parts(
        part(f"{theirs}.fc1", f"{ours}.function.widen"),
        part(f"{theirs}.fc2", f"{ours}.function.narrow"),
        part(f"{theirs}.final_layer_norm", f"{ours}.norm"),
    )


LAYERS = parts(
    _attention("encoder", "self_attn", "attention"),
    _feed_forward("encoder"),
    _attention("decoder", "self_attn", "attention"),
    _attention("decoder", "encoder_attn", "cross"),
    _feed_forward("decoder"),
    (Rule(OUTPUT, ("output.weight",)), Rule(BIAS, ("output_bias",), Row())),
)
WORDS_OF_BOTH = (Rule(SHARED, ("vocabulary.weight",)),)
WORDS_OF_EACH = (Rule(ENCODER, ("source_vocabulary.weight",)), Rule(DECODER, ("vocabulary.weight",)))


def layer_rules(config: AnyModelConfig) -> tuple[Rule, ...]:
    """The rules of both families, before their layers are counted."""
    apart = isinstance(config, EncoderDecoderConfig) and config.source_vocabulary is not None
    return LAYERS + (WORDS_OF_EACH if apart else WORDS_OF_BOTH)


def read_model(
    settings: Settings,
    weights: Weights,
    position: LearnedConfig | SinusoidalConfig,
    embedding_norm: NormConfig | None,
    *,
    shared: bool,
    sizes: tuple[int, int],
    usual: Mapping[str, int],
) -> EncoderDecoderConfig:
    """Our config. `shared`: both sides look words up in one table; `sizes`: words of the source and the target;
    `usual`: the family's special ids.
    """
    tied, apart = settle_words(weights, tied=settings.flag("tie_word_embeddings", True), shared=shared)
    dropout = settings.number("dropout", 0.1)
    return EncoderDecoderConfig(
        vocabulary=sizes[1],
        source_vocabulary=sizes[0] if apart else None,
        width=settings.whole("d_model"),
        encoder=_stack(settings, "encoder", dropout),
        decoder=_stack(settings, "decoder", dropout),
        position=position,
        embedding=EmbeddingConfig(scale=settings.flag("scale_embedding", False), norm=embedding_norm, dropout=dropout),
        tie=tied,
        output_bias=_settle_bias(weights),
        tokens=tokens(settings, sizes[1], "decoder_start_token_id", usual),
    )


def settle_words(weights: Weights, *, tied: bool, shared: bool) -> tuple[bool, bool]:
    """Bring the tables of words under the names of the rules. Gives whether output and target words are one (tied),
    and whether source and target words are two (apart).

    Where both sides share a table it may be stored under any of its names, or several. Names that hold unlike numbers
    are tables of their own, whatever the settings say; that is how their own library reads them.
    """
    if not shared:
        return settle_output(weights, DECODER, OUTPUT, tied), True
    names = (SHARED, DECODER, ENCODER, OUTPUT) if tied else (SHARED,)
    common = next((tensor for name in names if (tensor := weights.get(name)) is not None), None)
    source, target, output = weights.get(ENCODER), weights.get(DECODER), weights.get(OUTPUT)
    if common is None:
        common = weights.tensor(SHARED) if source is None or target is None else target  # says what is missing
    source, target = common if source is None else source, common if target is None else target
    output = common.clone() if output is None and tied else output  # two names never share memory in a file
    tied = tied and output is not None and same(output, target)
    apart = not same(source, target)
    weights.put(SHARED, None if apart else target)
    weights.put(ENCODER, source if apart else None)
    weights.put(DECODER, target if apart else None)
    weights.put(OUTPUT, None if tied else output)
    return tied, apart


def _settle_bias(weights: Weights) -> bool:
    """Whether words have a bias. Most files store one that was never trained: zeros, which are as good as none."""
    bias = weights.get(BIAS)
    if bias is None or bias.any():
        return bias is not None
    weights.put(BIAS, None)
    return False


def _stack(settings: Settings, side: str, dropout: float) -> StackConfig:
    return StackConfig(
        layers=settings.whole(f"{side}_layers"),
        attention=HeadsConfig(
            heads=settings.whole(f"{side}_attention_heads"), dropout=settings.number("attention_dropout", 0.0)
        ),
        feed_forward=FeedForwardConfig(
            hidden=settings.whole(f"{side}_ffn_dim"),
            activation=settings.choice("activation_function", ACTIVATIONS, "gelu"),
            dropout=settings.number("activation_dropout", 0.0),
        ),
        order="post",
        dropout=dropout,
    )
