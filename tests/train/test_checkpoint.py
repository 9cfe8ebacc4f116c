"""A run resumes from its last intact checkpoint, whatever happened to the disk or the process."""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard import UserError
from regard.files import new_folder
from regard.train.checkpoint import FORMAT, Checkpoint, CheckpointManager, restore_rng_state, rng_state


def checkpoint(step: int, value: float = 0.0) -> Checkpoint:
    return Checkpoint(
        step,
        model={"weight": torch.full((2, 3), value), "half": torch.full((2,), value, dtype=torch.bfloat16)},
        optimizer={"weight/step": torch.tensor(float(step)), "weight/exp_avg": torch.randn(2, 3)},
        rng=rng_state(),
        metadata={"epoch": 3, "position": {"batch": 17}, "loss": 1.25},
    )


@pytest.fixture
def logged() -> list[str]:
    return []


@pytest.fixture
def checkpoints(tmp_path: Path, logged: list[str]) -> CheckpointManager:
    return CheckpointManager(tmp_path / "checkpoints", keep=2, log=logged.append)


def test_checkpoint_round_trips_bit_for_bit(checkpoints: CheckpointManager) -> None:
    written = checkpoint(5, 0.1)
    checkpoints.save(written)
    read = checkpoints.load_latest()
    assert read is not None
    assert (read.step, read.metadata) == (5, written.metadata)
    for part in ("model", "optimizer", "rng"):
        before, after = getattr(written, part), getattr(read, part)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_load_latest_is_none_without_checkpoints(checkpoints: CheckpointManager) -> None:
    assert checkpoints.load_latest() is None


def test_newest_checkpoints_are_kept(checkpoints: CheckpointManager) -> None:
    for step in (10, 20, 30, 100):
        checkpoints.save(checkpoint(step))
    assert checkpoints.steps() == [30, 100]


def test_best_checkpoint_is_kept_until_a_better_one(checkpoints: CheckpointManager) -> None:
    for step in (1, 2, 3, 4, 5, 6):
        checkpoints.save(checkpoint(step), best=step in (1, 2))
    assert checkpoints.steps() == [2, 5, 6]


def test_saving_a_step_again_replaces_it(checkpoints: CheckpointManager) -> None:
    checkpoints.save(checkpoint(5, 1.0))
    checkpoints.save(checkpoint(5, 2.0))
    assert checkpoints.load(5).model["weight"][0, 0] == 2


@pytest.mark.parametrize("name", ["model", "optimizer", "rng"])
@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_damaged_checkpoint_is_skipped_with_a_message(
    checkpoints: CheckpointManager, logged: list[str], name: str, damage: str
) -> None:
    checkpoints.save(checkpoint(1, 1.0))
    path = checkpoints.save(checkpoint(2, 2.0)) / f"{name}.safetensors"
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[:-3])
    elif damage == "flip":
        data[-1] ^= 1
        path.write_bytes(data)
    else:
        path.unlink()
    read = checkpoints.load_latest()
    assert read is not None
    assert read.step == 1
    assert logged == [f"{path} is missing or damaged. The checkpoint of step 2 is skipped; the one before it is used."]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1, "sha256": [], "metadata": {}}'])
def test_broken_state_file_is_skipped(checkpoints: CheckpointManager, logged: list[str], text: str) -> None:
    checkpoints.save(checkpoint(1))
    path = checkpoints.save(checkpoint(2))
    (path / "state.json").write_text(text, encoding="utf-8")
    read = checkpoints.load_latest()
    assert read is not None
    assert read.step == 1
    assert "state.json" in logged[0]


def test_newer_format_is_refused(checkpoints: CheckpointManager) -> None:
    path = checkpoints.save(checkpoint(1)) / "state.json"
    state = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(state | {"format": FORMAT + 1}), encoding="utf-8")
    with pytest.raises(UserError, match="newer regard"):
        checkpoints.load(1)


def test_newer_format_is_neither_skipped_nor_deleted(checkpoints: CheckpointManager) -> None:
    path = checkpoints.save(checkpoint(1)) / "state.json"
    state = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(state | {"format": FORMAT + 1}), encoding="utf-8")
    with pytest.raises(UserError, match="upgrade"):
        checkpoints.load_latest()
    for step in (2, 3, 4):
        checkpoints.save(checkpoint(step))
    assert checkpoints.steps() == [1, 3, 4]


def test_load_latest_is_none_if_all_are_damaged(checkpoints: CheckpointManager, logged: list[str]) -> None:
    for step in (1, 2):
        shutil.rmtree(checkpoints.save(checkpoint(step)))
        (checkpoints.folder / f"step-{step:08}").mkdir()
    assert checkpoints.load_latest() is None
    assert len(logged) == 2


