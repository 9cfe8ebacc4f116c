"""Two processes take the same steps as one, and can resume each other's runs."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.run.tensors import read_tensors
from regard.train.checkpoint import CheckpointManager
from regard.train.distributed.process_group import ProcessGroup
from tests.train.distributed.ranks import (
    copy_without_last_checkpoint,
    metrics,
    run_in_processes,
    settings,
    trained,
    write_gradients,
)

pytestmark = pytest.mark.start_early(3)

KINDS = ["ddp", "fsdp"]
CLOSE: dict[str, float] = {"rtol": 0.0, "atol": 1e-8}

GRADIENTS = [("float32", 0.0), ("float32", 0.1), ("bfloat16", 0.0)]
"""Precision and max_grad_norm."""

SETUPS: dict[str, dict[str, Any]] = {
    "unsplit batches": {"steps": 12, "grad_accumulation": 2},
    "split batches": {"steps": 8, "grad_accumulation": 1},
    "three split batches": {"steps": 4, "grad_accumulation": 3},
    "ema": {"final_weights": "ema", "ema_decay": 0.9},
    "average": {"final_weights": "average", "average_last": 2, "keep_checkpoints": 2},
    "best": {"final_weights": "best", "monitor": "score"},
}


FLOAT32: dict[str, Any] = {
    "steps": 10,
    "validate_every": 10,
    "save_every": 10,
    "schedule": {"lr": 0.002, "warmup_steps": 5},
}


def parallel(kind: str, **changes: Any) -> Any:
    return settings(parallel={"kind": kind}, **changes)


def train_in_two_processes(process_group: ProcessGroup, folder: Path) -> None:
    """All runs of two processes, in one pair of processes: starting them takes longer than training."""
    for kind in KINDS:
        for precision, max_norm in GRADIENTS:
            config = parallel(kind, precision=precision, max_grad_norm=max_norm, grad_accumulation=3)
            write_gradients(folder / f"gradients {precision} {max_norm} {kind}.safetensors", config, process_group)
        for setup, changes in SETUPS.items():
            trained(folder / f"{setup} {kind}", parallel(kind, **changes), process_group)
        trained(folder / f"split {kind}", parallel(kind, grad_accumulation=2), process_group, splits=2)
        trained(folder / f"float32 {kind}", parallel(kind, **FLOAT32), process_group, dtype=torch.float32)
        bfloat16 = parallel(kind, precision="bfloat16", **FLOAT32)
        trained(folder / f"bfloat16 {kind}", bfloat16, process_group, dtype=torch.float32)
        trained(folder / f"dropout {kind}", parallel(kind), process_group, dropout=0.2)
        resumed = folder / f"dropout {kind} again"
        process_group.broadcast_from_rank0(
            lambda kind=kind, resumed=resumed: copy_without_last_checkpoint(folder / f"dropout {kind}", resumed)
        )
        trained(resumed, parallel(kind), process_group, dropout=0.2, resume=True)
        trained(folder / f"one then {kind}", parallel(kind, **SETUPS["ema"]), process_group, resume=True)
    for before, after in (("ddp", "fsdp"), ("fsdp", "ddp")):
        path = folder / f"{before} then {after}"
        process_group.broadcast_from_rank0(
            lambda before=before, path=path: copy_without_last_checkpoint(folder / f"ema {before}", path)
        )
        trained(path, parallel(after, **SETUPS["ema"]), process_group, resume=True)
    Path(folder / f"collectives-{process_group.rank}.json").write_text(
        json.dumps(
            {
                "all_gather_object": process_group.all_gather_object(
                    {"rank": process_group.rank, "text": "ä" * (1 + 5 * process_group.rank)}
                ),
                "gather_interleaved": process_group.gather_interleaved(
                    [number * 10 for number in process_group.shard(range(5))]
                ),
                "all_reduce": process_group.all_reduce([1.0, process_group.rank]),
                "any": [process_group.any(process_group.rank == 1), process_group.any(False)],
                "broadcast_from_rank0": process_group.broadcast_from_rank0(lambda: [process_group.rank, "made"]),
                "rank0_first": process_group.rank0_first(lambda: process_group.rank),
            }
        ),
        encoding="utf-8",
    )


@dataclass(frozen=True)
class Runs:
    """The folder of all runs."""

    folder: Path

    def weights(self, name: str) -> dict[str, Tensor]:
        return read_tensors(self.folder / f"{name}.safetensors")

    def metrics(self, name: str) -> Any:
        return metrics(self.folder / name)

    def seen(self, name: str, rank: int) -> list[list[int]]:
        items: list[list[int]] = json.loads((self.folder / f"{name}.seen-{rank}.json").read_text())
        return items


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        for precision, max_norm in GRADIENTS:
            config = settings(precision=precision, max_grad_norm=max_norm, grad_accumulation=3)
            write_gradients(folder / f"gradients {precision} {max_norm}.safetensors", config)
        for setup, changes in SETUPS.items():
            trained(folder / setup, settings(**changes))
        trained(folder / "split", settings(grad_accumulation=2), splits=2)
        trained(folder / "float32", settings(**FLOAT32), dtype=torch.float32)
        trained(folder / "bfloat16", settings(precision="bfloat16", **FLOAT32), dtype=torch.float32)
        for kind in KINDS:
            copy_without_last_checkpoint(folder / "ema", folder / f"one then {kind}")
        run_in_processes(train_in_two_processes, folder)
        for kind in KINDS:
            copy_without_last_checkpoint(folder / f"ema {kind}", folder / f"{kind} then one")
            trained(folder / f"{kind} then one", settings(**SETUPS["ema"]), resume=True)
    return Runs(folder)


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    torch.testing.assert_close(actual, expected, **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("setup", SETUPS)
def test_two_processes_equal_one(runs: Runs, setup: str, kind: str) -> None:
    assert_close(runs.weights(f"{setup} {kind}"), runs.weights(setup))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("precision", "max_norm"), GRADIENTS)
def test_gradients_of_two_processes_equal_one(runs: Runs, precision: str, max_norm: float, kind: str) -> None:
    """Adam is invariant to the scale of the gradients, so the weights alone would not show a wrong one."""
    actual, expected = (runs.weights(f"gradients {precision} {max_norm}{end}") for end in (f" {kind}", ""))
    tolerance = {"rtol": 0.1, "atol": 2e-3} if precision == "bfloat16" else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(actual, expected, **tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_equal_one_with_split_batches(runs: Runs, kind: str) -> None:
    assert_close(runs.weights(f"split {kind}"), runs.weights("split"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("setup", SETUPS)
def test_metrics_of_two_processes_equal_one(runs: Runs, setup: str, kind: str) -> None:
    for actual, expected in zip(runs.metrics(f"{setup} {kind}"), runs.metrics(setup), strict=True):
        assert actual == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_losses_agree(runs: Runs, kind: str) -> None:
    actual, expected = (runs.metrics(name) for name in (f"float32 {kind}", "float32"))
    assert [line["step"] for line in actual] == [line["step"] for line in expected]
    losses = [[line["loss"] for line in lines if "loss" in line] for lines in (actual, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=0, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_losses_agree(runs: Runs, kind: str) -> None:
    actual, expected, float32 = (
        [line["loss"] for line in runs.metrics(name) if "loss" in line]
        for name in (f"bfloat16 {kind}", "bfloat16", "float32")
    )
    assert actual == pytest.approx(expected, rel=0.03)
    assert expected != float32
    assert {tensor.dtype for tensor in runs.weights(f"bfloat16 {kind}").values()} == {torch.float32}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("setup", ["unsplit batches", "split batches"])
def test_every_item_is_seen_once_per_epoch_by_one_process(runs: Runs, setup: str, kind: str) -> None:
    shards = [runs.seen(f"{setup} {kind}", rank) for rank in (0, 1)]
    seen = [item for step in zip(*shards, strict=True) for batch in step for item in batch if item >= 0]
    epochs = [sorted(seen[first : first + 40]) for first in range(0, len(seen) - 39, 40)]
    assert len(epochs) >= 1
    assert epochs == [list(range(40))] * len(epochs)
    assert sorted(seen) == sorted(item for batch in runs.seen(setup, 0) for item in batch if item >= 0)


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_resume_the_run_of_one(runs: Runs, kind: str) -> None:
    assert_close(runs.weights(f"one then {kind}"), runs.weights("ema"))


@pytest.mark.parametrize("kind", KINDS)
def test_one_process_resumes_the_run_of_two(runs: Runs, kind: str) -> None:
    assert_close(runs.weights(f"{kind} then one"), runs.weights("ema"))


@pytest.mark.parametrize("name", ["ddp then fsdp", "fsdp then ddp"])
def test_ddp_and_fsdp_resume_each_others_runs(runs: Runs, name: str) -> None:
    assert_close(runs.weights(name), runs.weights("ema"))


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_run_with_dropout_equals_uninterrupted(runs: Runs, kind: str) -> None:
    actual, expected = runs.weights(f"dropout {kind} again"), runs.weights(f"dropout {kind}")
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


def test_ddp_checkpoint_equals_that_of_one_process(runs: Runs) -> None:
    files = [
        sorted(path.name for path in (runs.folder / name / "checkpoints/step-00000008").iterdir())
        for name in ("ema ddp", "ema")
    ]
    assert files[0] == files[1]


def test_sharded_checkpoint_has_no_duplicates_and_no_pickles(runs: Runs) -> None:
    path = runs.folder / "ema fsdp" / "checkpoints" / "step-00000008"
    names = ["ema", "model", "optimizer"]
    files = [f"{name}-0000{rank}.safetensors" for name in names for rank in (0, 1)]
    assert sorted(path.name for path in path.iterdir()) == sorted(
        [*files, "rng.safetensors", "shards.json", "state.json"]
    )
    shards = [read_tensors(path / f"model-0000{rank}.safetensors") for rank in (0, 1)]
    rows = [shard["embed_tokens.weight"].shape[0] for shard in shards]
    assert rows == [7, 6]
    index = json.loads((path / "shards.json").read_text())
    assert index["model-00001.safetensors"]["embed_tokens.weight"] == {"first_row": 7, "full_shape": [13, 18]}


@pytest.mark.parametrize("damage", ["changed", "missing"])
@pytest.mark.parametrize("file", ["model-00001.safetensors", "shards.json"])
def test_checkpoint_with_a_damaged_shard_is_skipped(runs: Runs, tmp_path: Path, file: str, damage: str) -> None:
    shutil.copytree(runs.folder / "ema fsdp" / "checkpoints", tmp_path / "checkpoints")
    path = tmp_path / "checkpoints" / "step-00000008" / file
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b" ")
    logged: list[str] = []
    actual = CheckpointManager(tmp_path / "checkpoints", log=logged.append).load_latest()
    assert actual is not None
    assert actual.step == 4
    assert [line.startswith(f"{path} is missing or damaged.") for line in logged] == [True]


def test_sharded_checkpoint_loads_as_full_tensors(runs: Runs) -> None:
    sharded, full = (CheckpointManager(runs.folder / name / "checkpoints").load(8) for name in ("ema fsdp", "ema"))
    for part in ("model", "optimizer", "ema"):
        assert_close(dict(getattr(sharded, part)), dict(getattr(full, part)))


def test_collectives(runs: Runs) -> None:
    results = [json.loads((runs.folder / f"collectives-{rank}.json").read_text()) for rank in (0, 1)]
    for rank, one in enumerate(results):
        assert one == {
            "all_gather_object": [{"rank": 0, "text": "ä"}, {"rank": 1, "text": "ääääää"}],
            "gather_interleaved": [0, 10, 20, 30, 40],
            "all_reduce": [2.0, 1.0],
            "any": [True, False],
            "broadcast_from_rank0": [0, "made"],
            "rank0_first": rank,
        }
