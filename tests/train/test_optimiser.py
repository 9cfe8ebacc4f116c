"""Optimisers move what they should, and go on exactly from their memory."""

import copy

import pytest
import torch
from torch import nn

from regard import UserError
from regard.attention import HeadsConfig, LearnedConfig
from regard.model import FeedForwardConfig, LanguageModelConfig, StackConfig
from regard.train import OptimiserConfig

KINDS = ["adam", "adamw", "muon"]


def model() -> nn.Module:
    torch.manual_seed(0)
    stack = StackConfig(
        layers=1, attention=HeadsConfig(heads=2), feed_forward=FeedForwardConfig(hidden=12), dropout=0.0
    )
    return LanguageModelConfig(vocabulary=7, width=8, decoder=stack, position=LearnedConfig(limit=9), tie=False).build()


def take_steps(moved: nn.Module, optimiser, seeds: range) -> None:
    for seed in seeds:
        torch.manual_seed(seed)
        loss = moved(torch.randint(0, 7, (2, 5))).square().mean()
        loss.backward()
        optimiser.step(rate=0.01)
        optimiser.forget_gradients()


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_moves(kind: str) -> None:
    moved = model()
    before = copy.deepcopy(moved.state_dict())
    take_steps(moved, OptimiserConfig(kind=kind).build(moved), range(3))
    still = [name for name, tensor in moved.state_dict().items() if torch.equal(tensor, before[name])]
    assert still == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimiser_with_the_memory_of_another_goes_on_bit_for_bit(kind: str) -> None:
    settings = OptimiserConfig(kind=kind, decay=0.1)
    whole = model()
    take_steps(whole, settings.build(whole), range(6))
    first = model()
    optimiser = settings.build(first)
    take_steps(first, optimiser, range(3))
    second = model()
    second.load_state_dict(first.state_dict())
    resumed = settings.build(second)
    resumed.recall({name: tensor.clone() for name, tensor in optimiser.memory().items()})
    take_steps(second, resumed, range(3, 6))
    for name, tensor in whole.state_dict().items():
        assert torch.equal(second.state_dict()[name], tensor), name


@pytest.mark.parametrize("fused", [True, False])
def test_what_a_checkpoint_held_on_a_cpu_goes_to_where_the_optimiser_counts(fused: bool) -> None:
    """A fused Adam counts its steps on the device of the weights, any other on the CPU; \"meta\" stands for a GPU."""
    moved = model()
    optimiser = OptimiserConfig().build(moved)
    take_steps(moved, optimiser, range(1))
    elsewhere = OptimiserConfig().build(model().to("meta"))
    assert not elsewhere.fused
    elsewhere.fused = fused
    elsewhere.recall(optimiser.memory())
    places = {name.rpartition("/")[2]: str(value.device) for name, value in elsewhere.memory().items()}
    assert places == {"exp_avg": "meta", "exp_avg_sq": "meta", "step": "meta" if fused else "cpu"}


@pytest.mark.parametrize("kind", KINDS)
def test_only_matrices_decay(kind: str) -> None:
    moved = model()
    before = copy.deepcopy(moved.state_dict())
    for parameter in moved.parameters():
        parameter.grad = torch.zeros_like(parameter)
    OptimiserConfig(kind="adamw" if kind == "adam" else kind, decay=0.5).build(moved).step(rate=0.1)
    shrunk = {name for name, tensor in moved.state_dict().items() if not torch.equal(tensor, before[name])}
    assert shrunk == {name for name, tensor in before.items() if tensor.dim() == 2 and ".blocks." in name}


def test_adam_is_pytorchs_adam_with_the_papers_numbers() -> None:
    ours, theirs = model(), model()
    take_steps(ours, OptimiserConfig().build(ours), range(3))
    plain = torch.optim.Adam(theirs.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9, fused=True)
    for seed in range(3):
        torch.manual_seed(seed)
        theirs(torch.randint(0, 7, (2, 5))).square().mean().backward()
        plain.step()
        plain.zero_grad()
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(theirs.state_dict()[name], tensor, msg=name)


def test_memory_of_another_model_is_refused_with_the_name() -> None:
    with pytest.raises(UserError, match=r"names 'encoder\.weight'"):
        OptimiserConfig().build(model()).recall({"encoder.weight/step": torch.tensor(1.0)})


def test_the_memory_is_plain_tensors_under_the_parameters_names() -> None:
    moved = model()
    optimiser = OptimiserConfig().build(moved)
    take_steps(moved, optimiser, range(1))
    assert {name.rpartition("/")[0] for name in optimiser.memory()} == {name for name, _ in moved.named_parameters()}
