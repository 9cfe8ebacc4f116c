"""Cross-entropy as a sum and a count, against PyTorch's own."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from regard.train import word_loss


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
