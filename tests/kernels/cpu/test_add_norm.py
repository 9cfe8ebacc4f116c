"""Dropout and the fused dropout, residual sum and norm."""

from typing import Any

import pytest
import torch

pytest.importorskip("numba")

from regard.kernels.cpu.add_norm import dropout, dropout_add_norm
from regard.kernels.params import Dropout

pytestmark = pytest.mark.start_early(12)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_dropout_has_its_probability_and_its_gradient(threads: int) -> None:
    x = torch.ones(600, 64, requires_grad=True)
    out = dropout(x, Dropout(0.3, 7, 1))
    kept = out.detach() != 0
    assert float(kept.float().mean()) == pytest.approx(0.7, abs=0.01)
    assert float(kept.float().mean(dim=0).std()) == pytest.approx((0.21 / 600) ** 0.5, rel=0.3)
    assert float(kept.float().mean(dim=1).std()) == pytest.approx((0.21 / 64) ** 0.5, rel=0.3)
    assert torch.allclose(out[kept], torch.tensor(1 / 0.7))
    out.sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, kept / 0.7)


def test_dropout_depends_on_seed_and_offset() -> None:
    x = torch.ones(300, 64)
    masks = [dropout(x, Dropout(0.5, seed, offset)) != 0 for seed, offset in ((7, 1), (7, 1), (7, 2), (8, 1))]
    assert torch.equal(masks[0], masks[1])
    for other in masks[2:]:
        assert float((masks[0] == other).float().mean()) == pytest.approx(0.5, abs=0.02)


def test_dropout_add_norm_drops_the_sublayer_output() -> None:
    residual, output = torch.zeros(100, 64), torch.ones(100, 64, requires_grad=True)
    settings = Dropout(0.3, 7, 1)
    total, _ = dropout_add_norm(residual, output, torch.ones(64), None, 1e-5, centered=True, dropout=settings)
    kept = total.detach() != 0
    assert float(kept.float().mean()) == pytest.approx(0.7, abs=0.03)
    total.sum().backward()
    assert output.grad is not None
    assert torch.allclose(output.grad, kept / 0.7)
