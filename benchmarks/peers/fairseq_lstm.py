"""LSTMs against fairseq's `lstm`: Luong's attention with input feeding, and the language model `lstm_lm`.

fairseq scores by the current state of the top layer and a bilinear form, which is our decoder "luong" with the score
"general". Three differences are bridged: its embeddings are not multiplied by √width (ours are divided by it), its
readout and the layer before the logits have a bias where ours has none and the other way round (these are zero), and
its bilinear form is the transpose of ours. For tied weights there is no such bridge: our embeddings are scaled as
inputs only.
"""

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.peers import common
from torch import Tensor

from regard.model.before.recurrent.encoder_decoder_with_attention import (
    RecurrentAttentionModelConfig,
)
from regard.model.before.recurrent.language_model import RecurrentLM, RecurrentLMConfig

CHOICES: tuple[dict[str, Any], ...] = (
    {"width": 64, "hidden": 64, "layers": 1},
    {"width": 48, "hidden": 96, "layers": 3},
    {"width": 256, "hidden": 512, "layers": 1},  # lstm_wiseman_iwslt_de_en, with an encoder of both directions
)
LM_CHOICES: tuple[dict[str, Any], ...] = ({"width": 64, "layers": 2},)
LUONG = {"cell": "lstm", "attention": {"kind": "general"}, "decoder": {"kind": "luong", "input_feeding": True}}


def compare() -> Iterator[dict[str, Any]]:
    for settings in CHOICES:
        sizes = {"vocab_size": 1000, "source_vocab_size": 900, "dropout": 0.0, "tie_weights": False}
        yield _compare(RecurrentAttentionModelConfig.read(LUONG | sizes | settings), settings)
    for settings in LM_CHOICES:
        yield _compare_lm(RecurrentLMConfig(vocab_size=1000, dropout=0.0, tie_weights=False, **settings), settings)


