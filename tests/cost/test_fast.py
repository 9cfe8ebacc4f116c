"""What the fast form of a model is said to keep, against what autograd keeps when it runs.

Its kernels run here in Triton's interpreter.
"""

import pytest

pytest.importorskip("triton")

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.attention import HeadsConfig, LatentConfig
from regard.attention.position import RotaryConfig
from regard.cost import fast
from regard.cost.fast import fast_forward
from regard.cost.memory import LATE_CELLS, batch_bytes
from regard.fast.swift_training import for_training, stacked_weights
from regard.fast.unscored import Unscored
from regard.model import (
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    ModelConfig,
    NormConfig,
    StackConfig,
)
from regard.model.experts import ExpertsConfig
from regard.train.loss import word_loss
from regard.train.lowered import Lowered
from tests.model.small_models import with_first

ROWS, SOURCE, TARGET = 2, 7, 5


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton's kernels be taken on a CPU."""
    monkeypatch.setattr("regard.fast.triton_switch.INTERPRETED", True)


def stack(activation: str = "relu", dropout: float = 0.1, heads: dict[str, Any] | None = None, **more: Any) -> Any:
    attention = HeadsConfig(**{"heads": 4, "dropout": dropout, **(heads or {})})
    middle = FeedForwardConfig.read({"hidden": 48, "activation": activation, "dropout": dropout})
    return StackConfig(layers=2, attention=attention, feed_forward=middle, dropout=dropout, **more)


def translator(kind: StackConfig, **more: Any) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(vocabulary=60, width=32, encoder=kind, decoder=kind, **more)


def writer(kind: StackConfig, **more: Any) -> LanguageModelConfig:
    return LanguageModelConfig(vocabulary=60, width=32, decoder=kind, **more)


def kept_bytes(config: ModelConfig, dtype: torch.dtype, late: bool = True) -> int:
    """Bytes of all that autograd keeps of a pass before the loss; parameters, their copies and seeds are left out."""
    model = config.build().train()
    fast = for_training(model, late=late)
    lowered = fast if dtype == torch.float32 else Lowered(fast, dtype, first=stacked_weights(fast) if late else ())
    weights = lowered.copies if isinstance(lowered, Lowered) else model.parameters()
    own = {weight.untyped_storage().data_ptr() for weight in weights}
    kept: dict[int, Tensor] = {}  # by storage; holding the tensors keeps an address from being used again

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in own and tensor.untyped_storage().nbytes() > 8:
            kept[place] = tensor
        return tensor

    ids = [torch.randint(3, 60, (ROWS, length)) for length in (SOURCE, TARGET)]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        made = lowered(*(ids if isinstance(config, EncoderDecoderConfig) else ids[1:]))
    assert isinstance(made, Unscored) == late
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


KINDS: dict[str, ModelConfig] = {
    "pre-norm": translator(stack()),
    "post-norm": translator(stack(order="post")),
    "gelu": translator(stack("gelu")),
    "gated": translator(stack("swiglu")),
    "no dropout": translator(stack(dropout=0.0)),
    "narrow layers before wide": translator(with_first(stack(), hidden=7, activation="gelu")),
    "one memory for all layers, fewer key heads": translator(stack(heads={"key_heads": 2}), memory="shared"),
    "language model": writer(stack()),
    "language model, post-norm, gelu": writer(stack("gelu", order="post")),
    "rms norm, no biases": writer(stack("silu", heads={"bias": False}, norm=NormConfig(kind="rms"))),
}


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
def test_what_is_kept_is_what_autograd_keeps(config: ModelConfig) -> None:
    said = fast_forward(config, ROWS, SOURCE, TARGET, "cpu", late=True)
    assert said.bytes("bf16", "cpu") == kept_bytes(config, torch.float16)


def test_what_is_kept_in_float32_is_what_autograd_keeps() -> None:
    config = KINDS["pre-norm"]
    said = fast_forward(config, ROWS, SOURCE, TARGET, "cpu", late=True)
    assert said.bytes("fp32", "cpu") == kept_bytes(config, torch.float32)


def test_where_logits_are_made_at_once_what_they_are_made_of_is_kept() -> None:
    config = KINDS["language model"]
    said = fast_forward(config, ROWS, SOURCE, TARGET, "cpu", late=False)
    assert said.bytes("bf16", "cpu") == kept_bytes(config, torch.float16, late=False)


