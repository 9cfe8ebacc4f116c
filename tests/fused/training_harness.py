"""Helpers for tests of models fused for training: small models, a batch, and comparisons with the unfused model."""

from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import MultiHeadConfig
from regard.fused.training import fuse_for_training
from regard.model import EncoderDecoder, EncoderDecoderConfig, FeedForwardConfig, NormConfig, StackConfig
from regard.train.loss import cross_entropy

VOCAB_SIZE = 30


def stack(heads: MultiHeadConfig | None = None, dropout: float = 0.0, **more: Any) -> StackConfig:
    more.setdefault("feed_forward", FeedForwardConfig(hidden=24))
    return StackConfig(layers=2, attention=heads or MultiHeadConfig(heads=2), dropout=dropout, **more)


def translator(kind: StackConfig, **more: Any) -> EncoderDecoder:
    torch.manual_seed(3)
    embedding = {"embedding": {"dropout": 0.0}}
    config = EncoderDecoderConfig.read(
        {"vocab_size": VOCAB_SIZE, "width": 16, "encoder": kind.plain(), "decoder": kind.plain(), **embedding, **more}
    )
    model = config.build().train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


STACKS = {
    "pre-norm": stack(),
    "post-norm": stack(norm_position="post"),
    "one kv head": stack(MultiHeadConfig(heads=2, kv_heads=1)),
    "no biases": stack(
        MultiHeadConfig(heads=4, bias=False),
        feed_forward=FeedForwardConfig(hidden=24, bias=False),
        norm=NormConfig(bias=False),
    ),
    "rms norm": stack(norm=NormConfig(kind="rms")),
    "gated": stack(feed_forward=FeedForwardConfig(hidden=24, activation="swiglu")),
    "gelu": stack(feed_forward=FeedForwardConfig(hidden=24, activation="gelu")),
    "cosine similarity": stack(MultiHeadConfig(heads=2, similarity="cosine")),
}
SOURCE = torch.tensor([[5, 6, 7, 8, 9], [4, 5, 0, 0, 0], [11, 12, 13, 0, 0]])
TARGET = torch.tensor([[1, 6, 7], [1, 8, 9], [1, 4, 0]])
LENGTHS = {"source_lengths": torch.tensor([5, 2, 3]), "target_lengths": torch.tensor([3, 3, 2])}


def logits_and_grads(model: Any, forward: Any, *inputs: Tensor, **more: Any) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    logits = forward(*inputs, **more)
    torch.manual_seed(1)
    (logits * torch.randn_like(logits)).sum().backward()
    return logits.detach(), cloned_grads(model)


def cloned_grads(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_grads_close(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, grad in expected.items():
        assert torch.allclose(actual[name], grad, atol=1e-4 * max(1.0, float(grad.abs().max()))), name


def check_fused(model: Any, *inputs: Tensor, **more: Any) -> None:
    """Compare logits and gradients."""
    fused = fuse_for_training(model)
    assert fused is not model
    expected, expected_grads = logits_and_grads(model, model, *inputs, **more)
    actual, grads = logits_and_grads(model, fused, *inputs, **more)
    assert torch.allclose(actual, expected, atol=1e-4, rtol=1e-4)
    assert_grads_close(grads, expected_grads)


def check_fused_loss(model: Any, source: Tensor, target: Tensor, **lengths: Tensor) -> None:
    """Compare the loss and its gradients if the loss itself computes the logits and skips padding."""
    targets = torch.randint(3, VOCAB_SIZE, target.shape, generator=torch.Generator().manual_seed(2))
    losses, grads = [], []
    for forward in (model, fuse_for_training(model, fused_loss=True)):
        model.zero_grad()
        loss = cross_entropy(forward(source, target, **lengths), targets, lengths.get("target_lengths"), 0.1)
        (3 * loss.total).backward()
        losses.append(loss)
        grads.append(cloned_grads(model))
    torch.testing.assert_close(losses[1].total, losses[0].total)
    torch.testing.assert_close(losses[1].nll, losses[0].nll)
    assert losses[1].count == losses[0].count
    assert_grads_close(grads[1], grads[0])
