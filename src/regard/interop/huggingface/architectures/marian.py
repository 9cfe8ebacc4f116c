"""Marian, the translation models of OPUS-MT (`MarianMTModel`): the paper's Transformer with biases everywhere.

Positions are sinusoids, all sines before all cosines. They are computed, not stored; a file that stores them anyway
must store exactly these.
"""

import torch

from regard.attention import SinusoidalConfig
from regard.errors import UserError
from regard.interop.huggingface.architecture import Architecture
from regard.interop.huggingface.architectures.encoder_decoder import layer_rules, read_model
from regard.interop.huggingface.hf_config import HFConfig
from regard.interop.huggingface.mapping import Rule, expand_layers
from regard.interop.huggingface.weights import Weights
from regard.model import AnyModelConfig, EncoderDecoderConfig

_POSITION = SinusoidalConfig(layout="halves")
_DEFAULTS = {"pad_token_id": 58100, "decoder_start_token_id": 58100, "eos_token_id": 0}
_POSITION_TABLES = ("encoder.embed_positions.weight", "decoder.embed_positions.weight")


def _read(hf_config: HFConfig, weights: Weights) -> EncoderDecoderConfig:
    hf_config.require("normalize_before", False, "Marian's layers normalize after the residual sum")
    hf_config.require("normalize_embedding", False, "Marian's embeddings have no norm")
    hf_config.require("add_final_layer_norm", False, "Marian's stacks have no final norm")
    hf_config.require("static_position_embeddings", True, "Marian's positions are sinusoids")
    shared = hf_config.flag("share_encoder_decoder_embeddings", True)
    source = hf_config.integer("vocab_size")
    # With a shared embedding transformers takes its size from vocab_size and ignores the decoder's.
    target = source if shared else hf_config.integer("decoder_vocab_size", source)
    _check_positions(weights)
    return read_model(hf_config, weights, _POSITION, None, shared=shared, sizes=(source, target), defaults=_DEFAULTS)


def _rules(config: AnyModelConfig) -> list[Rule]:
    return expand_layers(layer_rules(config), config)


def _check_positions(weights: Weights) -> None:
    """Remove stored position tables; refuse them if they are anything but sinusoids."""
    for name in _POSITION_TABLES:
        table = weights.get(name)
        if table is None:
            continue
        computed = _POSITION.encoding(table.shape[-1]).encode(torch.arange(table.shape[0]))
        # float16 has two or three digits of a sine.
        if not torch.allclose(table.float(), computed, atol=1e-2):
            raise UserError(
                f"{weights.file_of(name)}: {weights.original_name(name)} holds no sinusoids like Marian's, "
                "and regard has no place for them; import the model it was made from."
            )
        weights.put(name, None)


MARIAN = Architecture(
    name="Marian",
    model_type="marian",
    class_name="MarianMTModel",
    base_class="MarianModel",
    prefix="model.",
    read=_read,
    rules=_rules,
)
