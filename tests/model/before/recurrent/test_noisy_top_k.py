"""Noisy top-k gating and its losses against the formulas of Shazeer et al. (2017), token by token."""

import math

import pytest
import torch

from regard.errors import UserError
from regard.model import read_config
from regard.model.before.recurrent.noisy_top_k import NoisyTopKConfig
from regard.model.mixture_of_experts import record_routing, total_aux_loss
from regard.train.loss import add_aux_loss, cross_entropy
from tests.model.before.recurrent.test_properties import ATTENTION, EXPERTS, pairs
from tests.model.small_models import EXACT, build

EXPERTS_COUNT, TOP_K, WIDTH = 5, 2, 6
CONFIG = NoisyTopKConfig(experts=EXPERTS_COUNT, top_k=TOP_K, hidden=7, importance_loss=0.3, load_loss=0.7)


def make_layer():
    torch.manual_seed(0)
    layer = CONFIG.build(WIDTH, 0.0).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def phi(x):
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def softplus(x):
    return math.log1p(math.exp(x))


def cv_squared(values):
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values) / mean**2


def written_out(layer, x, noise):
    """Outputs of tokens, importance and load, in plain Python.  x: # (tokens, width); noise: # (tokens, experts)"""
    experts = layer.experts
    w_g, w_n = experts.router.weight, experts.router.noise_weight
    outputs, importance, load = [], [0.0] * EXPERTS_COUNT, [0.0] * EXPERTS_COUNT
    for token, epsilon in zip(x, noise, strict=True):
        clean, spread = (w_g @ token).tolist(), [softplus(each) for each in (w_n @ token).tolist()]
        h = [c + e * s for c, e, s in zip(clean, epsilon.tolist(), spread, strict=True)]
        chosen = sorted(range(EXPERTS_COUNT), key=lambda i: -h[i])[:TOP_K]
        total = sum(math.exp(h[i]) for i in chosen)
        output = torch.zeros(WIDTH, dtype=torch.float64)
        for i in chosen:
            up = experts.experts.up_proj.weight[i] @ token + experts.experts.up_proj.bias[i]
            down = experts.experts.down_proj.weight[i] @ up.relu() + experts.experts.down_proj.bias[i]
            gate = math.exp(h[i]) / total
            output += gate * down
            importance[i] += gate
        for i in range(EXPERTS_COUNT):
            kth_of_others = sorted((h[j] for j in range(EXPERTS_COUNT) if j != i), reverse=True)[TOP_K - 1]
            load[i] += phi((clean[i] - kth_of_others) / spread[i])
        outputs.append(token + output.sigmoid())
    return torch.stack(outputs), importance, load


@pytest.mark.parametrize("training", [True, False])
def test_outputs_and_losses_equal_the_formulas(training):
    layer = make_layer().train(training)
    x = torch.randn(2, 4, WIDTH, dtype=torch.float64)
    lengths = torch.tensor([4, 2])
    torch.manual_seed(5)
    with record_routing() as records, torch.no_grad():
        output = layer(x, lengths)
    torch.manual_seed(5)
    noise = torch.randn(8, EXPERTS_COUNT, dtype=torch.float64) * training
    real = [0, 1, 2, 3, 4, 5]
    with torch.no_grad():
        expected, importance, load = written_out(layer, x.flatten(0, 1)[real], noise[real])
    torch.testing.assert_close(output.flatten(0, 1)[real], expected, **EXACT)
    aux_loss = 0.3 * cv_squared(importance) + 0.7 * cv_squared(load)
    assert float(total_aux_loss(records)) == pytest.approx(aux_loss, rel=1e-6)
    assert int(records[0].load.sum()) == 6 * TOP_K


def test_all_experts_are_equal_at_first():
    torch.manual_seed(0)
    layer = CONFIG.build(WIDTH, 0.0).train()
    assert (layer.experts.router.weight == 0).all()
    assert (layer.experts.router.noise_weight == 0).all()
    with record_routing() as records:
        layer(torch.randn(4, 500, WIDTH))
    load = records[0].load / records[0].load.sum()
    torch.testing.assert_close(load, torch.full((EXPERTS_COUNT,), 1 / EXPERTS_COUNT), atol=0.03, rtol=0)


def test_the_losses_reach_both_matrices_of_the_gate():
    layer = make_layer().train()
    with record_routing() as records:
        layer(torch.randn(2, 4, WIDTH, dtype=torch.float64))
    total_aux_loss(records).backward()
    assert layer.experts.router.weight.grad.abs().max() > 0
    assert layer.experts.router.noise_weight.grad.abs().max() > 0


def test_the_trainer_adds_the_losses_of_encoder_and_decoder():
    model = build(read_config(ATTENTION | EXPERTS)).train()
    source, target = pairs(model.config)

    def compute():
        torch.manual_seed(0)
        return cross_entropy(model(source, target[:, :-1]), target[:, 1:])

    plain, with_losses = compute(), add_aux_loss(model, compute)
    with record_routing() as records:
        compute()
    assert len(records) == 2
    torch.testing.assert_close(with_losses.mean - plain.mean, total_aux_loss(records))


@pytest.mark.parametrize("settings", [{"layers": 1}, {"decoder": {"kind": "luong"}}, {"experts": {"top_k": 9}}])
def test_experts_that_do_not_fit_are_refused(settings):
    with pytest.raises(UserError, match="experts"):
        read_config(ATTENTION | EXPERTS | settings)
