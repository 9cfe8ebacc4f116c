"""Gradients in the precision asked for: computed in bf16, kept in float32."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.train.gradient import Gradients, in_precision
from regard.train.loss import Loss
from regard.train.task import Forward
from tests.model.small_models import SAMPLES, build, encoder_decoder, inputs

CONFIGS = {f"{kind}, {name}": config for kind, configs in SAMPLES.items() for name, config in configs.items()}
BF16 = 2.0**-8  # half the distance of neighbours around 1


class Squares:
    """The sum of a model's squared scores, for lack of anything to learn."""

    def __init__(self, model: nn.Module, given: tuple[Tensor, ...]) -> None:
        self.model, self._given = model, given

    def loss(self, forward: Forward, batch: Any) -> Loss:
        total = forward(*self._given).float().square().sum()
        return Loss(total, total.detach(), torch.tensor(1))


def gradients(model: nn.Module, given: tuple[Tensor, ...], precision: str, scale: float = 1.0) -> dict[str, Tensor]:
    Gradients(Squares(model, given), precision).add(None, torch.tensor(scale))
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_in_fp32_it_is_the_model_itself() -> None:
    model = nn.Linear(2, 3)
    assert in_precision(model, "fp32") is model


@pytest.mark.parametrize("name", CONFIGS)
def test_every_layer_computes_in_bf16(name: str) -> None:
    model = build(CONFIGS[name], torch.float32)
    seen: dict[str, torch.dtype] = {}
    for layer, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.LayerNorm | nn.RMSNorm | nn.Embedding):
            module.register_forward_hook(lambda _, __, out, layer=layer: seen.__setitem__(layer, out.dtype))
    in_precision(model, "bf16")(*inputs(CONFIGS[name]))
    assert seen
    assert set(seen.values()) == {torch.bfloat16}


def test_weights_stay_in_float32() -> None:
    config = encoder_decoder()
    model = build(config, torch.float32)
    before = copy.deepcopy(model.state_dict())
    gradients(model, inputs(config), "bf16")
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("name", CONFIGS)
def test_every_weight_gets_a_gradient_in_float32(name: str) -> None:
    model = build(CONFIGS[name], torch.float32)
    found = gradients(model, inputs(CONFIGS[name]), "bf16")
    assert found.keys() == dict(model.named_parameters()).keys()
    assert {gradient.dtype for gradient in found.values()} == {torch.float32}


def test_gradients_are_those_of_the_model_in_bf16() -> None:
    config = encoder_decoder()  # its source, target and output words are one tensor
    model = build(config, torch.float32)
    half = copy.deepcopy(model).bfloat16()
    found = gradients(model, inputs(config), "bf16")
    for name, wanted in gradients(half, inputs(config), "fp32").items():
        torch.testing.assert_close(found[name], wanted.float(), rtol=2 * BF16, atol=BF16 * float(wanted.abs().max()))


def test_gradients_in_bf16_are_near_those_in_float32() -> None:
    config = encoder_decoder()
    half, exact = (
        torch.cat([each.flatten() for each in gradients(build(config, torch.float32), inputs(config), kind).values()])
        for kind in ("bf16", "fp32")
    )
    assert not torch.equal(half, exact)
    assert torch.dot(half, exact) / (half.norm() * exact.norm()) > 0.999


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_are_added_to_those_that_are_there_each_by_its_scale(precision: str) -> None:
    config = encoder_decoder()
    model = build(config, torch.float32)
    once = {name: gradient.clone() for name, gradient in gradients(model, inputs(config), precision).items()}
    for name, both in gradients(model, inputs(config), precision, scale=0.5).items():
        torch.testing.assert_close(both, 1.5 * once[name])
