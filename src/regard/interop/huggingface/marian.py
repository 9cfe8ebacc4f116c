"""Marian, the translation models of OPUS-MT (`MarianMTModel`): the paper's Transformer with biases everywhere.

Positions are sinusoids, all sines before all cosines. They are computed, not stored; a file that stores them anyway
must store just these.
"""

import torch

from regard.attention import SinusoidalConfig
from regard.errors import UserError
from regard.interop.huggingface.encoder_decoder import layer_rules, read_model
from regard.interop.huggingface.family import Family
from regard.interop.huggingface.mapping import Rule, for_layers
from regard.interop.huggingface.settings import Settings
from regard.interop.huggingface.weights import Weights
from regard.model import AnyModelConfig, EncoderDecoderConfig

_POSITION = SinusoidalConfig(layout="halves")
_USUAL = {"pad_token_id": 58100, "decoder_start_token_id": 58100, "eos_token_id": 0}
_TABLES = ("encoder.embed_positions.weight", "decoder.embed_positions.weight")


def _read(settings: Settings, weights: Weights) -> EncoderDecoderConfig:
    settings.must_be("normalize_before", False, "Marian's layers normalise after the residual sum")
    settings.must_be("normalize_embedding", False, "Marian's embeddings have no norm")
    settings.must_be("add_final_layer_norm", False, "Marian's stacks have no last norm")
    settings.must_be("static_position_embeddings", True, "Marian's positions are sinusoids")
    shared = settings.flag("share_encoder_decoder_embeddings", True)
    source = settings.whole("vocab_size")
    # Where the table is shared their library takes its size from vocab_size and never asks for the decoder's.
    target = source if shared else settings.whole("decoder_vocab_size", source)
    _check_positions(weights)
    return read_model(settings, weights, _POSITION, None, shared=shared, sizes=(source, target), usual=_USUAL)


def _rules(config: AnyModelConfig) -> list[Rule]:
    return for_layers(layer_rules(config), config)


def _check_positions(weights: Weights) -> None:
    """Take stored tables of positions away; refuse them if they are anything but sinusoids."""
    for name in _TABLES:
        table = weights.get(name)
        if table is None:
            continue
        computed = _POSITION.code(table.shape[-1]).encode(torch.arange(table.shape[0]))
        # Half precision keeps two or three digits of a sine.
        if not torch.allclose(table.float(), computed, atol=1e-2):
            raise UserError(
                f"{weights.place(name)}: {weights.spell(name)} holds other positions than Marian's sinusoids, "
                "and regard has no place for them; import the model it was made from."
            )
        weights.put(name, None)


MARIAN = Family(
    name="Marian",
    kind="marian",
    architecture="MarianMTModel",
    bare="MarianModel",
    prefix="model.",
    read=_read,
    rules=_rules,
)
