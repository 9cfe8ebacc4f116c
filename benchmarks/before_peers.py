"""Models before the Transformer against other implementations, given the same weights.

    python benchmarks/before_peers.py --peers FOLDER

Peers are old and pin old packages, so they are installed without their dependencies, in a folder of their own:

    pip install --no-deps --target FOLDER fairseq-fixed==0.12.3.1 omegaconf==2.3 hydra-core==1.3.2 \
        antlr4-python3-runtime==4.9.3 bitarray scikit-learn scipy joblib narwhals threadpoolctl cloudpickle

Each function of `PEERS` compares with one peer and gives cases: the largest absolute differences of what both compute
in float32, and seconds per call. Add a function to compare with another one.
"""

import argparse
import importlib
import importlib.metadata
import logging
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import log, median_ratio, time_alternating, write_results
from torch import Tensor, nn

from regard.attention.context import AttentionHook
from regard.model.before.convolutional.convs2s import Convolutional, ConvolutionalConfig

TOLERANCE = 1e-5


def compare_with_fconv() -> Iterator[dict[str, Any]]:
    """ConvS2S against fairseq's `fconv`: in training (with gradients) and step by step, sources padded."""
    choices: tuple[dict[str, Any], ...] = (
        {"width": 64, "encoder_layers": 2, "decoder_layers": 2, "tie_weights": False},
        {"width": 64, "hidden": 96, "encoder_layers": 3, "decoder_layers": 2, "kernel": 4, "tie_weights": True},
        {"width": 256, "encoder_layers": 4, "decoder_layers": 3, "tie_weights": False},  # fconv_iwslt_de_en
    )
    for settings in choices:
        config = ConvolutionalConfig(vocab_size=1000, source_vocab_size=900, dropout=0.0, max_length=64, **settings)
        yield _compare_fconv(config, settings)


PEERS: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {"fairseq-fixed": compare_with_fconv}
"""The comparisons by the name of the peer's distribution."""


def _compare_fconv(config: ConvolutionalConfig, settings: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    theirs = _build_fconv(config)
    ours = config.build()
    _copy_fconv(theirs, ours)
    rows, lengths = 8, torch.tensor([25, 25, 20, 17, 12, 6, 2, 1])
    pad = theirs.encoder.padding_idx
    tokens = torch.randint(4, config.source_vocab_size or 0, (rows, 25))
    source = torch.where(torch.arange(25) < lengths[:, None], tokens, pad)
    target = torch.randint(4, config.vocab_size, (rows, 22))
    labels = torch.randint(4, config.vocab_size, (rows, 22))

    def loss_of(logits: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    our_logits = ours(source, target, source_lengths=lengths)
    their_logits, _ = theirs(source, lengths, target)
    loss_of(our_logits).backward()
    loss_of(their_logits).backward()
    assert ours.source_embed_tokens is not None
    gradients = (
        (ours.source_embed_tokens.weight, theirs.encoder.embed_tokens.weight),
        (ours.encoder.in_proj.weight_v, theirs.encoder.fc1.weight_v),
        (ours.encoder.convolutions[0].weight_g, theirs.encoder.convolutions[0].weight_g),
        (ours.layers[0].cross_attn.q_proj.weight_v, theirs.decoder.attention[0].in_projection.weight_v),
        (ours.embed_tokens.weight, theirs.decoder.embed_tokens.weight),
    )
    differences = {
        "logits": _difference(our_logits, their_logits),
        "relative_gradients": max(
            _difference(mine.grad, other.grad.reshape(mine.shape)) / float(other.grad.abs().max())
            for mine, other in gradients
        ),
        **_compare_fconv_steps(ours, theirs, source, target, lengths),
    }

    def train_ours() -> None:
        loss_of(ours(source, target, source_lengths=lengths)).backward()

    def train_theirs() -> None:
        loss_of(theirs(source, lengths, target)[0]).backward()

    our_seconds, their_seconds = time_alternating([train_ours, train_theirs], repeats=10)
    return {
        "peer": "fairseq-fixed",
        "model": "fconv",
        "case": ", ".join(f"{name} {value}" for name, value in settings.items()),
        "differences": differences,
        "equal": max(differences.values()) <= TOLERANCE,
        "ours": statistics.median(our_seconds),
        "theirs": statistics.median(their_seconds),
        "ratio": median_ratio(our_seconds, their_seconds),
        "unit": "seconds for forward and backward pass, float32",
    }


@torch.no_grad()
def _compare_fconv_steps(
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
        logits, _ = ours.step(target[:, count - 1 : count], state, attention_hook=_collect(weights))
        their_logits, attention = theirs.decoder(target[:, :count], encoded, incremental_state)
        largest["step_logits"] = max(largest["step_logits"], _difference(logits, their_logits))
        mean = torch.cat(weights, dim=1).mean(dim=1)  # (rows, 1, keys)
        largest["attention"] = max(largest["attention"], _difference(mean, attention))
    ours.train()
    theirs.train()
    return largest


def _collect(weights: list[Tensor]) -> AttentionHook:
    return lambda module, each: weights.append(each)


def _build_fconv(config: ConvolutionalConfig) -> Any:
    data, fconv = (importlib.import_module(name) for name in ("fairseq.data", "fairseq.models.fconv"))

    def dictionary(size: int) -> Any:
        words = data.Dictionary()
        for number in range(size - len(words)):
            words.add_symbol(f"w{number}")
        return words

    common = {"embed_dim": config.width, "dropout": 0.0, "max_positions": config.max_length + 2}  # two are never used
    convolution = (config.channels, config.kernel)
    return fconv.FConvModel(
        fconv.FConvEncoder(
            dictionary(config.source_vocab_size or 0), convolutions=(convolution,) * config.encoder_layers, **common
        ),
        fconv.FConvDecoder(
            dictionary(config.vocab_size),
            convolutions=(convolution,) * config.decoder_layers,
            out_embed_dim=config.width,
            share_embed=config.tie_weights,
            **common,
        ),
    )


@torch.no_grad()
def _copy_fconv(theirs: Any, ours: Convolutional) -> None:
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


def _difference(mine: Tensor | None, other: Tensor) -> float:
    assert mine is not None
    assert mine.shape == other.shape
    return float((mine - other).detach().abs().max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, help="the folder in which the peers are installed")
    parser.add_argument("--only", choices=sorted(PEERS), help="compare with this peer only; no results are written")
    args = parser.parse_args()
    sys.path.append(str(args.peers))
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")  # peers use what PyTorch has deprecated since
    cases: list[dict[str, Any]] = []
    for peer, compare in PEERS.items():
        if args.only in (None, peer):
            version = importlib.metadata.version(peer)
            cases.extend(log({**case, "version": version}) for case in compare())
    if args.only is None:
        print(f"Results written to {write_results('before-peers', cases)}")
    return 0 if all(case["equal"] for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main())
