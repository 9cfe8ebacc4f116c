"""A run goes on from its last whole checkpoint, whatever happened to the disk or the process."""

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
from regard.train.checkpoint import FORMAT, Checkpoint, Checkpoints, random_state, restore_random_state


def checkpoint(step: int, value: float = 0.0) -> Checkpoint:
    return Checkpoint(
        step,
        model={"weight": torch.full((2, 3), value), "half": torch.full((2,), value, dtype=torch.bfloat16)},
        optimiser={"weight/step": torch.tensor(float(step)), "weight/exp_avg": torch.randn(2, 3)},
        random=random_state(),
        facts={"epoch": 3, "position": {"batch": 17}, "loss": 1.25},
    )


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def checkpoints(tmp_path: Path, said: list[str]) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", keep=2, say=said.append)


def test_what_is_written_is_read_back_bit_for_bit(checkpoints: Checkpoints) -> None:
    written = checkpoint(5, 0.1)
    checkpoints.write(written)
    read = checkpoints.latest()
    assert read is not None
    assert (read.step, read.facts) == (5, written.facts)
    for part in ("model", "optimiser", "random"):
        before, after = getattr(written, part), getattr(read, part)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_without_checkpoints_there_is_none(checkpoints: Checkpoints) -> None:
    assert checkpoints.latest() is None


def test_the_newest_are_kept(checkpoints: Checkpoints) -> None:
    for step in (10, 20, 30, 100):
        checkpoints.write(checkpoint(step))
    assert checkpoints.steps() == [30, 100]


def test_the_best_outlives_its_turn_until_there_is_a_better(checkpoints: Checkpoints) -> None:
    for step in (1, 2, 3, 4, 5, 6):
        checkpoints.write(checkpoint(step), best=step in (1, 2))
    assert checkpoints.steps() == [2, 5, 6]


def test_a_step_written_again_replaces_the_first(checkpoints: Checkpoints) -> None:
    checkpoints.write(checkpoint(5, 1.0))
    checkpoints.write(checkpoint(5, 2.0))
    assert checkpoints.read(5).model["weight"][0, 0] == 2


@pytest.mark.parametrize("name", ["model", "optimiser", "random"])
@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_a_damaged_file_is_noticed_and_the_one_before_is_used(
    checkpoints: Checkpoints, said: list[str], name: str, damage: str
) -> None:
    checkpoints.write(checkpoint(1, 1.0))
    path = checkpoints.write(checkpoint(2, 2.0)) / f"{name}.safetensors"
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[:-3])
    elif damage == "flip":
        data[-1] ^= 1
        path.write_bytes(data)
    else:
        path.unlink()
    read = checkpoints.latest()
    assert read is not None
    assert read.step == 1
    assert said == [
        f"{path} is missing or not as it was written. The checkpoint of step 2 is passed over; "
        "the one before it is used."
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1, "sha256": [], "facts": {}}'])
def test_a_broken_state_file_is_noticed(checkpoints: Checkpoints, said: list[str], text: str) -> None:
    checkpoints.write(checkpoint(1))
    place = checkpoints.write(checkpoint(2))
    (place / "state.json").write_text(text, encoding="utf-8")
    read = checkpoints.latest()
    assert read is not None
    assert read.step == 1
    assert "state.json" in said[0]


def test_a_checkpoint_of_a_newer_format_is_named(checkpoints: Checkpoints) -> None:
    path = checkpoints.write(checkpoint(1)) / "state.json"
    state = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(state | {"format": FORMAT + 1}), encoding="utf-8")
    with pytest.raises(UserError, match="newer regard"):
        checkpoints.read(1)


def test_if_all_are_damaged_there_is_none_and_each_is_named(checkpoints: Checkpoints, said: list[str]) -> None:
    for step in (1, 2):
        shutil.rmtree(checkpoints.write(checkpoint(step)))
        (checkpoints.folder / f"step-{step:08}").mkdir()
    assert checkpoints.latest() is None
    assert len(said) == 2


