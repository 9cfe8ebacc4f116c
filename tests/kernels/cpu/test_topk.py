"""The k highest logits and the log-sum-exp of each row equal those of PyTorch."""

import pytest
import torch

pytest.importorskip("numba")

from regard.decode.strategy import topk_logsumexp

pytestmark = pytest.mark.start_early(12)


@pytest.mark.parametrize("size", [1024, 1025, 1087, 8000])
@pytest.mark.parametrize("count", [1, 3, 10, 64])
def test_topk_logsumexp_equals_torch(size: int, count: int) -> None:
    torch.manual_seed(size + count)
    logits = 5 * torch.randn(7, size)
    best, tokens, total = topk_logsumexp(logits, count)
    expected, which = logits.topk(count, dim=1)
    assert torch.equal(best, expected)
    assert torch.equal(tokens, which)
    assert torch.allclose(total, logits.logsumexp(dim=1, keepdim=True), atol=1e-5)
