"""Fused Adam equals gradient clipping followed by PyTorch's Adam.

The kernels run here in Triton's interpreter, which truncates bfloat16 where a GPU rounds. So most tests are in float32.
"""

import copy

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor, nn

from regard.kernels import dispatch
from regard.train import OptimizerConfig
from regard.train.fused_adam import FusedAdam, fused_adam_for
from regard.train.loss import Loss
from regard.train.mixed_precision import MixedPrecisionModel
from regard.train.optimizer import Optimizer
from regard.train.step import TrainStep


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "runs_triton", lambda device: True)


class Task:
    """The squared outputs of a small network with tensors longer and shorter than a chunk of the kernel."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(24, 200), nn.LayerNorm(200), nn.Linear(200, 24), nn.Linear(24, 3))

    def loss(self, forward: object, batch: Tensor) -> Loss:
        total = forward(batch).float().square().sum()  # type: ignore[operator]
        return Loss(total, total.detach(), torch.tensor(1))


def batch(number: int) -> Tensor:
    return torch.randn(5, 24, generator=torch.Generator().manual_seed(number))


def make_step(
    settings: OptimizerConfig, *, fused: bool, dtype: torch.dtype = torch.float32
) -> tuple[Task, Optimizer, TrainStep[Tensor]]:
    task = Task()
    optimizer = settings.build(task.model)
    forward = MixedPrecisionModel(task.model, dtype)
    fused_adam = fused_adam_for(optimizer, forward)
    assert isinstance(fused_adam, FusedAdam)
    return task, optimizer, TrainStep(task, "bfloat16", forward, fused_adam if fused else None)  # type: ignore[arg-type]


def take_steps(
    setup: tuple[Task, Optimizer, TrainStep[Tensor]], numbers: range, max_norm: float = 0.5, *, only: bool = True
) -> dict[str, Tensor]:
    task, optimizer, step = setup
    for number in numbers:
        step.backward(batch(number), torch.tensor(0.1), only=only)
        step.optimizer_step(optimizer, 0.01, max_norm)
    return {name: tensor.clone() for name, tensor in task.model.state_dict().items()}


def all_close(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.allclose(one[name], two[name], rtol=1e-4, atol=1e-6) for name in one)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("max_norm", [0.0, 0.5, 1e6], ids=["not clipped", "clipped", "within the norm"])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_weights_and_state_equal_pytorch_adam(kind: str, decay: float, max_norm: float) -> None:
    settings = OptimizerConfig(kind=kind, weight_decay=decay, eps=1e-6)
    unfused, fused = make_step(settings, fused=False), make_step(settings, fused=True)
    expected, actual = take_steps(unfused, range(4), max_norm), take_steps(fused, range(4), max_norm)
    assert all_close(expected, actual)
    assert all_close(unfused[1].state_dict(), fused[1].state_dict())
    norms = [step.grad_norm() for _, _, step in (fused, unfused)]
    assert norms == [None, None] if not max_norm else norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert not all_close(actual, Task().model.state_dict())


def test_next_pass_uses_the_updated_weights() -> None:
    setup = make_step(OptimizerConfig(), fused=True)
    take_steps(setup, range(2))
    assert setup[2].mixed_precision is not None
    assert all(torch.equal(copied, parameter) for parameter, copied in setup[2].mixed_precision.trained)


def test_bfloat16_gradients_and_copies() -> None:
    task, _, step = make_step(OptimizerConfig(), fused=True, dtype=torch.bfloat16)
    before = copy.deepcopy(task.model.state_dict())
    mixed_precision, fused_adam = step.mixed_precision, step.fused_adam
    assert mixed_precision is not None
    assert fused_adam is not None
    grads = [torch.randn_like(copied) for _, copied in mixed_precision.trained]
    pointers = fused_adam.pointers(grads)
    assert pointers is not None
    assert pointers.dtype == torch.bfloat16
    fused_adam.step(pointers, 0.01, 0.0)
    for (name, parameter), (_, copied), grad in zip(
        task.model.named_parameters(), mixed_precision.trained, grads, strict=True
    ):
        # Adam's first step has the size of the learning rate, whatever the gradient.
        assert torch.allclose(parameter, before[name] - 0.01 * grad.float().sign(), atol=1e-4)
        assert torch.allclose(copied.float(), parameter, rtol=2**-7, atol=0)


def test_weights_changed_outside_the_optimizer_are_used() -> None:
    task, optimizer, step = make_step(OptimizerConfig(), fused=True)
    take_steps((task, optimizer, step), range(2))
    task.model.load_state_dict({name: 0 * tensor for name, tensor in task.model.state_dict().items()})
    loss = step.backward(batch(0), torch.tensor(1.0), only=True)
    assert loss.total.item() == 0


def test_run_can_switch_between_fused_and_unfused() -> None:
    settings = OptimizerConfig(weight_decay=0.1, eps=1e-6)
    expected = take_steps(make_step(settings, fused=False), range(6))
    setup = make_step(settings, fused=True)
    take_steps(setup, range(2))
    take_steps(setup, range(2, 4), only=False)
    assert all_close(expected, take_steps(setup, range(4, 6)))


def test_gradient_accumulation_is_unfused() -> None:
    settings = OptimizerConfig(eps=1e-6)
    weights_by_mode = []
    for fused in (False, True):
        task, optimizer, step = make_step(settings, fused=fused)
        for number in range(3):
            step.backward(batch(number), torch.tensor(0.1))
        step.optimizer_step(optimizer, 0.01, 0.5)
        weights_by_mode.append({name: tensor.clone() for name, tensor in task.model.state_dict().items()})
    assert all_close(*weights_by_mode)


def test_state_can_be_loaded_from_another_optimizer() -> None:
    settings = OptimizerConfig(kind="adamw", weight_decay=0.1, eps=1e-6)
    expected = take_steps(make_step(settings, fused=True), range(6))
    first = make_step(settings, fused=True)
    weights = take_steps(first, range(3))
    state = copy.deepcopy(first[1].state_dict())
    second = make_step(settings, fused=True)
    take_steps(second, range(1))  # caches pointers to its state, which is then replaced
    second[0].model.load_state_dict(weights)
    second[1].load_state_dict(state)
    actual = take_steps(second, range(3, 6))
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


def test_parameter_without_gradient_equals_pytorch_adam() -> None:
    class FirstLayerTask(Task):
        def loss(self, forward: object, batch: Tensor) -> Loss:
            weights = forward.weights  # type: ignore[attr-defined]
            total = (batch @ weights["0.weight"].T).float().square().sum()
            return Loss(total, total.detach(), torch.tensor(1))

    weights_by_mode = []
    for fused in (False, True):
        task, optimizer, step = make_step(OptimizerConfig(eps=1e-6), fused=fused)
        take_steps((task, optimizer, step), range(2))
        step.task = FirstLayerTask()  # type: ignore[assignment]
        weights_by_mode.append(take_steps((task, optimizer, step), range(2)))
    assert all_close(*weights_by_mode)


def test_clipping_does_not_hide_nan_gradients() -> None:
    task, optimizer, step = make_step(OptimizerConfig(), fused=True)
    step.backward(batch(0), torch.tensor(float("nan")), only=True)
    step.optimizer_step(optimizer, 0.01, 1.0)
    assert all(bool(parameter.isnan().all()) for parameter in task.model.parameters())


def test_other_optimizers_and_precisions_are_unfused(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task()
    assert fused_adam_for(OptimizerConfig(kind="muon").build(task.model), MixedPrecisionModel(task.model)) is None
    assert fused_adam_for(OptimizerConfig().build(task.model), task.model) is None
    monkeypatch.setattr(dispatch, "runs_triton", lambda device: False)
    assert fused_adam_for(OptimizerConfig().build(task.model), MixedPrecisionModel(task.model)) is None


def test_next_pass_uses_weights_updated_by_pytorch() -> None:
    task, optimizer, step = make_step(OptimizerConfig(), fused=False, dtype=torch.bfloat16)
    mixed_precision = step.mixed_precision
    assert mixed_precision is not None
    for number in range(3):
        step.backward(batch(number).bfloat16(), torch.tensor(0.1))
        for parameter, copied in mixed_precision.trained:
            assert torch.equal(copied, parameter.to(torch.bfloat16))
        before = [parameter.detach().clone() for parameter in task.model.parameters()]
        step.optimizer_step(optimizer, 0.01, 0.5)
        assert not any(torch.equal(*pair) for pair in zip(before, task.model.parameters(), strict=True))
