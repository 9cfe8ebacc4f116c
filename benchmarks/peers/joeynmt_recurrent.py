"""Recurrent encoder–decoders against JoeyNMT's, and Bahdanau's attention against its module.

JoeyNMT's decoder takes the *current* state as the query, also of Bahdanau's attention, and uses the context after the
cell. That is our decoder "luong" with the score "additive" (its `bahdanau`) or "general" (its `luong`); our decoder
"bahdanau", in which the previous state attends, has no counterpart there, so of it only the attention module is
compared. With a GRU of one layer and `init_hidden: last` whole models are equal. With several layers, or an LSTM,
JoeyNMT starts all layers, and c as well as h, from the last h of the top encoder layer, whereas Luong et al. (2015)
and we give each layer its own states: there our first states are passed to its decoder, and all else is compared.
"""

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.peers import common
from torch import Tensor

from regard.model.before.recurrent.attention_scores import RecurrentAttentionConfig, Source
from regard.model.before.recurrent.encoder_decoder_with_attention import (
    RecurrentAttentionModelConfig,
)
from regard.model.before.recurrent.layers import unpack_states

KINDS = {"additive": "bahdanau", "general": "luong"}
"""JoeyNMT's name of a score, by ours."""
CHOICES: tuple[dict[str, Any], ...] = (
    {"cell": "gru", "hidden": 64, "layers": 1, "score": "additive", "input_feeding": True},
    {"cell": "gru", "hidden": 64, "layers": 1, "score": "general", "input_feeding": False},
    {"cell": "lstm", "hidden": 96, "layers": 2, "score": "additive", "input_feeding": True},
    {"cell": "lstm", "hidden": 512, "layers": 1, "score": "general", "input_feeding": True},
)


def compare() -> Iterator[dict[str, Any]]:
    for size in (64, 512):
        yield _compare_attention(size)
    for settings in CHOICES:
        config = RecurrentAttentionModelConfig.read(
            {"vocab_size": 1000, "source_vocab_size": 900, "dropout": 0.0, "tie_weights": False}
            | {"width": settings["hidden"], "attention": {"kind": settings["score"]}}
            | {"decoder": {"kind": "luong", "input_feeding": settings["input_feeding"]}}
            | {name: settings[name] for name in ("cell", "hidden", "layers")}
        )
        yield _compare(config, settings)


def _compare_attention(size: int) -> dict[str, Any]:
    torch.manual_seed(0)
    theirs = importlib.import_module("joeynmt.attention").BahdanauAttention(size, size, size)
    common.perturb(theirs)
    ours: Any = RecurrentAttentionConfig().build(size, size)
    with torch.no_grad():
        for mine, other in ((ours.query_proj, theirs.query_layer), (ours.key_proj, theirs.key_layer)):
            mine.weight.copy_(other.weight)
        ours.score_proj.weight.copy_(theirs.energy_layer.weight)
    rows, keys = 8, 25
    values, query = torch.randn(rows, keys, size), torch.randn(rows, 1, size)
    mask = (torch.arange(keys) < torch.tensor([25, 25, 20, 17, 12, 6, 2, 1])[:, None])[:, None]

    def train_ours() -> tuple[Tensor, Tensor]:
        context, weights = ours(query, Source(ours.keys(values), values, ~mask))
        (context.sum() + weights.square().sum()).backward()
        return context, weights

    def train_theirs() -> tuple[Tensor, Tensor]:
        theirs.compute_proj_keys(values)
        context, weights = theirs(query, mask, values)
        (context.sum() + weights.square().sum()).backward()
        return context, weights

    (context, weights), (their_context, their_weights) = train_ours(), train_theirs()
    pairs = (
        (ours.query_proj, theirs.query_layer),
        (ours.key_proj, theirs.key_layer),
        (ours.score_proj, theirs.energy_layer),
    )
    differences = {
        "context": common.difference(context, their_context),
        "attention": common.difference(weights, their_weights),
        "relative_gradients": common.relative_difference(
            (common.gradient(mine.weight), common.gradient(other.weight)) for mine, other in pairs
        ),
    }
    return common.case("BahdanauAttention", {"width": size}, differences, train_ours, train_theirs)


