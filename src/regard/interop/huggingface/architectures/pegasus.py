"""Pegasus (`PegasusForConditionalGeneration`): pre-norm, with sinusoids in halves, all sines before all cosines.

Only for export: translators trained here are pre-norm with sinusoidal positions, and Pegasus is the architecture of
transformers that computes the same.
"""

from regard.attention import SinusoidalConfig
from regard.interop.huggingface.architecture import Architecture
from regard.interop.huggingface.architectures.encoder_decoder import layer_rules, read_model
from regard.interop.huggingface.hf_config import HFConfig
from regard.interop.huggingface.mapping import Rule, expand_layers, join_rules, module_rules
from regard.interop.huggingface.weights import Weights
from regard.model import AnyModelConfig, EncoderDecoderConfig

HALVES = SinusoidalConfig(layout="halves")


def _read(hf_config: HFConfig, weights: Weights) -> EncoderDecoderConfig:
    size = hf_config.integer("vocab_size")
    values = read_model(hf_config, weights, HALVES, None, shared=True, sizes=(size, size), defaults={}).plain()
    for stack in ("encoder", "decoder"):
        values[stack]["norm_position"] = "pre"
    return EncoderDecoderConfig.read(values)


def _rules(config: AnyModelConfig) -> list[Rule]:
    final_norms = join_rules(
        module_rules("encoder.layer_norm", "encoder.final_norm"),
        module_rules("decoder.layer_norm", "decoder.final_norm"),
    )
    return expand_layers(layer_rules(config) + final_norms, config)


PEGASUS = Architecture(
    name="Pegasus",
    model_type="pegasus",
    class_name="PegasusForConditionalGeneration",
    base_class="PegasusModel",
    prefix="model.",
    read=_read,
    rules=_rules,
)
