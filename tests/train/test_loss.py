"""Cross-entropy as a sum and a count, against PyTorch's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from regard.fast.unscored import Unscored
from regard.train import word_loss
from regard.train.loss import consistent_word_loss


@given(rows=st.integers(1, 4), tokens=st.integers(1, 6), size=st.integers(2, 9), smoothing=st.sampled_from([0.0, 0.1]))
def test_the_sum_is_pytorchs_cross_entropy(rows: int, tokens: int, size: int, smoothing: float) -> None:
    logits, words = torch.randn(rows, tokens, size), torch.randint(0, size, (rows, tokens))
    found = word_loss(logits, words, smoothing=smoothing)
    wanted = functional.cross_entropy(logits.mT, words, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(found.total, wanted, rtol=1e-5, atol=1e-5)  # float32 sums in another order
    torch.testing.assert_close(found.plain, functional.cross_entropy(logits.mT, words, reduction="sum"))
    assert found.count == rows * tokens


def test_gradients_are_pytorchs() -> None:
    logits = torch.randn(2, 3, 5, dtype=torch.float32, requires_grad=True)
    words = torch.randint(0, 5, (2, 3))
    (found,) = torch.autograd.grad(word_loss(logits, words, smoothing=0.1).mean, logits)
    (wanted,) = torch.autograd.grad(functional.cross_entropy(logits.mT, words, label_smoothing=0.1), logits)
    torch.testing.assert_close(found, wanted)


def test_padding_counts_for_nothing_whatever_it_holds() -> None:
    logits, words = torch.randn(2, 4, 5), torch.randint(0, 5, (2, 4))
    alone = word_loss(logits[:1, :3], words[:1, :3]) + word_loss(logits[1:, :1], words[1:, :1])
    logits[0, 3], logits[1, 1:] = 1e30, float("nan")
    padded = word_loss(logits, words, torch.tensor([3, 1]))
    torch.testing.assert_close(padded.total, alone.total)
    assert padded.count == 4


def test_no_word_gradient_comes_from_padding() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss = word_loss(logits, torch.zeros(2, 3, dtype=torch.long), torch.tensor([2, 0]), smoothing=0.1)
    (gradient,) = torch.autograd.grad(loss.total, logits)
    assert gradient[0, :2].abs().min() > 0
    assert not gradient[0, 2].any()
    assert not gradient[1].any()


def test_sums_of_micro_batches_are_the_sum_of_the_batch() -> None:
    logits, words, lengths = torch.randn(6, 4, 5), torch.randint(0, 5, (6, 4)), torch.tensor([4, 1, 3, 2, 4, 1])
    whole = word_loss(logits, words, lengths, 0.1)
    parts = word_loss(logits[:2], words[:2], lengths[:2], 0.1) + word_loss(logits[2:], words[2:], lengths[2:], 0.1)
    torch.testing.assert_close(parts.mean, whole.mean)
    assert parts.count == whole.count == 15


def test_a_batch_of_nothing_but_padding_has_a_mean_of_zero() -> None:
    assert word_loss(torch.randn(1, 2, 3), torch.zeros(1, 2, dtype=torch.long), torch.tensor([0])).mean == 0


def test_half_precision_scores_are_summed_in_float32() -> None:
    logits, words = torch.randn(2, 3, 50), torch.randint(0, 50, (2, 3))
    half = word_loss(logits.bfloat16(), words)
    assert half.total.dtype == torch.float32
    torch.testing.assert_close(half.total, word_loss(logits.bfloat16().float(), words).total)


# Two passes that are to agree


@given(rows=st.integers(1, 4), tokens=st.integers(1, 6), size=st.integers(2, 9), smoothing=st.sampled_from([0.0, 0.1]))
def test_two_equal_passes_have_the_loss_of_one(rows: int, tokens: int, size: int, smoothing: float) -> None:
    logits, words = torch.randn(rows, tokens, size), torch.randint(0, size, (rows, tokens))
    found = consistent_word_loss(logits.repeat(2, 1, 1), words, None, smoothing, consistency=5.0)
    wanted = word_loss(logits, words, smoothing=smoothing)
    torch.testing.assert_close(found.total, wanted.total, rtol=1e-5, atol=1e-5)  # float32 sums in another order
    torch.testing.assert_close(found.plain, wanted.plain, rtol=1e-5, atol=1e-5)


def test_without_consistency_two_passes_have_the_mean_of_their_losses() -> None:
    logits, words = torch.randn(4, 3, 5), torch.randint(0, 5, (2, 3))
    found = consistent_word_loss(logits, words, None, 0.1, consistency=0.0)
    each = [word_loss(half, words, smoothing=0.1) for half in logits.chunk(2)]
    torch.testing.assert_close(found.total, (each[0].total + each[1].total) / 2)
    torch.testing.assert_close(found.plain, (each[0].plain + each[1].plain) / 2)


def test_what_two_passes_differ_by_is_pytorchs_divergence_both_ways() -> None:
    logits, words = torch.randn(4, 3, 5), torch.randint(0, 5, (2, 3))
    with_term, without = (consistent_word_loss(logits, words, None, 0.1, alpha).total for alpha in (3.0, 0.0))
    one, other = logits.log_softmax(dim=-1).chunk(2)
    both_ways = sum(functional.kl_div(p, q, reduction="sum", log_target=True) for p, q in ((one, other), (other, one)))
    torch.testing.assert_close(with_term - without, 3.0 / 4 * both_ways)  # half of Liang et al. 2021, eq. 2 to 4


@pytest.mark.parametrize(("tokens", "size"), [(3, 5), (100, 1000)])  # few scores, and more than a cache holds
def test_the_gradient_of_two_passes_is_that_of_pytorchs_losses(tokens: int, size: int) -> None:
    torch.manual_seed(0)
    logits, words = torch.randn(6, tokens, size, requires_grad=True), torch.randint(0, size, (3, tokens))
    one, other = logits.log_softmax(dim=-1).chunk(2)
    entropies = sum(functional.cross_entropy(p.mT, words, label_smoothing=0.1, reduction="sum") for p in (one, other))
    both_ways = sum(functional.kl_div(p, q, reduction="sum", log_target=True) for p, q in ((one, other), (other, one)))
    (wanted,) = torch.autograd.grad(entropies / 2 + 3.0 / 4 * both_ways, logits)
    (found,) = torch.autograd.grad(consistent_word_loss(logits, words, None, 0.1, 3.0).total, logits)
    torch.testing.assert_close(found, wanted)


def test_padding_of_two_passes_counts_for_nothing_whatever_it_holds() -> None:
    logits, words = torch.randn(4, 4, 5), torch.randint(0, 5, (2, 4))
    alone = [
        consistent_word_loss(logits[row::2, :length], words[row : row + 1, :length], None, 0.1, 2.0)
        for row, length in ((0, 3), (1, 1))
    ]
    logits[::2, 3], logits[1::2, 1:] = 1e30, float("nan")
    padded = consistent_word_loss(logits, words, torch.tensor([3, 1]), 0.1, 2.0)
    torch.testing.assert_close(padded.total, alone[0].total + alone[1].total)


def test_no_gradient_comes_from_the_padding_of_two_passes() -> None:
    logits = torch.randn(4, 3, 5, requires_grad=True)
    loss = consistent_word_loss(logits, torch.zeros(2, 3, dtype=torch.long), torch.tensor([2, 0]), 0.1, 2.0)
    (gradient,) = torch.autograd.grad(loss.total, logits)
    assert gradient[::2, :2].abs().min() > 0
    assert not gradient[::2, 2].any()
    assert not gradient[1::2].any()


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_the_gradient_of_two_passes_is_finite_however_certain_they_are(size: float) -> None:
    torch.manual_seed(0)
    logits = (size * torch.randn(4, 3, 5)).requires_grad_()
    loss = consistent_word_loss(logits, torch.randint(0, 5, (2, 3)), None, 0.1, 5.0)
    (gradient,) = torch.autograd.grad(loss.total, logits)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("lengths", "count"), [(None, 8), ([3, 1], 4), ([0, 0], 0)])
def test_two_passes_count_their_words_once(lengths: list[int] | None, count: int) -> None:
    given_lengths = None if lengths is None else torch.tensor(lengths)
    words = torch.zeros(2, 4, dtype=torch.long)
    assert consistent_word_loss(torch.randn(4, 4, 5), words, given_lengths, 0.1, 1.0).count == count


# Many scores, which a compiled pass takes where there is one

MANY = (3, 31, 1001)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_many_scores_have_pytorchs_loss_and_gradient(smoothing: float, overwrite: bool) -> None:
    torch.manual_seed(0)
    logits, words = (3 * torch.randn(MANY)).requires_grad_(), torch.randint(0, MANY[2], MANY[:2])
    lengths = torch.tensor([31, 0, 12])
    real = torch.arange(31) < lengths[:, None]
    wanted = functional.cross_entropy(logits[real], words[real], label_smoothing=smoothing, reduction="sum")
    plain = functional.cross_entropy(logits[real], words[real], reduction="sum")
    (slope,) = torch.autograd.grad(2 * wanted, logits)
    found = word_loss(logits, words, lengths, smoothing, overwrite=overwrite)
    torch.testing.assert_close(found.total, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.plain, plain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(2 * found.total, logits)[0], slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_ran_away_shows_among_many_scores(value: float) -> None:
    logits, words = torch.randn(MANY), torch.zeros(MANY[:2], dtype=torch.long)
    logits[1, 4, 7] = value
    assert word_loss(logits, words).total.isnan()
    assert word_loss(logits, words, torch.tensor([31, 4, 31])).total.isfinite()


def test_words_that_no_score_can_come_are_not_counted_against_many_scores() -> None:
    logits, words = torch.randn(MANY), torch.zeros(MANY[:2], dtype=torch.long)
    logits[..., 5:9] = -torch.inf
    torch.testing.assert_close(
        word_loss(logits, words).total, functional.cross_entropy(logits.mT, words, reduction="sum")
    )


def test_a_word_outside_the_vocabulary_is_refused_unless_it_is_padding() -> None:
    logits, words = torch.randn(MANY), torch.zeros(MANY[:2], dtype=torch.long)
    words[2, 30] = MANY[2]
    with pytest.raises((IndexError, RuntimeError)):
        word_loss(logits, words)
    assert word_loss(logits, words, torch.tensor([31, 31, 30])).count == 92


# Words that the loss scores by itself


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", [50, 60_001])  # all words in one block, and in several
def test_scoring_late_gives_the_loss_and_the_gradients_of_scoring_before(size: int, bias: bool) -> None:
    pytest.importorskip("numba")
    torch.manual_seed(0)
    x, weight = torch.randn(3, 31, 8, requires_grad=True), torch.randn(size, 8, requires_grad=True)
    given = [x, weight, torch.randn(size, requires_grad=True)] if bias else [x, weight]
    words, lengths = torch.randint(0, size, (3, 31)), torch.tensor([31, 0, 12])
    late = Unscored(x, weight, given[2] if bias else None)
    found, wanted = (word_loss(scores, words, lengths, 0.1) for scores in (late, late.logits().double()))
    torch.testing.assert_close(found.total.double(), wanted.total, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.plain.double(), wanted.plain, rtol=1e-5, atol=1e-5)
    assert found.count == wanted.count
    slopes = zip(*(torch.autograd.grad(loss.mean, given) for loss in (found, wanted)), strict=True)
    for one, other in slopes:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(word_loss(late, words, lengths, 0.1).total, found.total.detach())


def test_two_passes_can_be_scored_late_as_well() -> None:
    torch.manual_seed(0)
    late = Unscored(torch.randn(4, 3, 8), torch.randn(5, 8), None)
    words = torch.randint(0, 5, (2, 3))
    found = consistent_word_loss(late, words, torch.tensor([3, 1]), 0.1, 2.0)
    wanted = consistent_word_loss(late.logits(), words, torch.tensor([3, 1]), 0.1, 2.0)
    assert found.total == wanted.total


# Words that are not asked for


def late(logits: torch.Tensor) -> Unscored:
    """Words that the loss scores itself, to these scores."""
    return Unscored(logits, torch.eye(logits.shape[-1]), None)


@pytest.mark.parametrize("way", ["few", "many", "late", "two passes"])
def test_words_below_zero_count_for_nothing(way: str) -> None:
    """Loss, count and gradient are those of the other words alone, as PyTorch has them."""
    if way == "late":
        pytest.importorskip("numba")
    torch.manual_seed(0)
    shape = MANY if way == "many" else (3, 31, 11)
    logits, words = torch.randn(shape, requires_grad=True), torch.randint(0, shape[2], shape[:2])
    words[torch.rand(shape[:2]) < 0.85] = -1
    lengths = torch.tensor([31, 0, 12])
    asked = (torch.arange(31) < lengths[:, None]) & (words >= 0)
    wanted = functional.cross_entropy(logits[asked], words[asked], label_smoothing=0.1, reduction="sum")
    (slope,) = torch.autograd.grad(wanted, logits)
    if way == "two passes":
        found = consistent_word_loss(logits.repeat(2, 1, 1), words, lengths, 0.1, 1.0)
    else:
        found = word_loss(late(logits) if way == "late" else logits, words, lengths, 0.1)
    torch.testing.assert_close(found.total, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(found.total, logits)[0], slope, rtol=1e-4, atol=1e-6)
    assert found.count == asked.sum()


@pytest.mark.parametrize("way", ["few", "many", "late"])
def test_nothing_asked_for_is_a_loss_of_zero(way: str) -> None:
    if way == "late":
        pytest.importorskip("numba")
    logits = torch.randn(MANY if way == "many" else (3, 31, 11), requires_grad=True)
    loss = word_loss(late(logits) if way == "late" else logits, torch.full((3, 31), -1), smoothing=0.1)
    loss.total.backward()
    assert (loss.total.item(), loss.count.item(), loss.mean.item()) == (0.0, 0, 0.0)
    assert logits.grad is not None
    assert not logits.grad.any()