class _Peer(torch.nn.Module):
    """JoeyNMT's embeddings, encoder and decoder, called as its model calls them."""

    def __init__(self, config: RecurrentAttentionModelConfig, settings: dict[str, Any]) -> None:
        super().__init__()
        names = ("embeddings", "encoders", "decoders")
        embeddings, encoders, decoders = (importlib.import_module(f"joeynmt.{name}") for name in names)
        width, hidden = config.width, config.hidden
        shape = {"rnn_type": config.cell, "emb_size": width, "num_layers": config.layers}
        sizes = config.source_vocab_size, config.vocab_size
        self.source, self.target = (embeddings.Embeddings(width, scale=True, vocab_size=size) for size in sizes)
        self.encoder = encoders.RecurrentEncoder(hidden_size=hidden // 2, bidirectional=True, **shape)
        self.decoder = decoders.RecurrentDecoder(
            hidden_size=hidden,
            encoder=self.encoder,
            attention=KINDS[settings["score"]],
            vocab_size=config.vocab_size,
            init_hidden="last",
            input_feeding=settings["input_feeding"],
            **shape,
        )

    def forward(
        self, source: Tensor, lengths: Tensor, target: Tensor, first: Any = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits, attention weights, and what the encoder gives; `first` is the decoder's first state."""
        mask = (torch.arange(source.shape[1]) < lengths[:, None])[:, None]
        output, last = self.encoder(self.source(source), lengths, mask)
        logits, _, weights, _ = self.decoder(self.target(target), output, last, mask, target.shape[1], hidden=first)
        return logits, weights, output, last


def _compare(config: RecurrentAttentionModelConfig, settings: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    theirs = _Peer(config, settings)
    common.perturb(theirs)
    for each in (theirs.source, theirs.target):  # they are multiplied by √width
        torch.nn.init.normal_(each.lut.weight, std=config.width**-0.5)
    ours: Any = config.build()
    _copy(theirs, ours)
    source, lengths, target, labels = common.some_batch(900, config.vocab_size, 1)
    is_whole = config.cell == "gru" and config.layers == 1

    def first_states() -> Any:
        """Ours as JoeyNMT takes them: (rows, layers, hidden), h and c of an LSTM."""
        if is_whole:
            return None
        states = unpack_states(ours.encode(source, lengths).rows)[: config.layers]
        parts = tuple(torch.stack(part, dim=1) for part in zip(*states, strict=True))
        return parts if config.cell == "lstm" else parts[0]

    def train_ours() -> Tensor:
        logits: Tensor = ours(source, target, source_lengths=lengths)
        common.loss_of(logits, labels).backward()
        return logits

    def train_theirs() -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = theirs(source, lengths, target, first)
        common.loss_of(found[0], labels).backward()
        return found

    with torch.no_grad():
        first = first_states()
    their_logits, attention, memory, last = train_theirs()
    differences = {"logits": common.difference(train_ours(), their_logits)}
    if is_whole:  # otherwise no gradient flows through the first states of one of them
        differences["relative_gradients"] = common.relative_difference(_gradients(ours, theirs))
    weights: list[Tensor] = []
    with torch.no_grad():
        encoded = ours.encode(source, lengths)
        differences["encoder"] = common.difference(encoded.memory["value"], memory)
        top = unpack_states(encoded.rows)[config.layers - 1][0]
        differences["last_state"] = common.difference(top, last)
        ours(source, target, source_lengths=lengths, attention_hook=common.collect(weights))
    differences["attention"] = common.difference(weights[0][:, 0], attention)
    return common.case("recurrent encoder–decoder", settings, differences, train_ours, train_theirs)


def _gradients(ours: Any, theirs: _Peer) -> Iterator[tuple[Tensor, Tensor]]:
    encoder, decoder, gradient = ours.encoder.layers[0], ours.decoder, common.gradient
    yield gradient(ours.source_embed_tokens.weight), gradient(theirs.source.lut.weight)
    yield gradient(ours.embed_tokens.weight), gradient(theirs.target.lut.weight)
    yield gradient(encoder.forward_layer.weight_hh_l0), gradient(theirs.encoder.rnn.weight_hh_l0)
    yield gradient(encoder.backward_layer.weight_ih_l0), gradient(theirs.encoder.rnn.weight_ih_l0_reverse)
    yield gradient(decoder.layers[0].weight_hh_l0), gradient(theirs.decoder.rnn.weight_hh_l0)
    yield gradient(decoder.attention.key_proj.weight), gradient(theirs.decoder.attention.key_layer.weight)
    yield gradient(decoder.readout.proj.bias), gradient(theirs.decoder.att_vector_layer.bias)


@torch.no_grad()
def _copy(theirs: _Peer, ours: Any) -> None:
    """Give our model JoeyNMT's weights. Its logits have no bias, and its readout takes the state before the context."""
    decoder = theirs.decoder
    ours.source_embed_tokens.weight.copy_(theirs.source.lut.weight)
    ours.embed_tokens.weight.copy_(theirs.target.lut.weight)
    for number, layer in enumerate(ours.encoder.layers):
        for one, suffix in ((layer.forward_layer, ""), (layer.backward_layer, "_reverse")):
            for name, parameter in one.named_parameters():
                parameter.copy_(getattr(theirs.encoder.rnn, name.replace("l0", f"l{number}") + suffix))
    for number, layer in enumerate(ours.decoder.layers):
        for name, parameter in layer.named_parameters():
            parameter.copy_(getattr(decoder.rnn, name.replace("l0", f"l{number}")))
    state, context = decoder.att_vector_layer.weight.split(ours.config.hidden, dim=1)
    ours.decoder.readout.proj.weight.copy_(torch.cat((context, state), dim=1))
    ours.decoder.readout.proj.bias.copy_(decoder.att_vector_layer.bias)
    ours.decoder.attention.key_proj.weight.copy_(decoder.attention.key_layer.weight)
    if ours.config.attention.kind == "additive":
        ours.decoder.attention.query_proj.weight.copy_(decoder.attention.query_layer.weight)
        ours.decoder.attention.score_proj.weight.copy_(decoder.attention.energy_layer.weight)
    ours.lm_head.weight.copy_(decoder.output_layer.weight)
    ours.lm_head_bias.zero_()
