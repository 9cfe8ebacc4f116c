"""Cross-entropy as a sum and a count, and R-Drop, against PyTorch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from regard.fused.layers import DeferredLogits
from regard.train import cross_entropy
from regard.train.loss import r_drop_loss


@given(rows=st.integers(1, 4), tokens=st.integers(1, 6), size=st.integers(2, 9), smoothing=st.sampled_from([0.0, 0.1]))
def test_sum_equals_pytorch(rows: int, tokens: int, size: int, smoothing: float) -> None:
    logits, targets = torch.randn(rows, tokens, size), torch.randint(0, size, (rows, tokens))
    actual = cross_entropy(logits, targets, label_smoothing=smoothing)
    expected = functional.cross_entropy(logits.mT, targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(actual.total, expected, rtol=1e-5, atol=1e-5)  # float32 sums in a different order
    torch.testing.assert_close(actual.nll, functional.cross_entropy(logits.mT, targets, reduction="sum"))
    assert actual.count == rows * tokens


def test_gradient_equals_pytorch() -> None:
    logits = torch.randn(2, 3, 5, dtype=torch.float32, requires_grad=True)
    targets = torch.randint(0, 5, (2, 3))
    (actual,) = torch.autograd.grad(cross_entropy(logits, targets, label_smoothing=0.1).mean, logits)
    (expected,) = torch.autograd.grad(functional.cross_entropy(logits.mT, targets, label_smoothing=0.1), logits)
    torch.testing.assert_close(actual, expected)


def test_padding_is_ignored() -> None:
    logits, targets = torch.randn(2, 4, 5), torch.randint(0, 5, (2, 4))
    unpadded = cross_entropy(logits[:1, :3], targets[:1, :3]) + cross_entropy(logits[1:, :1], targets[1:, :1])
    logits[0, 3], logits[1, 1:] = 1e30, float("nan")
    padded = cross_entropy(logits, targets, torch.tensor([3, 1]))
    torch.testing.assert_close(padded.total, unpadded.total)
    assert padded.count == 4


def test_padding_has_no_gradient() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss = cross_entropy(logits, torch.zeros(2, 3, dtype=torch.long), torch.tensor([2, 0]), label_smoothing=0.1)
    (gradient,) = torch.autograd.grad(loss.total, logits)
    assert gradient[0, :2].abs().min() > 0
    assert not gradient[0, 2].any()
    assert not gradient[1].any()


def test_sums_of_micro_batches_equal_the_batch() -> None:
    logits, targets, lengths = torch.randn(6, 4, 5), torch.randint(0, 5, (6, 4)), torch.tensor([4, 1, 3, 2, 4, 1])
    full = cross_entropy(logits, targets, lengths, 0.1)
    parts = cross_entropy(logits[:2], targets[:2], lengths[:2], 0.1) + cross_entropy(
        logits[2:], targets[2:], lengths[2:], 0.1
    )
    torch.testing.assert_close(parts.mean, full.mean)
    assert parts.count == full.count == 15


def test_batch_of_padding_has_zero_mean() -> None:
    assert cross_entropy(torch.randn(1, 2, 3), torch.zeros(1, 2, dtype=torch.long), torch.tensor([0])).mean == 0


def test_bfloat16_logits_are_summed_in_float32() -> None:
    logits, targets = torch.randn(2, 3, 50), torch.randint(0, 50, (2, 3))
    half = cross_entropy(logits.bfloat16(), targets)
    assert half.total.dtype == torch.float32
    torch.testing.assert_close(half.total, cross_entropy(logits.bfloat16().float(), targets).total)


# R-Drop


@given(rows=st.integers(1, 4), tokens=st.integers(1, 6), size=st.integers(2, 9), smoothing=st.sampled_from([0.0, 0.1]))
def test_r_drop_of_equal_passes_equals_one_pass(rows: int, tokens: int, size: int, smoothing: float) -> None:
    logits, targets = torch.randn(rows, tokens, size), torch.randint(0, size, (rows, tokens))
    actual = r_drop_loss(logits.repeat(2, 1, 1), targets, None, smoothing, alpha=5.0)
    expected = cross_entropy(logits, targets, label_smoothing=smoothing)
    torch.testing.assert_close(actual.total, expected.total, rtol=1e-5, atol=1e-5)  # float32 sums in a different order
    torch.testing.assert_close(actual.nll, expected.nll, rtol=1e-5, atol=1e-5)


def test_r_drop_without_alpha_is_the_mean_of_both_passes() -> None:
    logits, targets = torch.randn(4, 3, 5), torch.randint(0, 5, (2, 3))
    actual = r_drop_loss(logits, targets, None, 0.1, alpha=0.0)
    passes = [cross_entropy(half, targets, label_smoothing=0.1) for half in logits.chunk(2)]
    torch.testing.assert_close(actual.total, (passes[0].total + passes[1].total) / 2)
    torch.testing.assert_close(actual.nll, (passes[0].nll + passes[1].nll) / 2)


def test_r_drop_divergence_equals_pytorch_kl_both_ways() -> None:
    logits, targets = torch.randn(4, 3, 5), torch.randint(0, 5, (2, 3))
    with_term, without = (r_drop_loss(logits, targets, None, 0.1, alpha).total for alpha in (3.0, 0.0))
    one, other = logits.log_softmax(dim=-1).chunk(2)
    both_ways = sum(functional.kl_div(p, q, reduction="sum", log_target=True) for p, q in ((one, other), (other, one)))
    torch.testing.assert_close(with_term - without, 3.0 / 4 * both_ways)  # half of Liang et al. 2021, eq. 2 to 4


@pytest.mark.parametrize(("tokens", "size"), [(3, 5), (100, 1000)])  # few logits, and more than fit into a CPU cache
def test_r_drop_gradient_equals_pytorch(tokens: int, size: int) -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(6, tokens, size, requires_grad=True), torch.randint(0, size, (3, tokens))
    one, other = logits.log_softmax(dim=-1).chunk(2)
    entropies = sum(functional.cross_entropy(p.mT, targets, label_smoothing=0.1, reduction="sum") for p in (one, other))
    both_ways = sum(functional.kl_div(p, q, reduction="sum", log_target=True) for p, q in ((one, other), (other, one)))
    (expected,) = torch.autograd.grad(entropies / 2 + 3.0 / 4 * both_ways, logits)
    (actual,) = torch.autograd.grad(r_drop_loss(logits, targets, None, 0.1, 3.0).total, logits)
    torch.testing.assert_close(actual, expected)


def test_r_drop_ignores_padding() -> None:
    logits, targets = torch.randn(4, 4, 5), torch.randint(0, 5, (2, 4))
    unpadded = [
        r_drop_loss(logits[row::2, :length], targets[row : row + 1, :length], None, 0.1, 2.0)
        for row, length in ((0, 3), (1, 1))
    ]
    logits[::2, 3], logits[1::2, 1:] = 1e30, float("nan")
    padded = r_drop_loss(logits, targets, torch.tensor([3, 1]), 0.1, 2.0)
    torch.testing.assert_close(padded.total, unpadded[0].total + unpadded[1].total)


def test_r_drop_padding_has_no_gradient() -> None:
    logits = torch.randn(4, 3, 5, requires_grad=True)
    loss = r_drop_loss(logits, torch.zeros(2, 3, dtype=torch.long), torch.tensor([2, 0]), 0.1, 2.0)
    (gradient,) = torch.autograd.grad(loss.total, logits)
    assert gradient[::2, :2].abs().min() > 0
    assert not gradient[::2, 2].any()
    assert not gradient[1::2].any()


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_r_drop_gradient_is_finite_for_extreme_logits(size: float) -> None:
    torch.manual_seed(0)
    logits = (size * torch.randn(4, 3, 5)).requires_grad_()
    loss = r_drop_loss(logits, torch.randint(0, 5, (2, 3)), None, 0.1, 5.0)
    (gradient,) = torch.autograd.grad(loss.total, logits)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("lengths", "count"), [(None, 8), ([3, 1], 4), ([0, 0], 0)])
def test_r_drop_counts_targets_once(lengths: list[int] | None, count: int) -> None:
    row_lengths = None if lengths is None else torch.tensor(lengths)
    targets = torch.zeros(2, 4, dtype=torch.long)
    assert r_drop_loss(torch.randn(4, 4, 5), targets, row_lengths, 0.1, 1.0).count == count


# Many logits, for which a compiled kernel is used if there is one

MANY = (3, 31, 1001)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_kernel_loss_and_gradient_equal_pytorch(smoothing: float, overwrite: bool) -> None:
    torch.manual_seed(0)
    logits, targets = (3 * torch.randn(MANY)).requires_grad_(), torch.randint(0, MANY[2], MANY[:2])
    lengths = torch.tensor([31, 0, 12])
    is_token = torch.arange(31) < lengths[:, None]
    expected = functional.cross_entropy(logits[is_token], targets[is_token], label_smoothing=smoothing, reduction="sum")
    nll = functional.cross_entropy(logits[is_token], targets[is_token], reduction="sum")
    (expected_grad,) = torch.autograd.grad(2 * expected, logits)
    actual = cross_entropy(logits, targets, lengths, smoothing, inplace=overwrite)
    torch.testing.assert_close(actual.total, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual.nll, nll, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(2 * actual.total, logits)[0], expected_grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_kernel_propagates_nan_and_infinity(value: float) -> None:
    logits, targets = torch.randn(MANY), torch.zeros(MANY[:2], dtype=torch.long)
    logits[1, 4, 7] = value
    assert cross_entropy(logits, targets).total.isnan()
    assert cross_entropy(logits, targets, torch.tensor([31, 4, 31])).total.isfinite()


def test_kernel_handles_masked_logits() -> None:
    logits, targets = torch.randn(MANY), torch.zeros(MANY[:2], dtype=torch.long)
    logits[..., 5:9] = -torch.inf
    torch.testing.assert_close(
        cross_entropy(logits, targets).total, functional.cross_entropy(logits.mT, targets, reduction="sum")
    )


def test_target_outside_the_vocabulary_is_refused_unless_padding() -> None:
    logits, targets = torch.randn(MANY), torch.zeros(MANY[:2], dtype=torch.long)
    targets[2, 30] = MANY[2]
    with pytest.raises((IndexError, RuntimeError)):
        cross_entropy(logits, targets)
    assert cross_entropy(logits, targets, torch.tensor([31, 31, 30])).count == 92


# Deferred logits


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", [50, 60_001])  # the vocabulary in one block, and in several
def test_deferred_logits_give_the_same_loss_and_gradients(size: int, bias: bool) -> None:
    pytest.importorskip("numba")
    torch.manual_seed(0)
    x, weight = torch.randn(3, 31, 8, requires_grad=True), torch.randn(size, 8, requires_grad=True)
    operands = [x, weight, torch.randn(size, requires_grad=True)] if bias else [x, weight]
    targets, lengths = torch.randint(0, size, (3, 31)), torch.tensor([31, 0, 12])
    deferred = DeferredLogits(x, weight, operands[2] if bias else None)
    actual, expected = (
        cross_entropy(scores, targets, lengths, 0.1) for scores in (deferred, deferred.logits().double())
    )
    torch.testing.assert_close(actual.total.double(), expected.total, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual.nll.double(), expected.nll, rtol=1e-5, atol=1e-5)
    assert actual.count == expected.count
    grads = zip(*(torch.autograd.grad(loss.mean, operands) for loss in (actual, expected)), strict=True)
    for one, other in grads:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(cross_entropy(deferred, targets, lengths, 0.1).total, actual.total.detach())


def test_r_drop_with_deferred_logits() -> None:
    torch.manual_seed(0)
    deferred = DeferredLogits(torch.randn(4, 3, 8), torch.randn(5, 8), None)
    targets = torch.randint(0, 5, (2, 3))
    actual = r_drop_loss(deferred, targets, torch.tensor([3, 1]), 0.1, 2.0)
    expected = r_drop_loss(deferred.logits(), targets, torch.tensor([3, 1]), 0.1, 2.0)
    assert actual.total == expected.total


# Ignored targets


def defer(logits: torch.Tensor) -> DeferredLogits:
    """Deferred logits that equal these logits."""
    return DeferredLogits(logits, torch.eye(logits.shape[-1]), None)


@pytest.mark.parametrize("case", ["few", "many", "deferred", "two passes"])
def test_negative_targets_are_ignored(case: str) -> None:
    """Loss, count and gradient equal PyTorch's for the remaining targets."""
    if case == "deferred":
        pytest.importorskip("numba")
    torch.manual_seed(0)
    shape = MANY if case == "many" else (3, 31, 11)
    logits, targets = torch.randn(shape, requires_grad=True), torch.randint(0, shape[2], shape[:2])
    targets[torch.rand(shape[:2]) < 0.85] = -1
    lengths = torch.tensor([31, 0, 12])
    is_target = (torch.arange(31) < lengths[:, None]) & (targets >= 0)
    expected = functional.cross_entropy(logits[is_target], targets[is_target], label_smoothing=0.1, reduction="sum")
    (expected_grad,) = torch.autograd.grad(expected, logits)
    if case == "two passes":
        actual = r_drop_loss(logits.repeat(2, 1, 1), targets, lengths, 0.1, 1.0)
    else:
        actual = cross_entropy(defer(logits) if case == "deferred" else logits, targets, lengths, 0.1)
    torch.testing.assert_close(actual.total, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(actual.total, logits)[0], expected_grad, rtol=1e-4, atol=1e-6)
    assert actual.count == is_target.sum()


@pytest.mark.parametrize("case", ["few", "many", "deferred"])
def test_loss_without_targets_is_zero(case: str) -> None:
    if case == "deferred":
        pytest.importorskip("numba")
    logits = torch.randn(MANY if case == "many" else (3, 31, 11), requires_grad=True)
    loss = cross_entropy(defer(logits) if case == "deferred" else logits, torch.full((3, 31), -1), label_smoothing=0.1)
    loss.total.backward()
    assert (loss.total.item(), loss.count.item(), loss.mean.item()) == (0.0, 0, 0.0)
    assert logits.grad is not None
    assert not logits.grad.any()