LONG: dict[str, ModelConfig] = {
    "pre-norm": translator(stack(dropout=0.0)),
    "post-norm, one memory": translator(stack(dropout=0.0, order="post"), memory="shared"),
    "language model, gelu": writer(stack("gelu", dropout=0.0)),
}


@pytest.mark.parametrize("config", LONG.values(), ids=LONG.keys())
def test_what_is_kept_of_long_texts_is_what_autograd_keeps(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without dropout on its weights PyTorch has fused attention on a CPU too."""
    monkeypatch.setattr("regard.fast.triton_training.LONGEST", 4)
    monkeypatch.setattr(fast, "LONGEST", 4)
    said = fast_forward(config, ROWS, SOURCE, TARGET, "cpu", late=True)
    assert said.bytes("bf16", "cpu") == kept_bytes(config, torch.float16)


def latents(dropout: float = 0.0, **more: Any) -> StackConfig:
    heads = LatentConfig(heads=4, latent=12, head_width=6, value_width=10, dropout=dropout, **more)
    kept: StackConfig = stack(dropout=dropout).model_copy(update={"attention": heads})
    return kept


def experts(activation: str = "relu", dropout: float = 0.1, **more: Any) -> StackConfig:
    middle = {"hidden": 24, "experts": 5, "activation": activation, "dropout": dropout, **more}
    kept: StackConfig = stack(dropout=dropout).model_copy(update={"feed_forward": ExpertsConfig.read(middle)})
    return kept


UNKNOWN: dict[str, ModelConfig] = {
    "rotary positions": writer(stack(dropout=0.0), position=RotaryConfig()),
    "cosine": translator(stack(dropout=0.0, heads={"similarity": "cosine"})),
    "a window": writer(stack(dropout=0.0, heads={"pattern": "sliding(3)"})),
    "no output": writer(stack(dropout=0.0, heads={"output": False})),
    "squared relu": writer(stack("relu2")),
    "latents": translator(latents()),
    "latents with dropout, one memory": translator(latents(0.1, query_latent=5), memory="shared"),
    "latents and rotary positions": writer(latents(rotary_width=4), position=RotaryConfig()),
    "experts": translator(experts()),
    "wide layers before experts": translator(with_first(experts(), hidden=99)),
    "gated experts, some of them shared": writer(experts("swiglu", shared=2, normalise=False)),
}


@pytest.mark.parametrize("config", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_what_the_kernels_do_not_know_is_counted_as_in_the_plain_form(config: ModelConfig) -> None:
    said = fast_forward(config, ROWS, SOURCE, TARGET, "cpu", late=True)
    assert said.bytes("fp32", "cpu") == pytest.approx(kept_bytes(config, torch.float32), rel=0.05)


def test_the_limits_are_those_of_the_kernels() -> None:
    from regard.fast import triton_training
    from regard.train import triton_loss

    assert (fast.LONGEST, fast.BENDS) == (triton_training.LONGEST, triton_training.BENDS)
    assert triton_loss._CELLS == LATE_CELLS


class Live(TorchDispatchMode):
    """Bytes of all storages that operations made and that are still there, at most."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), settings: Any = None) -> Any:
        made = function(*arguments, **(settings or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self.sizes:
                storage = tensor.untyped_storage()
                self.sizes[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.sizes.pop, storage._cdata, None)
                self.most = max(self.most, sum(self.sizes.values()))
        return made


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_loss_that_scores_words_holds_as_much_as_is_said(precision: Any) -> None:
    dtype, rows, width, size = torch.float32 if precision == "fp32" else torch.float16, 24, 32, 700
    config = LanguageModelConfig(vocabulary=size, width=width, decoder=stack())
    x, weight = (torch.randn(count, width, dtype=dtype, requires_grad=True) for count in (rows, size))
    words = torch.randint(3, size, (4, rows // 4))
    live = Live()
    for given in (x, weight, words):
        live.sizes[given.untyped_storage()._cdata] = 0
    with live:
        word_loss(Unscored(x.view(4, rows // 4, width), weight, None), words, None, 0.1)
    _, said = batch_bytes(config, 4, 0, rows // 4, precision, "cpu", "fast", "late")
    assert live.most + x.nbytes == pytest.approx(said, rel=0.01)
