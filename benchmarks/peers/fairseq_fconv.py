"""ConvS2S against fairseq's `fconv`: in training (with gradients) and step by step, sources padded."""

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.peers import common
from torch import Tensor, nn

from regard.model.before.convolutional.convs2s import Convolutional, ConvolutionalConfig

CHOICES: tuple[dict[str, Any], ...] = (
    {"width": 64, "encoder_layers": 2, "decoder_layers": 2, "tie_weights": False},
    {"width": 64, "hidden": 96, "encoder_layers": 3, "decoder_layers": 2, "kernel": 4, "tie_weights": True},
    {"width": 256, "encoder_layers": 4, "decoder_layers": 3, "tie_weights": False},  # fconv_iwslt_de_en
)


def compare() -> Iterator[dict[str, Any]]:
    for settings in CHOICES:
        config = ConvolutionalConfig(vocab_size=1000, source_vocab_size=900, dropout=0.0, max_length=64, **settings)
        yield _compare(config, settings)


def _compare(config: ConvolutionalConfig, settings: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    theirs = _build(config)
    ours = config.build()
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
    assert ours.source_embed_tokens is not None
    gradients = (
        (ours.source_embed_tokens.weight, theirs.encoder.embed_tokens.weight),
        (ours.encoder.in_proj.weight_v, theirs.encoder.fc1.weight_v),
        (ours.encoder.convolutions[0].weight_g, theirs.encoder.convolutions[0].weight_g),
        (ours.layers[0].cross_attn.q_proj.weight_v, theirs.decoder.attention[0].in_projection.weight_v),
        (ours.embed_tokens.weight, theirs.decoder.embed_tokens.weight),
    )
    differences["relative_gradients"] = common.relative_difference(
        (common.gradient(mine), common.gradient(other).reshape(mine.shape)) for mine, other in gradients
    )
    differences |= _compare_steps(ours, theirs, source, target, lengths)
    return common.case("fconv", settings, differences, train_ours, train_theirs)


@torch.no_grad()
def _compare_steps(
    ours: Convolutional, theirs: Any, source: Tensor, target: Tensor, lengths: Tensor
) -> dict[str, float]:
    """Differences of the logits and of the mean attention weights of all layers while decoding token by token."""
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
        mean = torch.cat(weights, dim=1).mean(dim=1)  # (rows, 1, keys)
        largest["attention"] = max(largest["attention"], common.difference(mean, attention))
    ours.train()
    theirs.train()
    return largest


def _build(config: ConvolutionalConfig) -> Any:
    fconv = importlib.import_module("fairseq.models.fconv")
    common_settings = {"embed_dim": config.width, "dropout": 0.0}
    common_settings["max_positions"] = config.max_length + 2  # two are never used
    convolution = (config.channels, config.kernel)
    return fconv.FConvModel(
        fconv.FConvEncoder(
            common.fairseq_dictionary(config.source_vocab_size or 0),
            convolutions=(convolution,) * config.encoder_layers,
            **common_settings,
        ),
        fconv.FConvDecoder(
            common.fairseq_dictionary(config.vocab_size),
            convolutions=(convolution,) * config.decoder_layers,
            out_embed_dim=config.width,
            share_embed=config.tie_weights,
            **common_settings,
        ),
    )


@torch.no_grad()
def _copy(theirs: Any, ours: Convolutional) -> None:
    """Give our model fairseq's weights. Biases, which start at zero, and the norms are changed first."""
    for name, parameter in theirs.named_parameters():
        if name.endswith("bias"):
            parameter.normal_(std=0.1)
        elif name.endswith("weight_g"):
            parameter.mul_(1 + 0.2 * torch.rand_like(parameter))
    encoder, decoder = theirs.encoder, theirs.decoder
    first = encoder.padding_idx + 1  # fairseq numbers positions from there on
    copies: list[tuple[nn.Module, Any]] = [
        (ours.encoder.in_proj, encoder.fc1),
        (ours.encoder.out_proj, encoder.fc2),
        *zip(ours.encoder.convolutions, encoder.convolutions, strict=True),
        (ours.in_proj, decoder.fc1),
        (ours.out_proj, decoder.fc2),
    ]
    for layer, convolution, attention in zip(ours.layers, decoder.convolutions, decoder.attention, strict=True):
        copies.append((layer.convolution, convolution))
        copies.append((layer.cross_attn.q_proj, attention.in_projection))
        copies.append((layer.cross_attn.o_proj, attention.out_projection))
    if ours.lm_head is None:
        assert ours.lm_head_bias is not None
        ours.lm_head_bias.copy_(decoder.fc3.bias)
    else:
        copies.append((ours.lm_head, decoder.fc3))
    for mine, other in copies:
        for name, parameter in mine.named_parameters():
            value = getattr(other, name)
            # A convolution's weight is (kernel, inputs, outputs) there, (outputs, inputs, kernel) here.
            parameter.copy_(value.permute(2, 1, 0) if value.dim() == 3 else value)
    assert ours.source_embed_tokens is not None
    ours.source_embed_tokens.weight.copy_(encoder.embed_tokens.weight)
    ours.embed_tokens.weight.copy_(decoder.embed_tokens.weight)
    ours.source_embed_positions.weight.copy_(encoder.embed_positions.weight[first : first + ours.config.max_length])
    ours.embed_positions.weight.copy_(decoder.embed_positions.weight[first : first + ours.config.max_length])