def test_killed_writer_leaves_the_last_checkpoint_intact(checkpoints: CheckpointManager) -> None:
    checkpoints.save(checkpoint(1, 1.0))
    code = (
        "import os, signal, torch; from pathlib import Path; from regard.train import checkpoint\n"
        "checkpoint.file_sha256 = lambda path: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"folder = checkpoint.CheckpointManager(Path({str(checkpoints.folder)!r}))\n"
        "folder.save(checkpoint.Checkpoint(2, {'weight': torch.ones(3)}, {}, checkpoint.rng_state()))\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert len(list(checkpoints.folder.iterdir())) == 2
    again = CheckpointManager(checkpoints.folder)
    latest = again.load_latest()
    assert latest is not None
    assert latest.step == 1
    again.save(checkpoint(3))
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step-00000001", "step-00000003"]


def test_reading_does_not_touch_unfinished_checkpoints(checkpoints: CheckpointManager) -> None:
    checkpoints.save(checkpoint(1))
    with new_folder(checkpoints.folder / "step-00000002") as unfinished:
        assert CheckpointManager(checkpoints.folder).load_latest() is not None
        assert unfinished.is_dir()


def test_full_disk_leaves_the_last_checkpoint_intact(
    checkpoints: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.save(checkpoint(1))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("regard.run.tensors.save_file", full)
    with pytest.raises(UserError, match="No space left on device"):
        checkpoints.save(checkpoint(2))
    assert checkpoints.steps() == [1]
    assert checkpoints.load_latest() is not None


def test_average_of_the_last_checkpoints(checkpoints: CheckpointManager) -> None:
    for step, value in ((1, 1.0), (2, 2.0), (3, 4.0)):
        checkpoints.save(checkpoint(step, value))
    average = checkpoints.average_weights(2)
    assert torch.equal(average["weight"], torch.full((2, 3), 3.0))
    assert average["half"].dtype == torch.bfloat16


def test_average_leaves_out_damaged_checkpoints(checkpoints: CheckpointManager, logged: list[str]) -> None:
    checkpoints.save(checkpoint(1, 1.0))
    (checkpoints.save(checkpoint(2, 2.0)) / "state.json").unlink()
    assert torch.equal(checkpoints.average_weights(2)["weight"], torch.ones(2, 3))
    assert "left out of the average" in logged[0]


def test_average_without_checkpoints_is_refused(checkpoints: CheckpointManager) -> None:
    with pytest.raises(UserError, match="no intact checkpoint"):
        checkpoints.average_weights(3)


def test_temporary_checkpoint_is_kept_until_the_next(checkpoints: CheckpointManager) -> None:
    checkpoints.save(checkpoint(1))
    checkpoints.save(checkpoint(2), temporary=True)
    assert checkpoints.steps() == [1, 2]
    checkpoints.save(checkpoint(3))
    assert checkpoints.steps() == [1, 3]


def test_temporary_checkpoint_can_be_resumed_from(checkpoints: CheckpointManager) -> None:
    checkpoints.save(checkpoint(1))
    checkpoints.save(checkpoint(2), temporary=True)
    latest = checkpoints.load_latest()
    assert latest is not None
    assert latest.step == 2


def test_temporary_checkpoints_do_not_count_toward_keep(checkpoints: CheckpointManager) -> None:
    for step in range(1, 8):
        checkpoints.save(checkpoint(step), temporary=step not in (2, 4))
    assert checkpoints.steps() == [2, 4, 7]


def test_temporary_checkpoint_that_is_best_is_kept(checkpoints: CheckpointManager) -> None:
    for step in (1, 2, 3, 4, 5):
        checkpoints.save(checkpoint(step), best=step == 2, temporary=step in (2, 3))
    assert checkpoints.steps() == [2, 4, 5]


def test_temporary_checkpoint_saved_again_becomes_permanent(checkpoints: CheckpointManager) -> None:
    checkpoints.save(checkpoint(1), temporary=True)
    checkpoints.save(checkpoint(1))
    checkpoints.save(checkpoint(2))
    assert checkpoints.steps() == [1, 2]


def test_average_leaves_out_temporary_checkpoints(checkpoints: CheckpointManager) -> None:
    for step, value in ((1, 1.0), (2, 2.0), (3, 100.0)):
        checkpoints.save(checkpoint(step, value), temporary=step == 3)
    assert torch.equal(checkpoints.average_weights(2)["weight"], torch.full((2, 3), 1.5))


def test_ema_round_trips_bit_for_bit(checkpoints: CheckpointManager) -> None:
    ema = {"weight": torch.randn(2, 3), "bias": torch.randn(3)}
    checkpoints.save(replace(checkpoint(1), ema=ema))
    read = checkpoints.load(1).ema
    assert read.keys() == ema.keys()
    assert all(torch.equal(read[name], ema[name]) for name in ema)


def test_no_ema_file_without_an_ema(checkpoints: CheckpointManager) -> None:
    path = checkpoints.save(checkpoint(1))
    assert not (path / "ema.safetensors").exists()
    assert checkpoints.load(1).ema == {}


def test_damaged_ema_is_noticed(checkpoints: CheckpointManager) -> None:
    path = checkpoints.save(replace(checkpoint(1), ema={"weight": torch.ones(3)}))
    (path / "ema.safetensors").unlink()
    with pytest.raises(UserError, match=r"ema\.safetensors is missing"):
        checkpoints.load(1)


def test_rng_state_round_trips() -> None:
    torch.manual_seed(3)
    torch.rand(5)
    state = rng_state()
    expected = torch.rand(4)
    torch.manual_seed(99)
    restore_rng_state(state)
    assert torch.equal(torch.rand(4), expected)


def test_keep_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="keep is 0"):
        CheckpointManager(tmp_path, keep=0)
