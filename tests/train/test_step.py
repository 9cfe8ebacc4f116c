"""Gradients in mixed precision: computed in bfloat16, accumulated in float32."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.train.loss import Loss
from regard.train.step import TrainStep, forward_in_precision
from regard.train.task import Forward
from tests.model.small_models import SAMPLES, build, encoder_decoder, inputs

CONFIGS = {f"{kind}, {name}": config for kind, configs in SAMPLES.items() for name, config in configs.items()}
BF16 = 2.0**-8  # half the distance of neighbors around 1


class Squares:
    """The sum of a model's squared logits, for lack of anything to learn."""

    def __init__(self, model: nn.Module, given: tuple[Tensor, ...]) -> None:
        self.model, self._given = model, given

    def loss(self, forward: Forward, batch: Any) -> Loss:
        total = forward(*self._given).float().square().sum()
        return Loss(total, total.detach(), torch.tensor(1))


def gradients(model: nn.Module, given: tuple[Tensor, ...], precision: str, scale: float = 1.0) -> dict[str, Tensor]:
    TrainStep(Squares(model, given), precision).backward(None, torch.tensor(scale))
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_float32_forward_is_the_model_itself() -> None:
    model = nn.Linear(2, 3)
    assert forward_in_precision(model, "float32") is model


@pytest.mark.parametrize("name", CONFIGS)
def test_every_layer_computes_in_bfloat16(name: str) -> None:
    model = build(CONFIGS[name], torch.float32)
    seen: dict[str, torch.dtype] = {}
    for layer, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.LayerNorm | nn.RMSNorm | nn.Embedding):
            module.register_forward_hook(lambda _, __, out, layer=layer: seen.__setitem__(layer, out.dtype))
    forward_in_precision(model, "bfloat16")(*inputs(CONFIGS[name]))
    assert seen
    assert set(seen.values()) == {torch.bfloat16}


def test_weights_stay_in_float32() -> None:
    config = encoder_decoder()
    model = build(config, torch.float32)
    before = copy.deepcopy(model.state_dict())
    gradients(model, inputs(config), "bfloat16")
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("name", CONFIGS)
def test_every_parameter_has_a_float32_gradient(name: str) -> None:
    model = build(CONFIGS[name], torch.float32)
    actual = gradients(model, inputs(CONFIGS[name]), "bfloat16")
    assert actual.keys() == dict(model.named_parameters()).keys()
    assert {gradient.dtype for gradient in actual.values()} == {torch.float32}


def test_gradients_equal_those_of_a_bfloat16_model() -> None:
    config = encoder_decoder()  # its source, target and output words are one tensor
    model = build(config, torch.float32)
    half = copy.deepcopy(model).bfloat16()
    actual = gradients(model, inputs(config), "bfloat16")
    for name, expected in gradients(half, inputs(config), "float32").items():
        torch.testing.assert_close(
            actual[name], expected.float(), rtol=2 * BF16, atol=BF16 * float(expected.abs().max())
        )


def test_bfloat16_gradients_are_close_to_float32() -> None:
    config = encoder_decoder()
    half, exact = (
        torch.cat([each.flatten() for each in gradients(build(config, torch.float32), inputs(config), kind).values()])
        for kind in ("bfloat16", "float32")
    )
    assert not torch.equal(half, exact)
    assert torch.dot(half, exact) / (half.norm() * exact.norm()) > 0.999


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_gradients_are_scaled_and_accumulated(precision: str) -> None:
    config = encoder_decoder()
    model = build(config, torch.float32)
    once = {name: gradient.clone() for name, gradient in gradients(model, inputs(config), precision).items()}
    for name, both in gradients(model, inputs(config), precision, scale=0.5).items():
        torch.testing.assert_close(both, 1.5 * once[name])
