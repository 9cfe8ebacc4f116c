"""Estimated bytes saved by the fused model, against those that autograd saves in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

from typing import Any

import torch

from regard.attention.positions.config import RotaryConfig
from regard.cost import BatchShape, TrainingSetup, Workload, fused_forward
from regard.cost.fused_forward import fused_forward_cost
from regard.cost.memory import DEFERRED_BLOCK, batch_bytes
from regard.fused.layers import DeferredLogits, concatenated_weights
from regard.fused.training import fuse_for_training
from regard.model import LanguageModelConfig, ModelConfig, NormConfig
from regard.train.loss import cross_entropy
from regard.train.mixed_precision import MixedPrecisionModel
from tests.cost.support import (
    SMALL,
    LiveTensors,
    SavedTensors,
    latent_stack,
    moe_stack,
    random_ids,
    small_language_model,
    small_translator,
    stack,
)
from tests.model.small_models import with_dense_prefix


@pytest.fixture(autouse=True)
def interpret_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run Triton's kernels in its interpreter."""
    monkeypatch.setattr("regard.kernels.dispatch.runs_triton", lambda device: True)


def saved_bytes(config: ModelConfig, dtype: torch.dtype, deferred_logits: bool = True) -> int:
    """Bytes that autograd saves before the loss, without parameters, their copies and seeds."""
    model = config.build().train()
    forward: Any = fuse_for_training(model, fused_loss=deferred_logits)
    weights = list(model.parameters())
    if dtype != torch.float32:
        adjacent = concatenated_weights(forward) if deferred_logits else ()
        forward = MixedPrecisionModel(forward, dtype, adjacent=adjacent)
        weights = forward.copies
    with SavedTensors(weights, smallest=9) as saved:  # a seed has 8 bytes
        output = forward(*random_ids(config, SMALL))
    assert isinstance(output, DeferredLogits) == deferred_logits
    return saved.bytes


MODELS: dict[str, ModelConfig] = {
    "pre-norm": small_translator(stack()),
    "post-norm": small_translator(stack(norm_position="post")),
    "gelu": small_translator(stack("gelu")),
    "gated": small_translator(stack("swiglu")),
    "no dropout": small_translator(stack(dropout=0.0)),
    "narrow dense prefix": small_translator(with_dense_prefix(stack(), hidden=7, activation="gelu")),
    "shared cross_kv, grouped-query": small_translator(stack(attention={"kv_heads": 1}), cross_kv="shared"),
    "language model": small_language_model(stack()),
    "language model, post-norm, gelu": small_language_model(stack("gelu", norm_position="post")),
    "RMSNorm, no biases": small_language_model(stack("silu", attention={"bias": False}, norm=NormConfig(kind="rms"))),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())
def test_estimate_equals_what_autograd_saves(config: ModelConfig) -> None:
    estimated = fused_forward_cost(config, SMALL, "cpu", deferred_logits=True)
    assert estimated.bytes("bfloat16", "cpu") == saved_bytes(config, torch.float16)


def test_estimate_in_float32_equals_what_autograd_saves() -> None:
    config = MODELS["pre-norm"]
    estimated = fused_forward_cost(config, SMALL, "cpu", deferred_logits=True)
    assert estimated.bytes("float32", "cpu") == saved_bytes(config, torch.float32)


def test_without_deferred_logits_their_input_is_saved() -> None:
    config = MODELS["language model"]
    estimated = fused_forward_cost(config, SMALL, "cpu", deferred_logits=False)
    assert estimated.bytes("bfloat16", "cpu") == saved_bytes(config, torch.float16, deferred_logits=False)


LONG_TEXTS: dict[str, ModelConfig] = {
    "pre-norm": small_translator(stack(dropout=0.0)),
    "post-norm, shared cross_kv": small_translator(stack(dropout=0.0, norm_position="post"), cross_kv="shared"),
    "language model, gelu": small_language_model(stack("gelu", dropout=0.0)),
}


@pytest.mark.parametrize("config", LONG_TEXTS.values(), ids=LONG_TEXTS.keys())
def test_estimate_of_long_texts_equals_what_autograd_saves(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without attention dropout, PyTorch's attention is fused on a CPU too."""
    monkeypatch.setattr("regard.kernels.cuda.attention.MAX_LENGTH", 2)
    monkeypatch.setattr(fused_forward, "MAX_LENGTH", 2)
    estimated = fused_forward_cost(config, SMALL, "cpu", deferred_logits=True)
    assert estimated.bytes("bfloat16", "cpu") == saved_bytes(config, torch.float16)


UNFUSED_PARTS: dict[str, ModelConfig] = {
    "RoPE": small_language_model(stack(dropout=0.0), position=RotaryConfig()),
    "cosine": small_translator(stack(dropout=0.0, attention={"similarity": "cosine"})),
    "window": small_language_model(stack(dropout=0.0, attention={"pattern": "sliding(2)"})),
    "no output projection": small_language_model(stack(dropout=0.0, attention={"output_projection": False})),
    "squared ReLU": small_language_model(stack("relu2")),
    "latent": small_translator(latent_stack(0.0)),
    "latent with dropout, shared": small_translator(latent_stack(0.1, query_latent=5), cross_kv="shared"),
    "latent with RoPE": small_language_model(latent_stack(0.0, rope_head_dim=4), position=RotaryConfig()),
    "experts": small_translator(moe_stack()),
    "wide dense prefix before experts": small_translator(with_dense_prefix(moe_stack(), hidden=99)),
    "gated experts, some shared": small_language_model(moe_stack("swiglu", shared_experts=2, normalize=False)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("config", UNFUSED_PARTS.values(), ids=UNFUSED_PARTS.keys())
def test_sublayers_without_a_kernel_are_counted_as_unfused(config: ModelConfig) -> None:
    estimated = fused_forward_cost(config, SMALL, "cpu", deferred_logits=True)
    assert estimated.bytes("float32", "cpu") == pytest.approx(saved_bytes(config, torch.float32), rel=0.05)


def test_limits_are_those_of_the_kernels() -> None:
    from regard.kernels.cuda import activation, attention, cross_entropy

    limits = (fused_forward.MAX_LENGTH, fused_forward.FUSED_ACTIVATIONS)
    assert limits == (attention.MAX_LENGTH, activation.ACTIVATIONS)
    assert cross_entropy._MAX_LOGITS == DEFERRED_BLOCK


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_deferred_loss_peaks_at_the_estimate(precision: Any) -> None:
    dtype, tokens, width, size = torch.float32 if precision == "float32" else torch.float16, 24, 32, 700
    config = LanguageModelConfig(vocab_size=size, width=width, decoder=stack())
    x, weight = (torch.randn(count, width, dtype=dtype, requires_grad=True) for count in (tokens, size))
    targets = torch.randint(3, size, (4, tokens // 4))
    with LiveTensors([x, weight, targets], floating_point_only=False) as live:
        cross_entropy(DeferredLogits(x.view(4, tokens // 4, width), weight, None), targets, None, 0.1)
    setup = TrainingSetup(precision).resolved(config, Workload(4, tokens // 4))
    _, estimated = batch_bytes(config, BatchShape(4, tokens // 4), setup)
    assert live.peak + x.nbytes == pytest.approx(estimated, rel=0.01)
