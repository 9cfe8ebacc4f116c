"""BART (`BartForConditionalGeneration`): learned positions, and a norm over the sum of token and position embedding.

Its position tables begin with two rows that are never read, a leftover of fairseq, where it was first written.
"""

from regard.attention import LearnedConfig
from regard.interop.huggingface.architecture import Architecture
from regard.interop.huggingface.architectures.encoder_decoder import layer_rules, read_model
from regard.interop.huggingface.hf_config import HFConfig
from regard.interop.huggingface.mapping import Rule, SkipRows, expand_layers, join_rules, module_rules
from regard.interop.huggingface.weights import Weights
from regard.model import AnyModelConfig, EncoderDecoderConfig, NormConfig

_DEFAULTS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
_FAIRSEQ_OFFSET = SkipRows(2)

EMBEDDING_RULES = join_rules(
    (
        Rule("encoder.embed_positions.weight", ("source_embedding.embed_positions.weight",), _FAIRSEQ_OFFSET),
        Rule("decoder.embed_positions.weight", ("embedding.embed_positions.weight",), _FAIRSEQ_OFFSET),
    ),
    module_rules("encoder.layernorm_embedding", "source_embedding.norm"),
    module_rules("decoder.layernorm_embedding", "embedding.norm"),
)


def _read(hf_config: HFConfig, weights: Weights) -> EncoderDecoderConfig:
    hf_config.require("normalize_before", False, "BART's layers normalize after the residual sum")
    hf_config.require("normalize_embedding", True, "BART's embeddings have a norm")
    hf_config.require("add_final_layer_norm", False, "BART's stacks have no final norm")
    hf_config.require("static_position_embeddings", False, "BART's positions are learned")
    size = hf_config.integer("vocab_size")
    position = LearnedConfig(max_length=hf_config.integer("max_position_embeddings"))
    return read_model(hf_config, weights, position, NormConfig(), shared=True, sizes=(size, size), defaults=_DEFAULTS)


def _rules(config: AnyModelConfig) -> list[Rule]:
    return expand_layers(layer_rules(config) + EMBEDDING_RULES, config)


BART = Architecture(
    name="BART",
    model_type="bart",
    class_name="BartForConditionalGeneration",
    base_class="BartModel",
    prefix="model.",
    read=_read,
    rules=_rules,
    ignored_tensors=(r"(encoder|decoder)\.version",),
)
