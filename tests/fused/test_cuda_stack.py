"""A model fused for training on a GPU has the losses and gradients of the unfused model.

The kernels run in Triton's interpreter.
"""

import pytest

pytest.importorskip("triton")

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from regard.attention import MultiHeadConfig
from regard.attention.positions.config import LearnedConfig, RotaryConfig
from regard.fused.cuda_stack import CudaStack
from regard.fused.layers import DeferredLogits, concatenated_weights
from regard.fused.training import fuse_for_training
from regard.model import FeedForwardConfig, LanguageModelConfig, StackConfig
from regard.train.mixed_precision import MixedPrecisionModel
from tests.fused.training_harness import (
    LENGTHS,
    SOURCE,
    STACKS,
    TARGET,
    VOCAB_SIZE,
    check_fused,
    check_fused_loss,
    stack,
    translator,
)

pytestmark = pytest.mark.start_early(12)


@pytest.fixture(autouse=True)
def interpret_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run Triton kernels in the interpreter."""
    monkeypatch.setattr("regard.kernels.dispatch.runs_triton", lambda device: True)


KINDS = {
    **STACKS,
    "gelu-tanh": stack(feed_forward=FeedForwardConfig(hidden=24, activation="gelu-tanh")),
    "other value width": stack(MultiHeadConfig(heads=2, value_head_dim=5)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_logits_and_gradients_equal_unfused(kind: StackConfig) -> None:
    check_fused(translator(kind), SOURCE, TARGET, **LENGTHS)


@pytest.mark.parametrize("bias", [True, False])
def test_gelu_in_the_matmul_epilogue_equals_unfused(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cuBLASLt matmuls need a GPU; they are replaced by PyTorch's."""
    calls = []

    def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        calls.append("forward")
        pre_activation = functional.linear(x, weight, bias)
        return functional.gelu(pre_activation, approximate="tanh"), pre_activation

    def linear_dgrad_dgelu(grad: Tensor, weight: Tensor, pre_activation: Tensor) -> Tensor:
        calls.append("backward")
        with torch.enable_grad():
            pre_activation = pre_activation.detach().requires_grad_()
            hidden = functional.gelu(pre_activation, approximate="tanh")
            return torch.autograd.grad(hidden, pre_activation, grad @ weight)[0]

    library = "regard.kernels.cuda.cublaslt."
    monkeypatch.setattr(library + "supports_linear_gelu", lambda x, up, up_bias, down: (up_bias is not None) is bias)
    monkeypatch.setattr(library + "linear_gelu", linear_gelu)
    monkeypatch.setattr(library + "linear_dgrad_dgelu", linear_dgrad_dgelu)
    feed_forward = FeedForwardConfig(hidden=24, activation="gelu-tanh", bias=bias)
    check_fused(translator(stack(feed_forward=feed_forward)), SOURCE, TARGET, **LENGTHS)
    assert calls == ["forward"] * 4 + ["backward"] * 4


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "more", [{}, {"tie_weights": False}, {"output_bias": True}, {"source_vocab_size": VOCAB_SIZE}], ids=str
)
def test_fused_loss_equals_unfused(more: dict[str, Any]) -> None:
    model = translator(stack(), **more)
    check_fused_loss(model, SOURCE, TARGET, **LENGTHS)
    assert isinstance(fuse_for_training(model, fused_loss=True)(SOURCE, TARGET, **LENGTHS), DeferredLogits)


def test_fused_loss_in_blocks_of_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.kernels.cuda.cross_entropy._MAX_LOGITS", 4 * VOCAB_SIZE)
    check_fused_loss(translator(stack(), output_bias=True), SOURCE, TARGET, **LENGTHS)


def test_no_padding_and_shared_cross_kv() -> None:
    check_fused(translator(stack()), SOURCE[:1], TARGET[:1])
    check_fused(translator(stack(), cross_kv="shared"), SOURCE, TARGET, **LENGTHS)


def test_sequences_longer_than_a_block() -> None:
    torch.manual_seed(2)
    source, target = torch.randint(3, VOCAB_SIZE, (1, 40)), torch.randint(3, VOCAB_SIZE, (1, 19))
    check_fused(translator(StackConfig(layers=1, attention=MultiHeadConfig(heads=1), dropout=0.0)), source, target)


@pytest.mark.parametrize("documents", [None, torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])])
@pytest.mark.parametrize(
    "position", [None, RotaryConfig(), LearnedConfig(max_length=9), LearnedConfig(max_length=5)], ids=str
)
def test_language_model(documents: Tensor | None, position: Any) -> None:
    torch.manual_seed(1)
    more = {} if position is None else {"position": position}
    config = LanguageModelConfig(vocab_size=VOCAB_SIZE, width=16, decoder=stack(), embedding={"dropout": 0.0}, **more)
    check_fused(config.build().train(), SOURCE, documents=documents)


@pytest.mark.parametrize("tokens", [5, 200])
def test_adjacent_qkv_weights_are_not_copied(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For texts within and beyond the length that a single attention program supports."""
    torch.manual_seed(1)
    config = LanguageModelConfig(vocab_size=VOCAB_SIZE, width=64, decoder=stack(MultiHeadConfig(heads=1)))
    model = config.build().eval()
    fused = fuse_for_training(model)
    mixed_precision = MixedPrecisionModel(fused, torch.float32, adjacent=concatenated_weights(fused))
    ids = torch.randint(3, VOCAB_SIZE, (1, tokens))
    expected = model(ids)

    def refuse(tensors: Any, *more: Any, **settings: Any) -> Tensor:
        raise AssertionError("the weights are copied")

    monkeypatch.setattr(torch, "cat", refuse)
    torch.testing.assert_close(mixed_precision(ids), expected, rtol=1e-4, atol=1e-4)


def test_functional_call_in_another_precision() -> None:
    model = translator(stack())
    fused = fuse_for_training(model)
    weights = {name: parameter.to(torch.float16) for name, parameter in model.named_parameters()}
    actual = functional_call(fused, weights, (SOURCE, TARGET), LENGTHS)
    expected = functional_call(model, weights, (SOURCE, TARGET), LENGTHS)
    assert actual.dtype == torch.float16
    assert torch.allclose(actual.float(), expected.float(), atol=0.02)


def test_dropout_differs_between_passes_and_is_off_in_evaluation() -> None:
    model = translator(stack(dropout=0.5))
    fused = fuse_for_training(model)
    first, second = (fused(SOURCE, TARGET, **LENGTHS) for _ in range(2))
    assert not torch.allclose(first, second)
    model.eval()
    assert torch.allclose(fused(SOURCE, TARGET, **LENGTHS), model(SOURCE, TARGET, **LENGTHS), atol=1e-4)


def test_fused_model_shares_all_parameters() -> None:
    model = translator(stack())
    fused = fuse_for_training(model)
    assert isinstance(fused.encoder, CudaStack)
    assert type(model.encoder) is not CudaStack
    assert [name for name, _ in fused.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert all(one is other for one, other in zip(fused.parameters(), model.parameters(), strict=True))


def test_attention_hook_receives_all_weights() -> None:
    fused = fuse_for_training(translator(stack()))
    received: list[Tensor] = []
    fused(SOURCE, TARGET, **LENGTHS, attention_hook=lambda _, weights: received.append(weights))
    assert len(received) == 6
