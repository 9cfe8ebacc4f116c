"""The scalar mix of Peters et al. 2018: γ · Σ softmax(w)ⱼ hⱼ."""

import pytest
import torch

from regard.errors import UserError
from regard.model.scalar_mix import ScalarMix


def test_untrained_mix_is_the_mean_of_the_layers():
    layers = torch.randn(3, 2, 5, 4)
    torch.testing.assert_close(ScalarMix(3)(layers), layers.mean(dim=0))
    torch.testing.assert_close(ScalarMix(3)(list(layers)), layers.mean(dim=0))


def test_mix_follows_its_equation():
    mix, layers = ScalarMix(3).double(), [torch.randn(2, 4, dtype=torch.float64) for _ in range(3)]
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.0, 1.0, -2.0]))
        mix.gamma.fill_(1.5)
    exp = torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64).exp()
    expected = 1.5 * sum(weight * layer for weight, layer in zip(exp / exp.sum(), layers, strict=True))
    torch.testing.assert_close(mix(layers), expected)


def test_gradients_equal_finite_differences():
    mix = ScalarMix(3).double()
    layers = torch.randn(3, 2, 4, dtype=torch.float64)

    def mixed(weights, gamma):
        return torch.func.functional_call(mix, {"weights": weights, "gamma": gamma}, (layers,))

    weights, gamma = torch.randn(3, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)
    assert torch.autograd.gradcheck(mixed, (weights.requires_grad_(), gamma.requires_grad_()))


def test_other_numbers_and_shapes_of_layers_are_refused():
    with pytest.raises(UserError, match="3 layers, found those of 2"):
        ScalarMix(3)(torch.zeros(2, 4))
    with pytest.raises(UserError, match="same shape"):
        ScalarMix(2)([torch.zeros(4), torch.zeros(5)])
