"""Experts under training: loads become even, are written down, and a resumed run goes on to the same bits."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from regard.attention import Context, LayerState
from regard.data.batch import Batch, TokenBatches
from regard.model.experts import Experts, ExpertsConfig, balance_of, gathered
from regard.run.tensors import read_tensors, write_tensors
from regard.task.training import train
from regard.task.translation import TranslationTask
from regard.task.translation_recipe import TranslationRecipe
from regard.train.balance import Balance
from regard.train.loop import Loop
from regard.train.loss import Loss
from regard.train.tally import Progress, Tally
from regard.train.task import Forward
from regard.train.world import ALONE, World
from tests.model.small_models import encoder_decoder, stack, with_experts
from tests.task.small import pairs, quick_runs, small_values, write_table
from tests.train.ranks import Translating, metrics, run_together, settings
from tests.train.test_loop import Sentences

EXPERTS = {"kind": "experts", "experts": 4, "active": 2, "hidden": 16}


# Loads become even


def busiest(steps: int = 150, **config: Any) -> float:
    """The share of the busiest expert after a layer has learnt to copy, whose router began by preferring one."""
    torch.manual_seed(1)
    shape = {"experts": 4, "active": 1, "normalise": False, "hidden": 6, "rate": 0.01}
    layer = ExpertsConfig(**shape | config).build(6).double().train()
    assert isinstance(layer, Experts)
    x = torch.randn(4, 16, 6, dtype=torch.float64)
    x[..., 0] = 1.0
    with torch.no_grad():
        layer.router.weight.mul_(0.5)
        layer.router.weight[:, 0] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    learning = torch.optim.Adam(layer.parameters(), lr=0.01)
    balance, load = Balance(layer), torch.zeros(4)
    for _ in range(steps):
        with gathered() as notes:
            y = layer(x, Context(torch.zeros(4, 16, dtype=torch.long)), LayerState())
        even = balance_of(notes)
        assert even is not None
        learning.zero_grad()
        (functional.mse_loss(y, x) + even).backward()
        learning.step()
        (load,) = balance.settle(ALONE)
    return float(load.max() / load.sum())


def test_left_alone_one_expert_does_nearly_all():
    assert busiest(balance=0.0) > 0.6


def test_a_loss_makes_loads_even():
    assert busiest(balance=0.1) < 0.35


def test_a_bias_makes_loads_even():
    assert busiest(balancing="bias") < 0.35


# What is added to the loss


def test_the_loss_on_loads_counts_for_each_word_and_leaves_the_plain_one_alone():
    loss = Loss(torch.tensor(6.0), torch.tensor(5.0), torch.tensor(4))
    more = loss.also(torch.tensor(0.5))
    assert (float(more.total), float(more.plain), float(more.count)) == (8.0, 5.0, 4.0)
    assert loss.also(None) is loss


class Busy(Translating):
    """A task whose model has experts on both sides, by a loss in the encoder and by a bias in the decoder."""

    def __init__(self, world: World = ALONE, dropout: float = 0.0) -> None:
        super().__init__(world=world)
        torch.manual_seed(3)
        small = stack(layers=1, heads=3, dropout=dropout)
        config = encoder_decoder(
            width=18,
            encoder=with_experts(small, hidden=8, balance=0.1),
            decoder=with_experts(small, hidden=8, experts=6, balancing="bias", rate=0.05),
            embedding={"dropout": dropout},
            tokens={"start": 12},
        )
        self.model = config.build().double()

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        with gathered() as notes:
            loss = super().loss(forward, batch)
        return loss.also(balance_of(notes))


def trained(folder: Path, world: World = ALONE, *, dropout: float = 0.0, resume: bool = False, **changes: Any) -> Any:
    folder.mkdir(exist_ok=True, parents=True)
    task = Busy(world, dropout)
    Loop(task, settings(**changes), folder, world=world).run(resume=resume)
    return {name: tensor.detach().clone() for name, tensor in task.model.state_dict().items()}


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


# In the loop


def test_a_line_has_the_shares_of_the_busiest_and_the_idlest_expert(tmp_path: Path) -> None:
    trained(tmp_path)
    lines = [line for line in metrics(tmp_path) if "loss" in line]
    assert len(lines) == 8
    assert all(0 <= line["experts/least"] <= 1 / 6 < 1 / 4 <= line["experts/most"] <= 0.5 for line in lines)


def test_shares_are_those_of_all_steps_since_the_last_line(tmp_path: Path) -> None:
    tally = Tally(0)
    tally.add(Loss(torch.tensor(1.0), torch.tensor(1.0), torch.tensor(1)))
    tally.add_loads([torch.tensor([6, 2]), torch.tensor([1, 1, 2])])
    tally.add_loads([torch.tensor([0, 2]), torch.tensor([2, 1, 1])])
    values = tally.values(Progress(), ALONE)
    assert (values["experts/most"], values["experts/least"]) == (0.6, 0.25)
    again = Tally.read(json.loads(json.dumps(tally.plain(ALONE))), torch.device("cpu"), ALONE)
    assert again.values(Progress(), ALONE)["experts/most"] == 0.6


def test_a_log_written_before_there_were_experts_can_be_read() -> None:
    tally = Tally.read({"words": 3, "sums": [1.0, 2.0, 3]}, torch.device("cpu"), ALONE)
    assert "experts/most" not in tally.values(Progress(), ALONE)


@pytest.mark.parametrize("changes", [{}, {"accumulate": 2}, {"recompute": True}], ids=str)
def test_a_resumed_run_ends_bit_for_bit_as_one_never_stopped(changes: dict[str, Any], tmp_path: Path) -> None:
    """The log has lines of five steps: the last checkpoint lies between two of them."""
    usual = {"dropout": 0.1, "log_every": 5, "save_every": 3} | changes
    wanted = trained(tmp_path / "straight", **usual)
    shutil.copytree(tmp_path / "straight", tmp_path / "run")
    shutil.rmtree(max((tmp_path / "run" / "checkpoints").iterdir()))
    assert same(trained(tmp_path / "run", resume=True, **usual), wanted)
    for line, other in zip(metrics(tmp_path / "run"), metrics(tmp_path / "straight"), strict=True):
        assert line == pytest.approx(other, rel=1e-6)  # sums of the log are kept in float32


def test_recomputing_changes_nothing(tmp_path: Path) -> None:
    plain, again = (trained(tmp_path / str(each), dropout=0.1, recompute=each) for each in (False, True))
    assert same(again, plain)
    assert metrics(tmp_path / "True") == metrics(tmp_path / "False")


def test_the_bias_moves_once_a_step_by_the_loads_of_all_its_batches(tmp_path: Path) -> None:
    """Cut into parts or not."""
    task = Busy()
    loop = Loop(task, settings(accumulate=2), tmp_path)
    loop.progress = type(loop.progress)(parts=2)
    (layer,) = [each for each in task.model.decoder.modules() if isinstance(each, Experts)]
    assert layer.correction is not None
    for step in range(1, 4):
        list(loop.steps(1))
        moves = (layer.correction / 0.05).round()
        torch.testing.assert_close(layer.correction, 0.05 * moves)
        assert 0 < moves.abs().max() <= step
        assert layer.load is not None
        assert layer.load.eq(0).all()


TOGETHER = {"steps": 6, "accumulate": 2, "validate_every": 9, "save_every": 9, "final": "last"}


def together(world: World, folder: Path) -> None:
    for kind in ("ddp", "fsdp"):
        found = trained(folder / kind, world, parallel={"kind": kind}, **TOGETHER)
        if world.first:
            write_tensors(folder / f"{kind}.safetensors", found)


def test_two_processes_take_the_steps_of_one_with_half_of_the_batches_each(tmp_path: Path) -> None:
    run_together(together, tmp_path)
    wanted = trained(tmp_path / "alone", **TOGETHER)
    moved = wanted["decoder.blocks.0.feed_forward.function.correction"]
    assert moved.abs().max() > 0.1
    for kind in ("ddp", "fsdp"):
        torch.testing.assert_close(read_tensors(tmp_path / f"{kind}.safetensors"), wanted, rtol=0, atol=1e-9)
        for line, other in zip(metrics(tmp_path / kind), metrics(tmp_path / "alone"), strict=True):
            assert line == pytest.approx(other, rel=1e-6)


def test_a_pass_for_other_processes_sake_is_not_counted() -> None:
    task = Busy()
    balance, batches = Balance(task.model), TokenBatches(Sentences(), 36, seed=4, shapes=6).epochs()
    for counted in (False, True, False):
        with balance.counting(counted):
            task.loss(task.model, next(batches))
        if counted:
            wanted = [each.load.clone() for each in task.model.modules() if isinstance(each, Experts)]
    found = balance.settle(ALONE)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert all(load.sum() > 0 for load in found)


# Through a recipe


def test_a_translator_with_experts_trains_from_a_recipe_and_writes_down_their_loads(tmp_path: Path) -> None:
    table = write_table(tmp_path / "train.tsv", pairs(60))
    values = small_values({"train": [{"path": str(table)}]})
    for side in ("encoder", "decoder"):
        values["model"][side]["feed_forward"] = {**EXPERTS, "balance": 0.05}
    with quick_runs(tmp_path / "cache"):
        train(TranslationRecipe.read(values), tmp_path / "run")
    lines = metrics(tmp_path / "run")
    steps = [line for line in lines if "loss" in line]
    assert all(0 < line["experts/least"] <= 0.25 <= line["experts/most"] <= 0.5 for line in steps)
    # What is trained on holds the loss of both layers: 0.05 each where loads are even.
    assert all(line["loss"] > 0.1 for line in steps)
    assert steps[-1]["plain_loss"] < steps[0]["plain_loss"]


def test_the_task_adds_the_loss_on_loads_to_what_it_trains_on() -> None:
    config = encoder_decoder(
        encoder=with_experts(stack(dropout=0.0), balance=0.5),
        decoder=with_experts(stack(dropout=0.0), balance=0.5),
        embedding={"dropout": 0.0},
        tokens={"start": 12},
    )
    torch.manual_seed(3)
    model = config.build().double().train()
    task: Any = TranslationTask.__new__(TranslationTask)
    task.model = model
    batch = next(iter(TokenBatches(Sentences(), 36, seed=4, shapes=6).epoch()))
    for consistency in (0.0, 1.0):
        values = small_values({"train": [{"path": "unused"}]})
        values["train"]["loss"] = {"smoothing": 0.0, "consistency": consistency}
        task.config = TranslationRecipe.read(values).train
        loss = task.loss(model, batch)
        with gathered() as notes:
            plain = task.plain_loss(model, batch)
        balance = balance_of(notes)
        assert balance is not None
        torch.testing.assert_close(loss.total, plain.plain + balance * plain.count, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(loss.plain, plain.plain, rtol=1e-9, atol=1e-9)