def _compare(config: RecurrentAttentionModelConfig, settings: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    theirs = _build(config)
    common.perturb(theirs)
    ours: Any = config.build()
    _copy(theirs, ours)
    source, lengths, target, labels = common.some_batch(900, config.vocab_size, theirs.encoder.padding_idx)

    def train_ours() -> Tensor:
        logits: Tensor = ours(source, target, source_lengths=lengths)
        common.loss_of(logits, labels).backward()
        return logits

    def train_theirs() -> Tensor:
        logits: Tensor = theirs(source, lengths, target)[0]
        common.loss_of(logits, labels).backward()
        return logits

    differences = {"logits": common.difference(train_ours(), train_theirs())}
    scale = config.width**0.5
    encoder, decoder, gradient = ours.encoder.layers[0], ours.decoder, common.gradient
    pairs = (
        (gradient(ours.source_embed_tokens.weight) / scale, gradient(theirs.encoder.embed_tokens.weight)),
        (gradient(ours.embed_tokens.weight) / scale, gradient(theirs.decoder.embed_tokens.weight)),
        (gradient(encoder.forward_layer.weight_hh_l0), gradient(theirs.encoder.lstm.weight_hh_l0)),
        (gradient(encoder.backward_layer.weight_ih_l0), gradient(theirs.encoder.lstm.weight_ih_l0_reverse)),
        (gradient(decoder.layers[-1].weight_hh_l0), gradient(theirs.decoder.layers[-1].weight_hh)),
        (gradient(decoder.attention.key_proj.weight).T, gradient(theirs.decoder.attention.input_proj.weight)),
        (gradient(decoder.readout.proj.weight), gradient(theirs.decoder.attention.output_proj.weight)),
        (gradient(ours.lm_head_bias), gradient(theirs.decoder.fc_out.bias)),
    )
    differences["relative_gradients"] = common.relative_difference(pairs)
    differences |= _compare_steps(ours, theirs, source, target, lengths)
    return common.case("lstm", settings, differences, train_ours, train_theirs)


@torch.no_grad()
def _compare_steps(ours: Any, theirs: Any, source: Tensor, target: Tensor, lengths: Tensor) -> dict[str, float]:
    """Differences of the logits and of the attention weights while decoding token by token."""
    ours.eval()
    theirs.eval()
    state = ours.start(source, target.shape[1], lengths)
    encoded, incremental_state = theirs.encoder(source, lengths), {}  # type: ignore[var-annotated]
    largest = {"step_logits": 0.0, "attention": 0.0}
    for count in range(1, target.shape[1] + 1):
        weights: list[Tensor] = []
        logits, _ = ours.step(target[:, count - 1 : count], state, attention_hook=common.collect(weights))
        their_logits, attention = theirs.decoder(target[:, :count], encoded, incremental_state)
        largest["step_logits"] = max(largest["step_logits"], common.difference(logits, their_logits))
        theirs_now = attention.transpose(1, 2) if attention.shape[1] != 1 else attention
        largest["attention"] = max(largest["attention"], common.difference(weights[0][:, 0], theirs_now))
    ours.train()
    theirs.train()
    return largest


def _compare_lm(config: RecurrentLMConfig, settings: dict[str, Any]) -> dict[str, Any]:
    """The decoder without an encoder, which begins with zeros."""
    torch.manual_seed(0)
    lstm = importlib.import_module("fairseq.models.lstm")
    theirs = lstm.LSTMDecoder(
        common.fairseq_dictionary(config.vocab_size),
        embed_dim=config.width,
        hidden_size=config.width,
        out_embed_dim=config.width,
        num_layers=config.layers,
        dropout_in=0.0,
        dropout_out=0.0,
        attention=False,
        encoder_output_units=0,
    )
    common.perturb(theirs)
    ours: Any = config.build()
    _copy_decoder(theirs, ours)
    _, _, tokens, labels = common.some_batch(900, config.vocab_size, 1)

    def train_ours() -> Tensor:
        logits: Tensor = ours(tokens)
        common.loss_of(logits, labels).backward()
        return logits

    def train_theirs() -> Tensor:
        logits: Tensor = theirs(tokens)[0]
        common.loss_of(logits, labels).backward()
        return logits

    differences = {"logits": common.difference(train_ours(), train_theirs())}
    layer = ours.layers[0]
    pairs = (
        (common.gradient(ours.embed_tokens.weight) / config.width**0.5, common.gradient(theirs.embed_tokens.weight)),
        (common.gradient(layer.weight_hh_l0), common.gradient(theirs.layers[0].weight_hh)),
    )
    differences["relative_gradients"] = common.relative_difference(pairs)
    return common.case("lstm_lm", settings, differences, train_ours, train_theirs)


def _build(config: RecurrentAttentionModelConfig) -> Any:
    lstm = importlib.import_module("fairseq.models.lstm")
    dropout = {"dropout_in": 0.0, "dropout_out": 0.0}
    return lstm.LSTMModel(
        lstm.LSTMEncoder(
            common.fairseq_dictionary(config.source_vocab_size or 0),
            embed_dim=config.width,
            hidden_size=config.memory_width // 2,
            num_layers=config.layers,
            bidirectional=True,
            left_pad=False,
            **dropout,
        ),
        lstm.LSTMDecoder(
            common.fairseq_dictionary(config.vocab_size),
            embed_dim=config.width,
            hidden_size=config.hidden,
            out_embed_dim=config.width,
            num_layers=config.layers,
            encoder_output_units=config.memory_width,
            **dropout,
        ),
    )


@torch.no_grad()
def _copy(theirs: Any, ours: Any) -> None:
    """Give our model fairseq's weights; a bias that ours does not have is zero."""
    encoder, decoder = theirs.encoder, theirs.decoder
    ours.source_embed_tokens.weight.copy_(encoder.embed_tokens.weight / ours.config.width**0.5)
    for number, layer in enumerate(ours.encoder.layers):
        for one, suffix in ((layer.forward_layer, ""), (layer.backward_layer, "_reverse")):
            for name, parameter in one.named_parameters():
                parameter.copy_(getattr(encoder.lstm, name.replace("l0", f"l{number}") + suffix))
    ours.decoder.attention.key_proj.weight.copy_(decoder.attention.input_proj.weight.T)
    ours.decoder.readout.proj.weight.copy_(decoder.attention.output_proj.weight)
    ours.decoder.readout.proj.bias.zero_()
    if hasattr(decoder, "additional_fc"):
        decoder.additional_fc.bias.zero_()
        ours.decoder.output_proj.weight.copy_(decoder.additional_fc.weight)
    _copy_decoder(decoder, ours)


@torch.no_grad()
def _copy_decoder(decoder: Any, ours: Any) -> None:
    """The embeddings, the layers and the logits."""
    ours.embed_tokens.weight.copy_(decoder.embed_tokens.weight / ours.config.width**0.5)
    layers: Any = ours.layers if isinstance(ours, RecurrentLM) else ours.decoder.layers
    for layer, other in zip(layers, decoder.layers, strict=True):
        for name, parameter in layer.named_parameters():
            parameter.copy_(getattr(other, name.removesuffix("_l0")))
    ours.lm_head.weight.copy_(decoder.fc_out.weight)
    ours.lm_head_bias.copy_(decoder.fc_out.bias)
