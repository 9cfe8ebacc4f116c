"""Two processes take the steps of one, keep what they need to go on, and read what one has kept."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.run.tensors import read_tensors
from regard.train.checkpoint import Checkpoints
from regard.train.world import World
from tests.train.ranks import cut_short, metrics, run_together, settings, trained, write_gradients

KINDS = ["ddp", "fsdp"]
CLOSE: dict[str, float] = {"rtol": 0.0, "atol": 1e-8}

GRADIENTS = [("fp32", 0.0), ("fp32", 0.1), ("bf16", 0.0)]
"""In which precision, clipped to which length."""

WAYS: dict[str, dict[str, Any]] = {
    "whole batches": {"steps": 50, "accumulate": 2},
    "batches cut in two": {"steps": 12, "accumulate": 1},
    "three batches cut in two": {"steps": 4, "accumulate": 3},
    "moving average": {"final": "moving", "moving": 0.9},
    "mean": {"final": "mean", "average": 2, "keep": 2},
    "best": {"final": "best", "watch": "score"},
}


FLOAT32: dict[str, Any] = {
    "steps": 20,
    "validate_every": 20,
    "save_every": 20,
    "schedule": {"rate": 0.002, "warmup": 5},
}


def parallel(kind: str, **changes: Any) -> Any:
    return settings(parallel={"kind": kind}, **changes)


def two(world: World, folder: Path) -> None:
    """All that two processes are asked to do here, in one go: starting them takes longer than their work."""
    for kind in KINDS:
        for precision, clip in GRADIENTS:
            config = parallel(kind, precision=precision, clip=clip, accumulate=3)
            write_gradients(folder / f"gradients {precision} {clip} {kind}.safetensors", config, world)
        for way, changes in WAYS.items():
            trained(folder / f"{way} {kind}", parallel(kind, **changes), world)
        trained(folder / f"parts {kind}", parallel(kind, accumulate=2), world, parts=2)
        trained(folder / f"float32 {kind}", parallel(kind, **FLOAT32), world, dtype=torch.float32)
        bf16 = parallel(kind, precision="bf16", **FLOAT32)
        trained(folder / f"bf16 {kind}", bf16, world, dtype=torch.float32)
        trained(folder / f"dropout {kind}", parallel(kind), world, dropout=0.2)
        again = folder / f"dropout {kind} again"
        world.from_first(lambda kind=kind, again=again: cut_short(folder / f"dropout {kind}", again))
        trained(again, parallel(kind), world, dropout=0.2, resume=True)
        moving = parallel(kind, **WAYS["moving average"])
        trained(folder / f"one then {kind}", moving, world, resume=True)
    for before, after in (("ddp", "fsdp"), ("fsdp", "ddp")):
        place = folder / f"{before} then {after}"
        world.from_first(lambda before=before, place=place: cut_short(folder / f"moving average {before}", place))
        trained(place, parallel(after, **WAYS["moving average"]), world, resume=True)
    Path(folder / f"facts-{world.rank}.json").write_text(
        json.dumps(
            {
                "gather": world.gather({"rank": world.rank, "text": "ä" * (1 + 5 * world.rank)}),
                "whole": world.whole([number * 10 for number in world.share(range(5))]),
                "sum": world.sum([1.0, world.rank]),
                "any": [world.any(world.rank == 1), world.any(False)],
                "from first": world.from_first(lambda: [world.rank, "made"]),
                "in turn": world.in_turn(lambda: world.rank),
            }
        ),
        encoding="utf-8",
    )


@dataclass(frozen=True)
class Runs:
    folder: Path

    def weights(self, name: str) -> dict[str, Tensor]:
        return read_tensors(self.folder / f"{name}.safetensors")

    def metrics(self, name: str) -> Any:
        return metrics(self.folder / name)

    def seen(self, name: str, rank: int) -> list[list[int]]:
        found: list[list[int]] = json.loads((self.folder / f"{name}.seen-{rank}.json").read_text())
        return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("together")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        for precision, clip in GRADIENTS:
            config = settings(precision=precision, clip=clip, accumulate=3)
            write_gradients(folder / f"gradients {precision} {clip}.safetensors", config)
        for way, changes in WAYS.items():
            trained(folder / way, settings(**changes))
        trained(folder / "parts", settings(accumulate=2), parts=2)
        trained(folder / "float32", settings(**FLOAT32), dtype=torch.float32)
        trained(folder / "bf16", settings(precision="bf16", **FLOAT32), dtype=torch.float32)
        for kind in KINDS:
            cut_short(folder / "moving average", folder / f"one then {kind}")
        run_together(two, folder)
        for kind in KINDS:
            cut_short(folder / f"moving average {kind}", folder / f"{kind} then one")
            trained(folder / f"{kind} then one", settings(**WAYS["moving average"]), resume=True)
    return Runs(folder)


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    torch.testing.assert_close(found, wanted, **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_end_with_the_weights_of_one(runs: Runs, way: str, kind: str) -> None:
    assert_close(runs.weights(f"{way} {kind}"), runs.weights(way))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("precision", "clip"), GRADIENTS)
def test_two_processes_have_the_gradients_of_one(runs: Runs, precision: str, clip: float, kind: str) -> None:
    """Adam does not mind if all gradients are twice as large, so weights do not tell."""
    found, wanted = (runs.weights(f"gradients {precision} {clip}{end}") for end in (f" {kind}", ""))
    near = {"rtol": 0.1, "atol": 2e-3} if precision == "bf16" else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(found, wanted, **near)


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_end_with_the_weights_of_one_where_batches_are_computed_in_parts(runs: Runs, kind: str) -> None:
    assert_close(runs.weights(f"parts {kind}"), runs.weights("parts"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_write_down_what_one_does(runs: Runs, way: str, kind: str) -> None:
    for found, wanted in zip(runs.metrics(f"{way} {kind}"), runs.metrics(way), strict=True):
        assert found == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_in_float32_the_losses_agree(runs: Runs, kind: str) -> None:
    found, wanted = (runs.metrics(name) for name in (f"float32 {kind}", "float32"))
    assert [line["step"] for line in found] == [line["step"] for line in wanted]
    losses = [[line["loss"] for line in lines if "loss" in line] for lines in (found, wanted)]
    assert losses[0] == pytest.approx(losses[1], rel=0, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_in_bf16_two_processes_learn_as_one_does(runs: Runs, kind: str) -> None:
    found, wanted = (
        [line["loss"] for line in runs.metrics(name) if "loss" in line] for name in (f"bf16 {kind}", "bf16")
    )
    assert found == pytest.approx(wanted, rel=0.03)
    assert wanted != runs.metrics("float32")
    assert {tensor.dtype for tensor in runs.weights(f"bf16 {kind}").values()} == {torch.float32}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["whole batches", "batches cut in two"])
def test_every_item_is_seen_once_an_epoch_by_one_of_the_processes(runs: Runs, way: str, kind: str) -> None:
    shares = [runs.seen(f"{way} {kind}", rank) for rank in (0, 1)]
    dealt = [item for step in zip(*shares, strict=True) for batch in step for item in batch if item >= 0]
    epochs = [sorted(dealt[first : first + 40]) for first in range(0, len(dealt) - 39, 40)]
    assert len(epochs) >= 1
    assert epochs == [list(range(40))] * len(epochs)
    assert sorted(dealt) == sorted(item for batch in runs.seen(way, 0) for item in batch if item >= 0)


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_go_on_with_the_run_of_one(runs: Runs, kind: str) -> None:
    assert_close(runs.weights(f"one then {kind}"), runs.weights("moving average"))


@pytest.mark.parametrize("kind", KINDS)
def test_one_process_goes_on_with_the_run_of_two(runs: Runs, kind: str) -> None:
    assert_close(runs.weights(f"{kind} then one"), runs.weights("moving average"))


@pytest.mark.parametrize("name", ["ddp then fsdp", "fsdp then ddp"])
def test_another_kind_goes_on_with_a_run(runs: Runs, name: str) -> None:
    assert_close(runs.weights(name), runs.weights("moving average"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_of_two_with_dropout_is_that_of_a_run_never_stopped(runs: Runs, kind: str) -> None:
    found, wanted = runs.weights(f"dropout {kind} again"), runs.weights(f"dropout {kind}")
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_a_checkpoint_of_every_process_with_all_weights_is_that_of_one(runs: Runs) -> None:
    files = [
        sorted(path.name for path in (runs.folder / name / "checkpoints/step-00000008").iterdir())
        for name in ("moving average ddp", "moving average")
    ]
    assert files[0] == files[1]


def test_a_checkpoint_in_shares_holds_no_tensor_twice_and_no_pickle(runs: Runs) -> None:
    place = runs.folder / "moving average fsdp" / "checkpoints" / "step-00000008"
    names = ["average", "model", "optimiser"]
    files = [f"{name}-0000{rank}.safetensors" for name in names for rank in (0, 1)]
    assert sorted(path.name for path in place.iterdir()) == sorted(
        [*files, "random.safetensors", "slices.json", "state.json"]
    )
    shares = [read_tensors(place / f"model-0000{rank}.safetensors") for rank in (0, 1)]
    rows = [share["vocabulary.weight"].shape[0] for share in shares]
    assert rows == [7, 6]
    slices = json.loads((place / "slices.json").read_text())
    assert slices["model-00001.safetensors"]["vocabulary.weight"] == {"first": 7, "whole": [13, 18]}


@pytest.mark.parametrize("damage", ["changed", "missing"])
@pytest.mark.parametrize("file", ["model-00001.safetensors", "slices.json"])
def test_a_checkpoint_with_a_damaged_share_is_passed_over(runs: Runs, tmp_path: Path, file: str, damage: str) -> None:
    shutil.copytree(runs.folder / "moving average fsdp" / "checkpoints", tmp_path / "checkpoints")
    path = tmp_path / "checkpoints" / "step-00000008" / file
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b" ")
    said: list[str] = []
    found = Checkpoints(tmp_path / "checkpoints", say=said.append).latest()
    assert found is not None
    assert found.step == 4
    assert [line.startswith(f"{path} is missing or not as it was written.") for line in said] == [True]


def test_a_checkpoint_in_shares_reads_as_whole_tensors(runs: Runs) -> None:
    shared, whole = (
        Checkpoints(runs.folder / name / "checkpoints").read(8) for name in ("moving average fsdp", "moving average")
    )
    for part in ("model", "optimiser", "average"):
        assert_close(dict(getattr(shared, part)), dict(getattr(whole, part)))


def test_each_process_knows_what_all_know(runs: Runs) -> None:
    facts = [json.loads((runs.folder / f"facts-{rank}.json").read_text()) for rank in (0, 1)]
    for rank, one in enumerate(facts):
        assert one == {
            "gather": [{"rank": 0, "text": "ä"}, {"rank": 1, "text": "ääääää"}],
            "whole": [0, 10, 20, 30, 40],
            "sum": [2.0, 1.0],
            "any": [True, False],
            "from first": [0, "made"],
            "in turn": rank,
        }
