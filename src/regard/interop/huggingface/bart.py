"""BART (`BartForConditionalGeneration`): learned positions, and a norm over the sum of word and position.

Its tables of positions begin with two rows that are never read, a memory of the library it was first written in.
"""

from regard.attention import LearnedConfig
from regard.interop.huggingface.encoder_decoder import layer_rules, read_model
from regard.interop.huggingface.family import Family
from regard.interop.huggingface.mapping import Offset, Rule, for_layers, part, parts
from regard.interop.huggingface.settings import Settings
from regard.interop.huggingface.weights import Weights
from regard.model import AnyModelConfig, EncoderDecoderConfig, NormConfig

_USUAL = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
_UNREAD = Offset(2)

INPUTS = parts(
    (
        Rule("encoder.embed_positions.weight", ("source_input.position.table",), _UNREAD),
        Rule("decoder.embed_positions.weight", ("input.position.table",), _UNREAD),
    ),
    part("encoder.layernorm_embedding", "source_input.norm"),
    part("decoder.layernorm_embedding", "input.norm"),
)


def _read(settings: Settings, weights: Weights) -> EncoderDecoderConfig:
    settings.must_be("normalize_before", False, "BART's layers normalise after the residual sum")
    settings.must_be("normalize_embedding", True, "BART's embeddings have a norm")
    settings.must_be("add_final_layer_norm", False, "BART's stacks have no last norm")
    settings.must_be("static_position_embeddings", False, "BART's positions are learned")
    size = settings.whole("vocab_size")
    position = LearnedConfig(limit=settings.whole("max_position_embeddings"))
    return read_model(settings, weights, position, NormConfig(), shared=True, sizes=(size, size), usual=_USUAL)


def _rules(config: AnyModelConfig) -> list[Rule]:
    return for_layers(layer_rules(config) + INPUTS, config)


BART = Family(
    name="BART",
    kind="bart",
    architecture="BartForConditionalGeneration",
    bare="BartModel",
    prefix="model.",
    read=_read,
    rules=_rules,
    harmless=(r"(encoder|decoder)\.version",),
)
