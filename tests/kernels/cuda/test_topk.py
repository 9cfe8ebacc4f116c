"""The highest logits equal PyTorch's, and ties go to the first token. Run in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

import torch

from regard.kernels.cuda import topk as kernels

pytestmark = pytest.mark.start_early(13)

NEG_INF = float("-inf")


@pytest.mark.filterwarnings("ignore:divide by zero encountered in log")
@pytest.mark.parametrize("many_rows", [1, 100], ids=["many rows", "few rows"])
@pytest.mark.parametrize(
    ("vocab_size", "k"), [(40, 32), (64, 1), (65, 2), (130, 8), (1100, 10), (4096, 4), (4100, 3), (9000, 10)]
)
def test_topk_equals_a_stable_sort(vocab_size: int, k: int, many_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_MANY_ROWS", many_rows)
    torch.manual_seed(vocab_size)
    logits = 3 * torch.randn(5, vocab_size)
    logits[1] = logits[1].round()  # many ties
    logits[2] = 1.0
    logits[3] = NEG_INF
    logits[4, torch.randperm(vocab_size)[: vocab_size - k // 2]] = NEG_INF
    values, tokens, logsumexps = kernels.topk_logsumexp(logits, k)
    expected, order = logits.sort(dim=1, descending=True, stable=True)
    assert torch.equal(values, expected[:, :k])
    assert torch.equal(tokens, order[:, :k])
    assert torch.allclose(logsumexps, logits.logsumexp(dim=1, keepdim=True), atol=1e-5)
