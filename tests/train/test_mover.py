"""Moving weights straight from gradients as they were made is what the optimiser does, in fewer trips through memory.

The kernels run here in Triton's interpreter, which cuts bf16 off where a GPU rounds. So most of this is in float32.
"""

import copy

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor, nn

from regard.fast import triton_switch
from regard.train import OptimiserConfig
from regard.train.gradient import Gradients
from regard.train.loss import Loss
from regard.train.lowered import Lowered
from regard.train.mover import Mover, mover_of
from regard.train.optimiser import Optimiser


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_switch, "INTERPRETED", True)


class Task:
    """Squares of what a small network makes of its batch; its tensors are longer and shorter than a stretch."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(24, 200), nn.LayerNorm(200), nn.Linear(200, 24), nn.Linear(24, 3))

    def loss(self, forward: object, batch: Tensor) -> Loss:
        total = forward(batch).float().square().sum()  # type: ignore[operator]
        return Loss(total, total.detach(), torch.tensor(1))


def batch(number: int) -> Tensor:
    return torch.randn(5, 24, generator=torch.Generator().manual_seed(number))


def begin(
    settings: OptimiserConfig, *, moving: bool, dtype: torch.dtype = torch.float32
) -> tuple[Task, Optimiser, Gradients[Tensor]]:
    task = Task()
    optimiser = settings.build(task.model)
    forward = Lowered(task.model, dtype)
    mover = mover_of(optimiser, forward)
    assert isinstance(mover, Mover)
    return task, optimiser, Gradients(task, "bf16", forward, mover if moving else None)  # type: ignore[arg-type]


def take_steps(
    begun: tuple[Task, Optimiser, Gradients[Tensor]], numbers: range, clip: float = 0.5, *, only: bool = True
) -> dict[str, Tensor]:
    task, optimiser, gradients = begun
    for number in numbers:
        gradients.add(batch(number), torch.tensor(0.1), only=only)
        gradients.move(optimiser, 0.01, clip)
    return {name: tensor.clone() for name, tensor in task.model.state_dict().items()}


def near(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.allclose(one[name], two[name], rtol=1e-4, atol=1e-6) for name in one)


@pytest.mark.parametrize("clip", [0.0, 0.5, 1e6], ids=["not clipped", "clipped", "within the clip"])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_weights_and_memory_are_those_of_the_optimiser(kind: str, decay: float, clip: float) -> None:
    settings = OptimiserConfig(kind=kind, decay=decay, epsilon=1e-6)
    plain, moving = begin(settings, moving=False), begin(settings, moving=True)
    wanted, found = take_steps(plain, range(4), clip), take_steps(moving, range(4), clip)
    assert near(wanted, found)
    assert near(plain[1].memory(), moving[1].memory())
    assert not near(found, Task().model.state_dict())


def test_the_next_pass_computes_with_the_moved_weights() -> None:
    begun = begin(OptimiserConfig(), moving=True)
    take_steps(begun, range(2))
    assert begun[2].lowered is not None
    assert all(torch.equal(copied, parameter) for parameter, copied in begun[2].lowered.trained)


def test_bf16_is_read_and_written() -> None:
    task, _, gradients = begin(OptimiserConfig(), moving=True, dtype=torch.bfloat16)
    before = copy.deepcopy(task.model.state_dict())
    lowered, mover = gradients.lowered, gradients.mover
    assert lowered is not None
    assert mover is not None
    slopes = [torch.randn_like(copied) for _, copied in lowered.trained]
    noted = mover.note(slopes)
    assert noted is not None
    assert noted.dtype == torch.bfloat16
    mover.move(noted, 0.01, 0.0)
    for (name, parameter), (_, copied), slope in zip(
        task.model.named_parameters(), lowered.trained, slopes, strict=True
    ):
        # Adam's first step is as long as its rate, whatever the gradient.
        assert torch.allclose(parameter, before[name] - 0.01 * slope.float().sign(), atol=1e-4)
        assert torch.allclose(copied.float(), parameter, rtol=2**-7, atol=0)


def test_weights_changed_from_outside_are_seen() -> None:
    task, optimiser, gradients = begin(OptimiserConfig(), moving=True)
    take_steps((task, optimiser, gradients), range(2))
    task.model.load_state_dict({name: 0 * tensor for name, tensor in task.model.state_dict().items()})
    loss = gradients.add(batch(0), torch.tensor(1.0), only=True)
    assert loss.total.item() == 0


def test_a_run_may_change_between_both_ways() -> None:
    settings = OptimiserConfig(decay=0.1, epsilon=1e-6)
    wanted = take_steps(begin(settings, moving=False), range(6))
    begun = begin(settings, moving=True)
    take_steps(begun, range(2))
    take_steps(begun, range(2, 4), only=False)
    assert near(wanted, take_steps(begun, range(4, 6)))


def test_a_sum_of_several_passes_goes_the_long_way() -> None:
    settings = OptimiserConfig(epsilon=1e-6)
    found = []
    for moving in (False, True):
        task, optimiser, gradients = begin(settings, moving=moving)
        for number in range(3):
            gradients.add(batch(number), torch.tensor(0.1))
        gradients.move(optimiser, 0.01, 0.5)
        found.append({name: tensor.clone() for name, tensor in task.model.state_dict().items()})
    assert near(*found)


def test_it_goes_on_from_the_memory_of_another() -> None:
    settings = OptimiserConfig(kind="adamw", decay=0.1, epsilon=1e-6)
    wanted = take_steps(begin(settings, moving=True), range(6))
    first = begin(settings, moving=True)
    weights = take_steps(first, range(3))
    memory = copy.deepcopy(first[1].memory())
    second = begin(settings, moving=True)
    take_steps(second, range(1))  # has tables of its own memory, which is then replaced
    second[0].model.load_state_dict(weights)
    second[1].recall(memory)
    found = take_steps(second, range(3, 6))
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)


def test_what_has_no_gradient_is_moved_as_by_the_optimiser() -> None:
    class Half(Task):
        def loss(self, forward: object, batch: Tensor) -> Loss:
            weights = forward.weights  # type: ignore[attr-defined]
            total = (batch @ weights["0.weight"].T).float().square().sum()
            return Loss(total, total.detach(), torch.tensor(1))

    found = []
    for moving in (False, True):
        task, optimiser, gradients = begin(OptimiserConfig(epsilon=1e-6), moving=moving)
        take_steps((task, optimiser, gradients), range(2))
        gradients.task = Half()  # type: ignore[assignment]
        found.append(take_steps((task, optimiser, gradients), range(2)))
    assert near(*found)


def test_gradients_that_are_no_numbers_are_not_hidden_by_clipping() -> None:
    task, optimiser, gradients = begin(OptimiserConfig(), moving=True)
    gradients.add(batch(0), torch.tensor(float("nan")), only=True)
    gradients.move(optimiser, 0.01, 1.0)
    assert all(bool(parameter.isnan().all()) for parameter in task.model.parameters())


def test_other_optimisers_and_precisions_go_the_long_way() -> None:
    task = Task()
    assert mover_of(OptimiserConfig(kind="muon").build(task.model), Lowered(task.model)) is None
    assert mover_of(OptimiserConfig().build(task.model), task.model) is None
    triton_switch.INTERPRETED = False
    assert mover_of(OptimiserConfig().build(task.model), Lowered(task.model)) is None


def test_weights_moved_by_the_optimiser_are_seen_by_the_next_pass() -> None:
    task, optimiser, gradients = begin(OptimiserConfig(), moving=False, dtype=torch.bfloat16)
    lowered = gradients.lowered
    assert lowered is not None
    for number in range(3):
        gradients.add(batch(number).bfloat16(), torch.tensor(0.1))
        for parameter, copied in lowered.trained:
            assert torch.equal(copied, parameter.to(torch.bfloat16))
        before = [parameter.detach().clone() for parameter in task.model.parameters()]
        gradients.move(optimiser, 0.01, 0.5)
        assert not any(torch.equal(*pair) for pair in zip(before, task.model.parameters(), strict=True))
