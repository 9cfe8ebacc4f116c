"""Cross-entropy and its gradient equal PyTorch's. The kernels run in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

import torch

from regard.fused.layers import DeferredLogits
from regard.kernels import dispatch
from regard.train import loss as module
from regard.train.loss import Loss, cross_entropy, r_drop_loss

pytestmark = pytest.mark.start_early(13)


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute all losses with the kernels, as if they were on a GPU."""
    from regard.kernels.cuda.cross_entropy import CrossEntropy

    class Kernel:
        @staticmethod
        def apply(logits: torch.Tensor, *settings: object) -> object:
            return CrossEntropy.apply(logits, *settings, OVERWRITE[0])

    monkeypatch.setattr(module, "_CrossEntropy", Kernel)


OVERWRITE = [False]


def loss_and_grad(passes: int, vocab_size: int, dtype: torch.dtype, smoothing: float) -> tuple[Loss, torch.Tensor]:
    torch.manual_seed(vocab_size)
    logits = (4 * torch.randn(passes * 3, 4, vocab_size)).to(dtype).requires_grad_()
    targets, lengths = torch.randint(vocab_size, (3, 4)), torch.tensor([4, 1, 3])
    inputs = logits * 1
    if passes == 1:
        loss = cross_entropy(inputs, targets, lengths, smoothing)
    else:
        loss = r_drop_loss(inputs, targets, lengths, smoothing, 5.0)
    (loss.total * 0.25).backward()
    assert logits.grad is not None
    return loss, logits.grad


@pytest.mark.parametrize("overwrite", [False, True], ids=["new gradient", "over the logits"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("passes", "vocab_size"), [(1, 7), (1, 5000), (2, 7), (2, 4500)])
def test_loss_and_gradient_equal_pytorch(
    passes: int, vocab_size: int, smoothing: float, overwrite: bool, request: pytest.FixtureRequest
) -> None:
    expected, expected_grad = loss_and_grad(passes, vocab_size, torch.float32, smoothing)
    request.getfixturevalue("with_kernels")
    OVERWRITE[0] = overwrite
    actual, grad = loss_and_grad(passes, vocab_size, torch.float32, smoothing)
    assert actual.total.item() == pytest.approx(expected.total.item(), rel=1e-5)
    assert actual.nll.item() == pytest.approx(expected.nll.item(), rel=1e-5)
    assert torch.allclose(grad, expected_grad, atol=1e-5)


def test_sums_of_half_precision_are_in_float32(request: pytest.FixtureRequest) -> None:
    expected, expected_grad = loss_and_grad(1, 50, torch.float16, 0.1)
    request.getfixturevalue("with_kernels")
    OVERWRITE[0] = False
    actual, grad = loss_and_grad(1, 50, torch.float16, 0.1)
    assert actual.total.dtype == torch.float32
    assert actual.total.item() == pytest.approx(expected.total.item(), rel=1e-4)
    assert torch.allclose(grad.float(), expected_grad.float(), atol=1e-3)


@pytest.mark.parametrize("passes", [1, 2])
def test_negative_targets_do_not_count(passes: int, request: pytest.FixtureRequest) -> None:
    torch.manual_seed(0)
    targets, lengths = torch.tensor([[3, -1, 0, -1], [-1, 2, 2, 2], [-1, -1, 6, 1]]), torch.tensor([4, 1, 3])
    values = torch.randn(passes * 3, 4, 7)
    totals, grads = [], []
    for _ in ("PyTorch", "kernels"):
        logits = values.clone().requires_grad_()
        if passes == 2:
            loss = r_drop_loss(logits, targets, lengths, 0.1, 5.0)
        else:
            loss = cross_entropy(logits, targets, lengths, 0.1)
        loss.total.backward()
        assert logits.grad is not None
        assert int(loss.count) == 3
        totals.append(loss.total.item())
        grads.append(logits.grad)
        OVERWRITE[0] = False
        request.getfixturevalue("with_kernels")
    assert totals[1] == pytest.approx(totals[0], rel=1e-5)
    assert torch.allclose(grads[1], grads[0], atol=1e-5)


def test_negative_targets_of_deferred_logits_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "runs_triton", lambda device: True)
    torch.manual_seed(0)
    targets, lengths = torch.tensor([[3, -1, 0, -1], [-1, 2, 2, 2]]), torch.tensor([4, 1])
    x, weight = torch.randn(2, 4, 8, requires_grad=True), torch.randn(7, 8, requires_grad=True)
    deferred = DeferredLogits(x, weight, None)
    actual, expected = (
        cross_entropy(logits, targets, lengths, 0.1) for logits in (deferred, deferred.logits().double())
    )
    assert int(actual.count) == int(expected.count) == 2
    torch.testing.assert_close(actual.total.double(), expected.total, rtol=1e-5, atol=1e-5)
    for one, other in zip(*(torch.autograd.grad(loss.total, (x, weight)) for loss in (actual, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("block", [8192, 16], ids=["rows in one block", "rows in several blocks"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("has_bias", [True, False])
def test_deferred_logits_have_the_same_loss_in_blocks_of_any_size(
    block: int, smoothing: float, has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "runs_triton", lambda device: True)
    monkeypatch.setattr("regard.kernels.cuda.cross_entropy._FUSED_BLOCK", block)
    torch.manual_seed(0)
    targets, lengths = torch.randint(0, 37, (3, 5)), torch.tensor([5, 2, 4])
    x, weight = 3 * torch.randn(3, 5, 8), torch.randn(37, 8)
    leaves = [x, weight, torch.randn(37)] if has_bias else [x, weight]
    for leaf in leaves:
        leaf.requires_grad_()
    deferred = DeferredLogits(x, weight, leaves[2] if has_bias else None)
    actual, expected = (
        cross_entropy(logits, targets, lengths, smoothing) for logits in (deferred, deferred.logits().double())
    )
    torch.testing.assert_close(actual.total.double(), expected.total, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual.nll.double(), expected.nll, rtol=1e-5, atol=1e-5)
    for one, other in zip(*(torch.autograd.grad(loss.total, leaves) for loss in (actual, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
