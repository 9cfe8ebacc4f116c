"""Helpers for tests of costs: small configs, their workloads, and counters of the bytes that a pass allocates."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.attention import LatentAttentionConfig, MultiHeadConfig, RotaryConfig
from regard.cost import BatchShape, Cost, Precision, TrainingSetup, Workload, estimate
from regard.model import (
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    ModelConfig,
    StackConfig,
    transformer_base,
)
from regard.model.mixture_of_experts import MixtureOfExpertsConfig
from tests.model.small_models import SAMPLES

EVERY_SAMPLE = pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=f"{kind}, {name}")
        for kind, configs in SAMPLES.items()
        for name, config in configs.items()
    ],
)

# Small enough for Triton's interpreter; lengths differ, and a window of 2 is narrower than both.
SMALL = BatchShape(batch_size=2, target_length=3, source_length=4)

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
CAPTURE_WORKSPACES = 66
"""cuBLAS workspaces of the process that capture-gpu.json was measured in: 33 streams of two threads each."""


# Configs


def stack(activation: str = "relu", dropout: float = 0.1, attention: dict[str, Any] | None = None, **more: Any) -> Any:
    """Two small layers with dropout everywhere."""
    heads = MultiHeadConfig(**{"heads": 2, "dropout": dropout, **(attention or {})})
    feed_forward = FeedForwardConfig.read({"hidden": 48, "activation": activation, "dropout": dropout})
    return StackConfig(**{"layers": 2, "dropout": dropout} | more, attention=heads, feed_forward=feed_forward)


def latent_stack(dropout: float = 0.1, **more: Any) -> StackConfig:
    """The same stack with multi-head latent attention."""
    latent = LatentAttentionConfig(heads=2, kv_latent=12, head_dim=6, value_head_dim=10, dropout=dropout, **more)
    config: StackConfig = stack(dropout=dropout).model_copy(update={"attention": latent})
    return config


def moe_stack(activation: str = "relu", dropout: float = 0.1, layers: int = 2, **more: Any) -> StackConfig:
    """The same stack with a mixture of experts."""
    experts = {"hidden": 24, "experts": 5, "activation": activation, "dropout": dropout, **more}
    update = {"feed_forward": MixtureOfExpertsConfig.read(experts)}
    config: StackConfig = stack(dropout=dropout, layers=layers).model_copy(update=update)
    return config


def small_translator(both: StackConfig, **more: Any) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(**{"vocab_size": 60, "width": 32, "encoder": both, "decoder": both} | more)


def small_language_model(decoder: StackConfig, **more: Any) -> LanguageModelConfig:
    return LanguageModelConfig(vocab_size=60, width=32, decoder=decoder, **more)


def translator(width: int, layers: int, vocab_size: int, **more: Any) -> EncoderDecoderConfig:
    config = StackConfig(
        layers=layers, attention=MultiHeadConfig(heads=4), feed_forward=FeedForwardConfig(hidden=4 * width), **more
    )
    return EncoderDecoderConfig(vocab_size=vocab_size, width=width, encoder=config, decoder=config)


def gpt2(layers: int = 12, width: int = 768, vocab_size: int = 50304) -> LanguageModelConfig:
    config = StackConfig(
        layers=layers,
        attention=MultiHeadConfig(heads=width // 64),
        feed_forward=FeedForwardConfig(hidden=4 * width, activation="gelu"),
    )
    return LanguageModelConfig(vocab_size=vocab_size, width=width, decoder=config)


def deepseek(width: int, layers: int) -> LanguageModelConfig:
    """A miniature DeepSeek: latent attention with a query latent, and a mixture of experts."""
    attention = LatentAttentionConfig(heads=8, kv_latent=32, rope_head_dim=8, head_dim=16, query_latent=48)
    experts = MixtureOfExpertsConfig(
        hidden=width, activation="swiglu", bias=False, experts=16, top_k=3, shared_experts=1
    )
    config = StackConfig(layers=layers, attention=attention, feed_forward=experts)
    return LanguageModelConfig(vocab_size=1000, width=width, decoder=config, position=RotaryConfig())


# Workloads


def workload_for(config: ModelConfig, batch_size: int, source_length: int, target_length: int) -> Workload:
    source_length = source_length if isinstance(config, EncoderDecoderConfig) else 0
    return Workload(batch_size, target_length, source_length)


def random_ids(config: ModelConfig, batch: BatchShape | Workload) -> list[Tensor]:
    """Input ids of a model: source and target, or only the target."""
    sizes = [config.vocab_size]
    if isinstance(config, EncoderDecoderConfig):
        sizes.insert(0, config.source_vocab_size or config.vocab_size)
    lengths = (batch.source_length, batch.target_length)[-len(sizes) :]
    return [torch.randint(0, size, (batch.batch_size, length)) for size, length in zip(sizes, lengths, strict=True)]


def base_cost(precision: Precision = "bfloat16", activation_checkpointing: bool = False, **workload: Any) -> Cost:
    """The paper's base model on batches of 768 × 32."""
    setup = TrainingSetup(precision, activation_checkpointing=activation_checkpointing)
    return estimate(transformer_base(32768), Workload(768, 32, 32, **workload), setup)


def advised_batch_tokens(advice: str | None) -> int:
    assert advice is not None
    return int(advice.split("train.batch_tokens to ")[1].split()[0].replace(",", ""))


# Bytes


class SavedTensors(torch.autograd.graph.saved_tensors_hooks):
    """Counts the bytes that autograd saves inside the context, without `weights` and each storage once."""

    def __init__(self, weights: Iterable[Tensor], smallest: int = 1) -> None:
        known = {weight.untyped_storage().data_ptr() for weight in weights}
        self._saved: dict[int, Tensor] = {}  # references keep addresses from being reused

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known and storage.nbytes() >= smallest:
                self._saved[storage.data_ptr()] = tensor
            return tensor

        super().__init__(pack, lambda tensor: tensor)

    def __enter__(self) -> "SavedTensors":
        super().__enter__()
        return self

    @property
    def bytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self._saved.values())


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of live tensors allocated inside the context, now and at the peak."""

    def __init__(self, known: Iterable[Tensor], *, floating_point_only: bool = True) -> None:
        super().__init__()
        self._sizes = {StorageWeakRef(tensor.untyped_storage()): 0 for tensor in known}
        self._floating_point_only = floating_point_only
        self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (tensor.is_floating_point() or not self._floating_point_only):
                storage = tensor.untyped_storage()
                if (reference := StorageWeakRef(storage)) not in self._sizes:
                    self._sizes[reference] = storage.nbytes()
                    self.peak = max(self.peak, self.bytes)
        return result

    @property
    def bytes(self) -> int:
        self._sizes = {storage: size for storage, size in self._sizes.items() if not storage.expired()}
        return sum(self._sizes.values())


def measured_peak(precision: str) -> int:
    """The peak that CUDA reported for the base model's unfused steps (benchmarks/cuda_graphs.py)."""
    cases = json.loads((RESULTS / "capture-gpu.json").read_text(encoding="utf-8"))["cases"]
    name = f"peak memory of the base model in {precision}, 768 × 32"
    (case,) = [case for case in cases if case["case"] == name]
    return int(case["seen_bytes"])
