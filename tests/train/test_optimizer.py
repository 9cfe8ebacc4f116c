"""Optimizers update every parameter and resume exactly from their state dict; learning rate schedules."""

import copy

import pytest
import torch
from torch import nn

from regard import UserError
from regard.attention import LearnedConfig, MultiHeadConfig
from regard.model import FeedForwardConfig, LanguageModelConfig, StackConfig
from regard.train import OptimizerConfig, ScheduleConfig

KINDS = ["adam", "adamw", "muon"]


def model() -> nn.Module:
    torch.manual_seed(0)
    stack = StackConfig(
        layers=1, attention=MultiHeadConfig(heads=2), feed_forward=FeedForwardConfig(hidden=12), dropout=0.0
    )
    return LanguageModelConfig(
        vocab_size=7, width=8, decoder=stack, position=LearnedConfig(max_length=9), tie_weights=False
    ).build()


def take_steps(trained: nn.Module, optimizer, seeds: range) -> None:
    for seed in seeds:
        torch.manual_seed(seed)
        loss = trained(torch.randint(0, 7, (2, 5))).square().mean()
        loss.backward()
        optimizer.step(lr=0.01)
        optimizer.zero_grad()


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_is_updated(kind: str) -> None:
    trained = model()
    before = copy.deepcopy(trained.state_dict())
    take_steps(trained, OptimizerConfig(kind=kind).build(trained), range(3))
    unchanged = [name for name, tensor in trained.state_dict().items() if torch.equal(tensor, before[name])]
    assert unchanged == []


@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_round_trips_bit_for_bit(kind: str) -> None:
    settings = OptimizerConfig(kind=kind, weight_decay=0.1)
    uninterrupted = model()
    take_steps(uninterrupted, settings.build(uninterrupted), range(6))
    first = model()
    optimizer = settings.build(first)
    take_steps(first, optimizer, range(3))
    second = model()
    second.load_state_dict(first.state_dict())
    resumed = settings.build(second)
    resumed.load_state_dict({name: tensor.clone() for name, tensor in optimizer.state_dict().items()})
    take_steps(second, resumed, range(3, 6))
    for name, tensor in uninterrupted.state_dict().items():
        assert torch.equal(second.state_dict()[name], tensor), name


@pytest.mark.parametrize("fused", [True, False])
def test_loaded_state_is_on_the_device_of_the_weights(fused: bool) -> None:
    """Fused Adam has its step counts on the weights' device, others on the CPU; \"meta\" stands for a GPU."""
    trained = model()
    optimizer = OptimizerConfig().build(trained)
    take_steps(trained, optimizer, range(1))
    on_meta = OptimizerConfig().build(model().to("meta"))
    assert not on_meta.fused
    on_meta.fused = fused
    on_meta.load_state_dict(optimizer.state_dict())
    devices = {name.rpartition("/")[2]: str(value.device) for name, value in on_meta.state_dict().items()}
    assert devices == {"exp_avg": "meta", "exp_avg_sq": "meta", "step": "meta" if fused else "cpu"}


@pytest.mark.parametrize("kind", KINDS)
def test_weight_decay_applies_to_matrices_only(kind: str) -> None:
    trained = model()
    before = copy.deepcopy(trained.state_dict())
    for parameter in trained.parameters():
        parameter.grad = torch.zeros_like(parameter)
    OptimizerConfig(kind="adamw" if kind == "adam" else kind, weight_decay=0.5).build(trained).step(lr=0.1)
    shrunk = {name for name, tensor in trained.state_dict().items() if not torch.equal(tensor, before[name])}
    assert shrunk == {name for name, tensor in before.items() if tensor.dim() == 2 and ".layers." in name}


def test_adam_equals_pytorch_with_the_papers_settings() -> None:
    ours, theirs = model(), model()
    take_steps(ours, OptimizerConfig().build(ours), range(3))
    adam = torch.optim.Adam(theirs.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9, fused=True)
    for seed in range(3):
        torch.manual_seed(seed)
        theirs(torch.randint(0, 7, (2, 5))).square().mean().backward()
        adam.step()
        adam.zero_grad()
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(theirs.state_dict()[name], tensor, msg=name)


def test_state_of_another_model_is_refused() -> None:
    with pytest.raises(UserError, match=r"'encoder\.weight'"):
        OptimizerConfig().build(model()).load_state_dict({"encoder.weight/step": torch.tensor(1.0)})


def test_state_dict_keys_are_parameter_names() -> None:
    trained = model()
    optimizer = OptimizerConfig().build(trained)
    take_steps(trained, optimizer, range(1))
    assert {name.rpartition("/")[0] for name in optimizer.state_dict()} == {
        name for name, _ in trained.named_parameters()
    }


# Learning rate schedules


def test_inverse_sqrt_equals_the_papers_schedule() -> None:
    width, warmup = 512, 4000
    schedule = ScheduleConfig(lr=(width * warmup) ** -0.5, warmup_steps=warmup)
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)  # Vaswani et al. 2017, eq. 3
        assert schedule.at(step) == pytest.approx(paper, rel=1e-12)


@pytest.mark.parametrize("kind", ["inverse-sqrt", "cosine", "linear", "constant"])
def test_warmup_is_linear(kind: str) -> None:
    schedule = ScheduleConfig(kind=kind, lr=0.5, warmup_steps=10, steps=100)
    assert [schedule.at(step) for step in (1, 5, 10)] == pytest.approx([0.05, 0.25, 0.5])


@pytest.mark.parametrize("kind", ["inverse-sqrt", "cosine", "linear", "constant"])
def test_lr_never_rises_after_the_peak(kind: str) -> None:
    schedule = ScheduleConfig(kind=kind, lr=0.5, warmup_steps=10, steps=100)
    rates = [schedule.at(step) for step in range(10, 130)]
    assert rates == sorted(rates, reverse=True)


def test_linear_schedule_is_zero_one_step_after_the_last() -> None:
    schedule = ScheduleConfig(kind="linear", lr=0.9, warmup_steps=1, steps=9)
    assert schedule.at(9) == pytest.approx(0.1)
    assert schedule.at(10) == 0


def test_cosine_schedule_ends_at_min_lr_ratio() -> None:
    schedule = ScheduleConfig(kind="cosine", lr=1.0, warmup_steps=0, steps=100, min_lr_ratio=0.1)
    assert schedule.at(50) == pytest.approx(0.55)
    assert schedule.at(100) == pytest.approx(0.1)


@pytest.mark.parametrize("kind", ["inverse-sqrt", "cosine", "linear", "constant"])
def test_first_step_without_warmup_has_the_peak_lr(kind: str) -> None:
    rate = ScheduleConfig(kind=kind, lr=0.5, warmup_steps=0, steps=1000).at(1)
    assert rate == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "linear", "lr": 1.0}, "^steps: "),
        (
            {"kind": "cosine", "lr": 1.0, "warmup_steps": 10, "steps": 10},
            "^warmup_steps: found 10",
        ),
        ({"lr": 0.0}, r"^lr: found 0\.0"),
        ({"lr": 1.0, "min_lr_ratio": 0.1}, "^min_lr_ratio: "),
    ],
)
def test_invalid_schedule_names_its_key(settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ScheduleConfig(**settings)
