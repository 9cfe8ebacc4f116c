"""Gradient norms are those of autograd, and show what residual connections are good for."""

from typing import Any

import pytest
import torch
from torch import Tensor

from regard.lab.ablate.gradient_norms import deeper_model, gradient_norms
from regard.model import Model, read_config

LAYER = {"attention": {"heads": 2}, "feed_forward": {"hidden": 32}, "dropout": 0.1}


def model(layers: int, **settings: Any) -> Model:
    torch.manual_seed(0)
    stack = LAYER | {"layers": layers} | settings
    values = {"kind": "encoder-decoder", "vocab_size": 50, "width": 16, "encoder": stack, "decoder": stack}
    built: Any = read_config(values).build()
    return built  # type: ignore[no-any-return]


def loss_of(built: Any) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    source, target = torch.randint(3, 50, (2, 4, 9), generator=generator)
    logits = built(source, target[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())


def test_norms_equal_those_of_a_backward_pass() -> None:
    built = model(2)
    norms = gradient_norms(built, lambda: loss_of(built))
    assert built.training
    assert all(parameter.grad is None for parameter in built.parameters())
    built.eval()
    loss_of(built).backward()
    for name in ("encoder", "decoder"):
        by_hand = []
        for layer in getattr(built, name).layers:
            squares = [float((one.grad.double() ** 2).sum()) for one in layer.parameters() if one.grad is not None]
            by_hand.append(sum(squares) ** 0.5)
        assert norms[name] == pytest.approx(by_hand, rel=1e-6)
        assert all(norm > 0 for norm in by_hand)


def test_gradient_reaches_the_first_of_many_layers_with_residual_connections_only() -> None:
    ratios = {}
    for residual in (True, False):
        built = deeper_model(model(1, residual=residual), layers=24, seed=0)
        norms = gradient_norms(built, lambda built=built: loss_of(built))["encoder"]  # type: ignore[misc]
        assert len(norms) == 24
        ratios[residual] = norms[0] / norms[-1]
    assert ratios[True] > 0.5
    assert ratios[False] < 0.1


def test_deeper_model_differs_in_its_layers_only() -> None:
    shallow = model(1, norm_position="post")
    deep = deeper_model(shallow, layers=5, seed=3)
    values, expected = deep.config.plain(), shallow.config.plain()
    for name in ("encoder", "decoder"):
        assert values[name].pop("layers") == 5
        assert expected[name].pop("layers") == 1
    assert values == expected
