"""The loss written for a GPU is the loss, forward and backward. It runs here in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

import torch

from regard.fast import triton_switch
from regard.fast.unscored import Unscored
from regard.train import loss as module
from regard.train.loss import Loss, consistent_word_loss, word_loss


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels have everything, as if it were on a GPU."""
    from regard.train.triton_loss import DeviceSums

    class Instead:
        @staticmethod
        def apply(scores: torch.Tensor, *rest: object) -> object:
            return DeviceSums.apply(scores, *rest, OVERWRITE[0])

    monkeypatch.setattr(module, "_Sums", Instead)


OVERWRITE = [False]


def both(passes: int, size: int, dtype: torch.dtype, smoothing: float) -> tuple[Loss, torch.Tensor]:
    torch.manual_seed(size)
    logits = (4 * torch.randn(passes * 3, 4, size)).to(dtype).requires_grad_()
    words, lengths = torch.randint(size, (3, 4)), torch.tensor([4, 1, 3])
    given = logits * 1
    if passes == 1:
        loss = word_loss(given, words, lengths, smoothing)
    else:
        loss = consistent_word_loss(given, words, lengths, smoothing, 5.0)
    (loss.total * 0.25).backward()
    assert logits.grad is not None
    return loss, logits.grad


@pytest.mark.parametrize("overwrite", [False, True], ids=["beside", "over the scores"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("passes", "size"), [(1, 7), (1, 5000), (2, 7), (2, 4500)])
def test_sums_and_gradient_are_those_of_plain_pytorch(
    passes: int, size: int, smoothing: float, overwrite: bool, request: pytest.FixtureRequest
) -> None:
    wanted, slope = both(passes, size, torch.float32, smoothing)
    request.getfixturevalue("on_device")
    OVERWRITE[0] = overwrite
    found, other = both(passes, size, torch.float32, smoothing)
    assert found.total.item() == pytest.approx(wanted.total.item(), rel=1e-5)
    assert found.plain.item() == pytest.approx(wanted.plain.item(), rel=1e-5)
    assert torch.allclose(other, slope, atol=1e-5)


def test_half_precision_keeps_its_sums_in_float32(request: pytest.FixtureRequest) -> None:
    wanted, slope = both(1, 50, torch.float16, 0.1)
    request.getfixturevalue("on_device")
    OVERWRITE[0] = False
    found, other = both(1, 50, torch.float16, 0.1)
    assert found.total.dtype == torch.float32
    assert found.total.item() == pytest.approx(wanted.total.item(), rel=1e-4)
    assert torch.allclose(other.float(), slope.float(), atol=1e-3)


@pytest.mark.parametrize("passes", [1, 2])
def test_words_below_zero_count_for_nothing(passes: int, request: pytest.FixtureRequest) -> None:
    torch.manual_seed(0)
    words, lengths = torch.tensor([[3, -1, 0, -1], [-1, 2, 2, 2], [-1, -1, 6, 1]]), torch.tensor([4, 1, 3])
    given = torch.randn(passes * 3, 4, 7)
    sums, slopes = [], []
    for _ in ("plain", "on a device"):
        logits = given.clone().requires_grad_()
        way = (
            consistent_word_loss(logits, words, lengths, 0.1, 5.0)
            if passes == 2
            else word_loss(logits, words, lengths, 0.1)
        )
        way.total.backward()
        assert logits.grad is not None
        assert int(way.count) == 3
        sums.append(way.total.item())
        slopes.append(logits.grad)
        OVERWRITE[0] = False
        request.getfixturevalue("on_device")
    assert sums[1] == pytest.approx(sums[0], rel=1e-5)
    assert torch.allclose(slopes[1], slopes[0], atol=1e-5)


def test_scored_late_words_below_zero_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_switch, "INTERPRETED", True)
    torch.manual_seed(0)
    words, lengths = torch.tensor([[3, -1, 0, -1], [-1, 2, 2, 2]]), torch.tensor([4, 1])
    x, weight = torch.randn(2, 4, 8, requires_grad=True), torch.randn(7, 8, requires_grad=True)
    late = Unscored(x, weight, None)
    found, wanted = word_loss(late, words, lengths, 0.1), word_loss(late.logits().double(), words, lengths, 0.1)
    assert int(found.count) == int(wanted.count) == 2
    torch.testing.assert_close(found.total.double(), wanted.total, rtol=1e-5, atol=1e-5)
    for one, other in zip(*(torch.autograd.grad(loss.total, (x, weight)) for loss in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("whole", [8192, 16], ids=["rows held at once", "rows in parts"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [True, False])
def test_late_scores_are_judged_alike_however_much_of_a_row_is_held(
    whole: int, smoothing: float, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_switch, "INTERPRETED", True)
    monkeypatch.setattr("regard.train.triton_loss._WHOLE", whole)
    torch.manual_seed(0)
    words, lengths = torch.randint(0, 37, (3, 5)), torch.tensor([5, 2, 4])
    x, weight = 3 * torch.randn(3, 5, 8), torch.randn(37, 8)
    taken = [x, weight, torch.randn(37)] if biased else [x, weight]
    for each in taken:
        each.requires_grad_()
    late = Unscored(x, weight, taken[2] if biased else None)
    found, wanted = (word_loss(way, words, lengths, smoothing) for way in (late, late.logits().double()))
    torch.testing.assert_close(found.total.double(), wanted.total, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.plain.double(), wanted.plain, rtol=1e-5, atol=1e-5)
    for one, other in zip(*(torch.autograd.grad(loss.total, taken) for loss in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
