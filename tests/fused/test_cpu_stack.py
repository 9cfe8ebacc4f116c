"""A model fused for training on a CPU has the losses and gradients of the unfused model."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

pytest.importorskip("numba")

from regard.attention import MultiHeadConfig
from regard.attention.positions.config import RotaryConfig
from regard.fused.cpu_stack import CpuStack
from regard.fused.layers import DeferredLogits
from regard.fused.support import stack_unsupported_reason, training_unsupported_reason
from regard.fused.training import fuse_for_training
from regard.model import EncoderDecoder, FeedForwardConfig, LanguageModelConfig, StackConfig
from regard.train.loss import cross_entropy
from tests.fused.training_harness import (
    LENGTHS,
    SOURCE,
    STACKS,
    TARGET,
    VOCAB_SIZE,
    check_fused,
    check_fused_loss,
    logits_and_grads,
    stack,
    translator,
)

pytestmark = pytest.mark.start_early(12)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def with_dropout(p: float) -> EncoderDecoder:
    heads, feed_forward = MultiHeadConfig(heads=2, dropout=p), FeedForwardConfig(hidden=24, dropout=p)
    return translator(stack(heads, p, feed_forward=feed_forward), embedding={"dropout": p})


KINDS = {
    **STACKS,
    "sliding window": stack(MultiHeadConfig(heads=2, pattern="sliding(2)")),
    "no output projection": stack(MultiHeadConfig(heads=2, output_projection=False)),
}


def batch(rows: int, tokens: int, seed: int = 5) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Random rows of many lengths, including a single token."""
    torch.manual_seed(seed)
    source, target = torch.randint(3, VOCAB_SIZE, (rows, tokens)), torch.randint(3, VOCAB_SIZE, (rows, tokens + 3))
    source_lengths, target_lengths = torch.randint(1, tokens + 1, (rows,)), torch.randint(1, tokens + 4, (rows,))
    source_lengths[0], target_lengths[0] = 1, 1
    return source, target, {"source_lengths": source_lengths, "target_lengths": target_lengths}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_logits_and_gradients_equal_unfused(kind: StackConfig) -> None:
    check_fused(translator(kind), SOURCE, TARGET, **LENGTHS)


@pytest.mark.parametrize("multiple", [1, 4, 64], ids=lambda multiple: f"multiples of {multiple}")
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_fused_loss_equals_unfused(kind: StackConfig, multiple: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.kernels.cpu.linear._MULTIPLE", multiple)
    check_fused_loss(translator(kind), SOURCE, TARGET, **LENGTHS)


@pytest.mark.parametrize(
    "more", [{"tie_weights": False}, {"output_bias": True}, {"source_vocab_size": VOCAB_SIZE}], ids=str
)
def test_fused_loss_with_every_output_projection(more: dict[str, Any]) -> None:
    check_fused_loss(translator(stack(), **more), SOURCE, TARGET, **LENGTHS)


def test_many_rows_of_many_lengths(threads: int) -> None:
    source, target, lengths = batch(70, 19)
    check_fused(translator(stack()), source, target, **lengths)
    check_fused_loss(translator(stack()), source, target, **lengths)
    check_fused_loss(translator(stack(norm_position="post")), source, target, **lengths)


def test_no_uninitialized_memory_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def filled_with_nan(make: Any) -> Any:
        def empty(*sizes: Any, **more: Any) -> Tensor:
            tensor: Tensor = make(*sizes, **more)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        return empty

    source, target, lengths = batch(70, 19)
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, filled_with_nan(getattr(torch, name)))
    check_fused_loss(translator(stack()), source, target, **lengths)


def test_no_padding_and_shared_cross_kv() -> None:
    check_fused(translator(stack()), SOURCE[:1], TARGET[:1])
    check_fused(translator(stack(), cross_kv="shared"), SOURCE, TARGET, **LENGTHS)
    check_fused_loss(translator(stack(), cross_kv="shared"), SOURCE, TARGET, **LENGTHS)


def test_single_token() -> None:
    check_fused(translator(stack()), SOURCE[:1, :1], TARGET[:1, :1])
    check_fused_loss(translator(stack()), SOURCE[:1, :1], TARGET[:1, :1])


def test_rows_of_only_padding() -> None:
    lengths = {"source_lengths": torch.tensor([5, 0, 3]), "target_lengths": torch.tensor([3, 0, 2])}
    check_fused_loss(translator(stack()), SOURCE, TARGET, **lengths)


def test_without_openmp_and_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.kernels.cpu.openmp.gomp_parallel", lambda: None)
    monkeypatch.setattr("regard.kernels.cpu.linear.has_onednn", lambda: False)
    source, target, lengths = batch(40, 9)
    check_fused_loss(translator(stack()), source, target, **lengths)


def test_sequences_longer_than_the_kernels_support(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.fused.cpu_stack.MAX_LENGTH", 4)
    check_fused(translator(stack()), SOURCE, TARGET, **LENGTHS)


@pytest.mark.parametrize("documents", [None, torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])])
@pytest.mark.parametrize("position", [None, RotaryConfig()], ids=str)
def test_language_model(documents: Tensor | None, position: Any) -> None:
    torch.manual_seed(1)
    more = {} if position is None else {"position": position}
    config = LanguageModelConfig(vocab_size=VOCAB_SIZE, width=16, decoder=stack(), embedding={"dropout": 0.0}, **more)
    check_fused(config.build().train(), SOURCE, documents=documents)


