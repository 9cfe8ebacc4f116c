"""Mixtures of experts in training: balanced load, its metrics, and resuming bit for bit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from regard.attention import Context, LayerState
from regard.data.batching.token_batches import Batch, TokenBatches
from regard.model.mixture_of_experts import MixtureOfExperts, MixtureOfExpertsConfig, record_routing, total_aux_loss
from regard.run.tensors import read_tensors, write_tensors
from regard.task.run import train
from regard.task.translation.recipe import TranslationRecipe
from regard.task.translation.task import TranslationTask
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from regard.train.loss import Loss
from regard.train.metrics import RunningStats
from regard.train.step import ExpertBalance
from regard.train.task import Forward
from regard.train.trainer import Trainer
from tests.model.small_models import encoder_decoder, stack, with_experts
from tests.task.small import pairs, quick_runs, small_values, write_table
from tests.train.distributed.ranks import Translating, metrics, run_in_processes, settings
from tests.train.toy import Sentences

pytestmark = pytest.mark.start_early(11)

EXPERTS = {"kind": "moe", "experts": 4, "top_k": 2, "hidden": 16}


# Balancing


def max_load(steps: int = 150, **config: Any) -> float:
    """The largest fraction of tokens an expert gets, after a layer that preferred one expert learned to copy."""
    torch.manual_seed(1)
    shape = {"experts": 4, "top_k": 1, "normalize": False, "hidden": 6, "bias_update_rate": 0.01}
    layer = MixtureOfExpertsConfig(**shape | config).build(6).double().train()
    assert isinstance(layer, MixtureOfExperts)
    x = torch.randn(4, 16, 6, dtype=torch.float64)
    x[..., 0] = 1.0
    with torch.no_grad():
        layer.router.weight.mul_(0.5)
        layer.router.weight[:, 0] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    learning = torch.optim.Adam(layer.parameters(), lr=0.01)
    balance, load = ExpertBalance(layer), torch.zeros(4)
    for _ in range(steps):
        with record_routing() as records:
            y = layer(x, Context(torch.zeros(4, 16, dtype=torch.long)), LayerState())
        even = total_aux_loss(records)
        assert even is not None
        learning.zero_grad()
        (functional.mse_loss(y, x) + even).backward()
        learning.step()
        (load,) = balance.update(SINGLE_PROCESS)
    return float(load.max() / load.sum())


def test_without_balancing_one_expert_gets_most_tokens():
    assert max_load(aux_loss=0.0) > 0.6


def test_auxiliary_loss_balances_the_load():
    assert max_load(aux_loss=0.1) < 0.35


def test_expert_bias_balances_the_load():
    assert max_load(balancing="bias") < 0.35


# The auxiliary loss


def test_auxiliary_loss_counts_per_target_and_leaves_nll_alone():
    loss = Loss(torch.tensor(6.0), torch.tensor(5.0), torch.tensor(4))
    more = loss.with_auxiliary(torch.tensor(0.5))
    assert (float(more.total), float(more.nll), float(more.count)) == (8.0, 5.0, 4.0)
    assert loss.with_auxiliary(None) is loss


class MixtureTask(Translating):
    """A task whose model has experts on both sides, balanced by a loss in the encoder and by a bias in the decoder."""

    def __init__(self, process_group: ProcessGroup = SINGLE_PROCESS, dropout: float = 0.0) -> None:
        super().__init__(process_group=process_group)
        torch.manual_seed(3)
        small = stack(layers=1, heads=3, dropout=dropout)
        config = encoder_decoder(
            width=18,
            encoder=with_experts(small, hidden=8, aux_loss=0.1),
            decoder=with_experts(small, hidden=8, experts=6, balancing="bias", bias_update_rate=0.05),
            embedding={"dropout": dropout},
            special_tokens={"bos": 12},
        )
        self.model = config.build().double()

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        with record_routing() as records:
            loss = super().loss(forward, batch)
        return loss.with_auxiliary(total_aux_loss(records))


def trained(
    folder: Path,
    process_group: ProcessGroup = SINGLE_PROCESS,
    *,
    dropout: float = 0.0,
    resume: bool = False,
    **changes: Any,
) -> Any:
    folder.mkdir(exist_ok=True, parents=True)
    task = MixtureTask(process_group, dropout)
    Trainer(task, settings(**changes), folder, process_group=process_group).run(resume=resume)
    return {name: tensor.detach().clone() for name, tensor in task.model.state_dict().items()}


def equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return actual.keys() == expected.keys() and all(torch.equal(actual[name], expected[name]) for name in expected)


# In the trainer


def test_log_has_max_and_min_load(tmp_path: Path) -> None:
    trained(tmp_path)
    lines = [line for line in metrics(tmp_path) if "loss" in line]
    assert len(lines) == 8
    assert all(0 <= line["moe/min_load"] <= 1 / 6 < 1 / 4 <= line["moe/max_load"] <= 0.5 for line in lines)


def test_logged_load_is_over_all_steps_since_the_last_line(tmp_path: Path) -> None:
    stats = RunningStats(0)
    stats.add(Loss(torch.tensor(1.0), torch.tensor(1.0), torch.tensor(1)))
    stats.add_expert_load([torch.tensor([6, 2]), torch.tensor([1, 1, 2])])
    stats.add_expert_load([torch.tensor([0, 2]), torch.tensor([2, 1, 1])])
    values = stats.metrics(0, SINGLE_PROCESS)
    assert (values["moe/max_load"], values["moe/min_load"]) == (0.6, 0.25)
    again = RunningStats.from_state_dict(
        json.loads(json.dumps(stats.state_dict(SINGLE_PROCESS))), torch.device("cpu"), SINGLE_PROCESS
    )
    assert again.metrics(0, SINGLE_PROCESS)["moe/max_load"] == 0.6


@pytest.mark.parametrize("changes", [{}, {"grad_accumulation": 2}, {"activation_checkpointing": True}], ids=str)
def test_resumed_run_equals_uninterrupted(changes: dict[str, Any], tmp_path: Path) -> None:
    """The last checkpoint is between two log lines."""
    common = {"dropout": 0.1, "log_every": 5, "save_every": 3} | changes
    expected = trained(tmp_path / "uninterrupted", **common)
    shutil.copytree(tmp_path / "uninterrupted", tmp_path / "run")
    shutil.rmtree(max((tmp_path / "run" / "checkpoints").iterdir()))
    assert equal(trained(tmp_path / "run", resume=True, **common), expected)
    for line, other in zip(metrics(tmp_path / "run"), metrics(tmp_path / "uninterrupted"), strict=True):
        assert line == pytest.approx(other, rel=1e-6)  # sums for the log are float32


def test_activation_checkpointing_changes_nothing(tmp_path: Path) -> None:
    plain, checkpointed = (
        trained(tmp_path / str(value), dropout=0.1, activation_checkpointing=value) for value in (False, True)
    )
    assert equal(checkpointed, plain)
    assert metrics(tmp_path / "True") == metrics(tmp_path / "False")


def test_expert_bias_is_updated_once_per_step_by_the_load_of_all_batches(tmp_path: Path) -> None:
    """Batches that are split count as one."""
    task = MixtureTask()
    trainer = Trainer(task, settings(grad_accumulation=2), tmp_path)
    trainer.splitter.splits = 2
    (layer,) = [each for each in task.model.decoder.modules() if isinstance(each, MixtureOfExperts)]
    assert layer.expert_bias is not None
    for step in range(1, 4):
        list(trainer.steps(1))
        updates = (layer.expert_bias / 0.05).round()
        torch.testing.assert_close(layer.expert_bias, 0.05 * updates)
        assert 0 < updates.abs().max() <= step
        assert layer.load is not None
        assert layer.load.eq(0).all()


SHARED_SETTINGS = {"steps": 6, "grad_accumulation": 2, "validate_every": 9, "save_every": 9, "final_weights": "last"}


def train_in_two_processes(process_group: ProcessGroup, folder: Path) -> None:
    for kind in ("ddp", "fsdp"):
        weights = trained(folder / kind, process_group, parallel={"kind": kind}, **SHARED_SETTINGS)
        if process_group.is_rank0:
            write_tensors(folder / f"{kind}.safetensors", weights)


def test_two_processes_equal_one(tmp_path: Path) -> None:
    run_in_processes(train_in_two_processes, tmp_path)
    expected = trained(tmp_path / "single", **SHARED_SETTINGS)
    expert_bias = expected["decoder.layers.0.feed_forward.expert_bias"]
    assert expert_bias.abs().max() > 0.1
    for kind in ("ddp", "fsdp"):
        torch.testing.assert_close(read_tensors(tmp_path / f"{kind}.safetensors"), expected, rtol=0, atol=1e-9)
        for line, other in zip(metrics(tmp_path / kind), metrics(tmp_path / "single"), strict=True):
            assert line == pytest.approx(other, rel=1e-6)


def test_uncounted_pass_does_not_change_the_load() -> None:
    task = MixtureTask()
    balance, batches = ExpertBalance(task.model), TokenBatches(Sentences(), 36, seed=4, length_buckets=6).epochs()
    for counted in (False, True, False):
        with balance.counting(counted):
            task.loss(task.model, next(batches))
        if counted:
            expected = [each.load.clone() for each in task.model.modules() if isinstance(each, MixtureOfExperts)]
    actual = balance.update(SINGLE_PROCESS)
    assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))
    assert all(load.sum() > 0 for load in actual)


# Through a recipe


def test_recipe_with_experts_trains_and_logs_the_load(tmp_path: Path) -> None:
    table = write_table(tmp_path / "train.tsv", pairs(60))
    values = small_values({"train": [{"path": str(table)}]})
    for side in ("encoder", "decoder"):
        values["model"][side]["feed_forward"] = {**EXPERTS, "aux_loss": 0.05}
    with quick_runs(tmp_path / "cache"):
        train(TranslationRecipe.read(values), tmp_path / "run")
    lines = metrics(tmp_path / "run")
    steps = [line for line in lines if "loss" in line]
    assert all(0 < line["moe/min_load"] <= 0.25 <= line["moe/max_load"] <= 0.5 for line in steps)
    # The training loss includes the auxiliary loss of both layers: 0.05 each if the load is balanced.
    assert all(line["loss"] > 0.1 for line in steps)
    assert steps[-1]["nll"] < steps[0]["nll"]


def test_task_adds_the_auxiliary_loss() -> None:
    config = encoder_decoder(
        encoder=with_experts(stack(dropout=0.0), aux_loss=0.5),
        decoder=with_experts(stack(dropout=0.0), aux_loss=0.5),
        embedding={"dropout": 0.0},
        special_tokens={"bos": 12},
    )
    torch.manual_seed(3)
    model = config.build().double().train()
    task: Any = TranslationTask.__new__(TranslationTask)
    task.model = model
    batch = next(iter(TokenBatches(Sentences(), 36, seed=4, length_buckets=6).epoch()))
    for r_drop in (0.0, 1.0):
        values = small_values({"train": [{"path": "unused"}]})
        values["train"]["loss"] = {"label_smoothing": 0.0, "r_drop": r_drop}
        task.config = TranslationRecipe.read(values).train
        loss = task.loss(model, batch)
        with record_routing() as records:
            plain = task.nll(model, batch)
        balance = total_aux_loss(records)
        assert balance is not None
        torch.testing.assert_close(loss.total, plain.nll + balance * plain.count, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(loss.nll, plain.nll, rtol=1e-9, atol=1e-9)
