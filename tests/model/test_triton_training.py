"""Kernels for training that have no place in a test of whole models. They run here in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

import torch


def test_the_positive_part_has_its_gradient() -> None:
    from regard.model.triton_training import bend

    torch.manual_seed(0)
    x = torch.randn(7, 300, requires_grad=True)
    factor = torch.randn(7, 300)
    wanted = torch.relu(x)
    (wanted * factor).sum().backward()
    assert x.grad is not None
    slope, x.grad = x.grad, None
    found = bend(x * 1, None)
    (found * factor).sum().backward()
    assert torch.equal(found, wanted)
    assert torch.equal(x.grad, slope)


def test_what_is_dropped_of_it_gets_no_gradient() -> None:
    from regard.model.triton_training import Chance, bend

    x = torch.linspace(-1, 1, 4000).requires_grad_()
    bent = bend((x * 1)[None], Chance(0.25, torch.tensor([5]), 3))[0]
    bent.sum().backward()
    assert x.grad is not None
    positive = x.detach() > 0
    kept = bent.detach() > 0
    assert float(kept[positive].float().mean()) == pytest.approx(0.75, abs=0.03)
    assert not bool(kept[~positive].any())
    assert torch.allclose(bent[kept], x.detach()[kept] / 0.75)
    assert torch.allclose(x.grad, kept / 0.75)