def test_frozen_weights_get_no_gradient() -> None:
    model = translator(stack())
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("decoder" in name or "norm" in name)
    check_fused(model, SOURCE, TARGET, **LENGTHS)
    check_fused_loss(model, SOURCE, TARGET, **LENGTHS)


def test_functional_call_in_another_precision_equals_unfused() -> None:
    model = translator(stack())
    weights = {name: parameter.to(torch.bfloat16) for name, parameter in model.named_parameters()}
    expected = functional_call(model, weights, (SOURCE, TARGET), LENGTHS)
    for fused_loss in (False, True):
        actual = functional_call(fuse_for_training(model, fused_loss=fused_loss), weights, (SOURCE, TARGET), LENGTHS)
        assert actual.dtype == torch.bfloat16
        assert torch.equal(actual, expected)


def test_model_in_another_precision_is_not_fused() -> None:
    model = translator(stack()).double()
    assert fuse_for_training(model) is model
    assert "float64" in str(stack_unsupported_reason(model.encoder))


def test_unsupported_models_have_a_reason() -> None:
    model = translator(stack())
    assert training_unsupported_reason(model, "float32") is None
    assert training_unsupported_reason(model, "bfloat16") == "on a CPU it is for float32, and this run is in bfloat16"
    assert (
        training_unsupported_reason(translator(stack(residual=False)), "float32")
        == "a layer has no residual connection"
    )
    assert training_unsupported_reason(nn.Linear(2, 2), "float32") == "it has no stack of layers"


def test_fused_model_shares_all_parameters() -> None:
    model = translator(stack())
    for fused in (fuse_for_training(model), fuse_for_training(model, fused_loss=True)):
        assert isinstance(fused.encoder, CpuStack)
        assert [name for name, _ in fused.named_parameters()] == [name for name, _ in model.named_parameters()]
        assert all(one is other for one, other in zip(fused.parameters(), model.parameters(), strict=True))
        assert fuse_for_training(fused) is fused
    assert type(model.encoder) is not CpuStack
    assert isinstance(model(SOURCE, TARGET), Tensor)
    assert isinstance(fused(SOURCE, TARGET), DeferredLogits)


def test_attention_hook_receives_all_weights() -> None:
    fused = fuse_for_training(translator(stack()))
    received: list[Tensor] = []
    fused(SOURCE, TARGET, **LENGTHS, attention_hook=lambda _, weights: received.append(weights))
    assert len(received) == 6


def test_decoding_equals_unfused() -> None:
    model = translator(stack()).eval()
    fused = fuse_for_training(model, fused_loss=True)
    actual, expected = (
        each.step(TARGET[:, :1], each.start(SOURCE, 4, LENGTHS["source_lengths"]))[0] for each in (fused, model)
    )
    torch.testing.assert_close(actual, expected)


# Dropout


def test_gradient_of_a_model_with_dropout() -> None:
    model = with_dropout(0.3)
    fused = fuse_for_training(model, fused_loss=True)
    targets = torch.randint(3, VOCAB_SIZE, TARGET.shape)

    def value() -> Tensor:
        torch.manual_seed(4)
        return cross_entropy(fused(SOURCE, TARGET, **LENGTHS), targets, LENGTHS["target_lengths"], 0.1).total

    value().backward()
    actual, measured = 0.0, 0.0
    for parameter in model.parameters():
        assert parameter.grad is not None
        direction, original = torch.randn_like(parameter), parameter.detach().clone()
        ends = []
        for step in (3e-3, -3e-3):
            with torch.no_grad():
                parameter.copy_(original + step * direction)
                ends.append(float(value()))
        with torch.no_grad():
            parameter.copy_(original)
        actual += float((parameter.grad * direction).sum())
        measured += (ends[0] - ends[1]) / 6e-3
    assert actual == pytest.approx(measured, rel=3e-2)


def test_same_seed_gives_bit_identical_results() -> None:
    model = with_dropout(0.3)
    fused = fuse_for_training(model)
    source, target, lengths = batch(40, 12)
    before, results = torch.get_num_threads(), []
    for count in (1, 2, 2):
        torch.set_num_threads(count)
        torch.manual_seed(9)
        results.append(logits_and_grads(model, fused, source, target, **lengths))
    torch.set_num_threads(before)
    for logits, grads in results[1:]:
        torch.testing.assert_close(logits, results[0][0])
        for name, grad in grads.items():
            torch.testing.assert_close(
                grad, results[0][1][name], rtol=1e-4, atol=1e-4
            )  # another number of threads: equal up to rounding
    assert torch.equal(results[1][0], results[2][0])
    assert all(torch.equal(grad, results[2][1][name]) for name, grad in results[1][1].items())


def test_dropout_differs_between_passes_and_is_off_in_evaluation() -> None:
    model = with_dropout(0.5)
    fused = fuse_for_training(model)
    first, second = (fused(SOURCE, TARGET, **LENGTHS) for _ in range(2))
    assert not torch.allclose(first, second)
    model.eval()
    assert torch.allclose(fused(SOURCE, TARGET, **LENGTHS), model(SOURCE, TARGET, **LENGTHS), atol=1e-4)


def test_hundred_steps_reach_the_same_loss() -> None:
    source, target, lengths = batch(12, 8)
    targets = target.roll(-1, dims=1)
    losses = []
    for fused in (False, True):
        model = translator(stack())
        forward = fuse_for_training(model, fused_loss=True) if fused else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(100):
            loss = cross_entropy(forward(source, target, **lengths), targets, lengths["target_lengths"], 0.1)
            loss.mean.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.mean.item())
    assert losses[0] < 2.8
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