def test_a_writer_killed_half_way_leaves_the_last_checkpoint_and_no_rubbish(checkpoints: Checkpoints) -> None:
    checkpoints.write(checkpoint(1, 1.0))
    code = (
        "import os, signal, torch; from pathlib import Path; from regard.train import checkpoint\n"
        "checkpoint.file_sha256 = lambda path: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"folder = checkpoint.Checkpoints(Path({str(checkpoints.folder)!r}))\n"
        "folder.write(checkpoint.Checkpoint(2, {'weight': torch.ones(3)}, {}, checkpoint.random_state()))\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert len(list(checkpoints.folder.iterdir())) == 2
    again = Checkpoints(checkpoints.folder)
    latest = again.latest()
    assert latest is not None
    assert latest.step == 1
    again.write(checkpoint(3))
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step-00000001", "step-00000003"]


def test_reading_leaves_alone_what_another_process_is_writing(checkpoints: Checkpoints) -> None:
    checkpoints.write(checkpoint(1))
    with new_folder(checkpoints.folder / "step-00000002") as beside:
        assert Checkpoints(checkpoints.folder).latest() is not None
        assert beside.is_dir()


def test_a_full_disk_leaves_the_last_checkpoint(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.write(checkpoint(1))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("regard.run.tensors.save_file", full)
    with pytest.raises(UserError, match="No space left on device"):
        checkpoints.write(checkpoint(2))
    assert checkpoints.steps() == [1]
    assert checkpoints.latest() is not None


def test_the_mean_of_the_last_checkpoints(checkpoints: Checkpoints) -> None:
    for step, value in ((1, 1.0), (2, 2.0), (3, 4.0)):
        checkpoints.write(checkpoint(step, value))
    mean = checkpoints.mean(2)
    assert torch.equal(mean["weight"], torch.full((2, 3), 3.0))
    assert mean["half"].dtype == torch.bfloat16


def test_the_mean_leaves_a_damaged_checkpoint_out(checkpoints: Checkpoints, said: list[str]) -> None:
    checkpoints.write(checkpoint(1, 1.0))
    (checkpoints.write(checkpoint(2, 2.0)) / "state.json").unlink()
    assert torch.equal(checkpoints.mean(2)["weight"], torch.ones(2, 3))
    assert "left out of the mean" in said[0]


def test_the_mean_of_nothing_gets_a_sentence(checkpoints: Checkpoints) -> None:
    with pytest.raises(UserError, match="no whole checkpoint"):
        checkpoints.mean(3)


def test_a_passing_checkpoint_is_kept_until_the_next(checkpoints: Checkpoints) -> None:
    checkpoints.write(checkpoint(1))
    checkpoints.write(checkpoint(2), passing=True)
    assert checkpoints.steps() == [1, 2]
    checkpoints.write(checkpoint(3))
    assert checkpoints.steps() == [1, 3]


def test_a_passing_checkpoint_is_gone_on_from(checkpoints: Checkpoints) -> None:
    checkpoints.write(checkpoint(1))
    checkpoints.write(checkpoint(2), passing=True)
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.step == 2


def test_passing_checkpoints_take_no_room_from_those_to_keep(checkpoints: Checkpoints) -> None:
    for step in range(1, 8):
        checkpoints.write(checkpoint(step), passing=step not in (2, 4))
    assert checkpoints.steps() == [2, 4, 7]


def test_a_passing_checkpoint_that_is_best_outlives_its_turn(checkpoints: Checkpoints) -> None:
    for step in (1, 2, 3, 4, 5):
        checkpoints.write(checkpoint(step), best=step == 2, passing=step in (2, 3))
    assert checkpoints.steps() == [2, 4, 5]


def test_a_step_that_was_passing_and_is_written_again_stays(checkpoints: Checkpoints) -> None:
    checkpoints.write(checkpoint(1), passing=True)
    checkpoints.write(checkpoint(1))
    checkpoints.write(checkpoint(2))
    assert checkpoints.steps() == [1, 2]


def test_a_passing_checkpoint_is_not_in_the_mean(checkpoints: Checkpoints) -> None:
    for step, value in ((1, 1.0), (2, 2.0), (3, 100.0)):
        checkpoints.write(checkpoint(step, value), passing=step == 3)
    assert torch.equal(checkpoints.mean(2)["weight"], torch.full((2, 3), 1.5))


def test_a_moving_average_is_read_back_bit_for_bit(checkpoints: Checkpoints) -> None:
    average = {"weight": torch.randn(2, 3), "bias": torch.randn(3)}
    checkpoints.write(replace(checkpoint(1), average=average))
    read = checkpoints.read(1).average
    assert read.keys() == average.keys()
    assert all(torch.equal(read[name], average[name]) for name in average)


def test_without_a_moving_average_there_is_no_file_of_it(checkpoints: Checkpoints) -> None:
    place = checkpoints.write(checkpoint(1))
    assert not (place / "average.safetensors").exists()
    assert checkpoints.read(1).average == {}


def test_a_damaged_moving_average_is_noticed(checkpoints: Checkpoints) -> None:
    place = checkpoints.write(replace(checkpoint(1), average={"weight": torch.ones(3)}))
    (place / "average.safetensors").unlink()
    with pytest.raises(UserError, match=r"average\.safetensors is missing"):
        checkpoints.read(1)


def test_random_numbers_go_on_where_they_were() -> None:
    torch.manual_seed(3)
    torch.rand(5)
    state = random_state()
    wanted = torch.rand(4)
    torch.manual_seed(99)
    restore_random_state(state)
    assert torch.equal(torch.rand(4), wanted)


def test_keeping_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="keep is 0"):
        Checkpoints(tmp_path, keep=0)
