"""A flipped bit in any file that decides results is noticed: the file is made again, passed over, or refused."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from regard import UserError
from regard.data.store.token_store import cached_store
from regard.run import load_model
from regard.run.checkpoint import CheckpointReader
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from regard.train.checkpoint import Checkpoint, CheckpointManager
from tests.cli.refusal import assert_refused
from tests.task.small import (
    RecordingCallback,
    command,
    crashed_run,
    pairs,
    quick_runs,
    save_random_model,
    small_recipe,
    write_table,
)


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def flip(path: Path, position: int = -1) -> None:
    """Flip a bit of a file, by default in its last byte."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


# Checkpoints


def test_flipped_bit_anywhere_in_a_state_file_is_noticed_or_harmless(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    manager.run = {"model": {"width": 16}, "final_weights": "ema"}
    tensors = {"weight": torch.ones(1)}
    path = manager.save(Checkpoint(3, tensors, tensors, tensors, {"state": {"step": 3, "seconds": 1.5}})) / "state.json"
    intact, expected = path.read_bytes(), manager.read_state(3)
    noticed = 0
    for position in range(len(intact)):
        damaged = bytearray(intact)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            assert manager.read_state(3) == expected
        except UserError:
            noticed += 1
    assert noticed > 0.9 * len(intact)  # the rest is white space


def test_state_file_without_a_checksum_is_read(tmp_path: Path) -> None:
    """The first checkpoints had none."""
    tensors = {"weight": torch.ones(1)}
    path = CheckpointManager(tmp_path).save(Checkpoint(3, tensors, tensors, tensors)) / "state.json"
    state = json.loads(path.read_text(encoding="utf-8"))
    del state["checksum"]
    path.write_text(json.dumps(state), encoding="utf-8")
    assert CheckpointManager(tmp_path).load(3).step == 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unfinished run with checkpoints of steps 4 and 8."""
    base = tmp_path_factory.mktemp("checksums")
    return crashed_run(small_recipe(write_table(base / "train.tsv", pairs(60))), base / "run", 9)


@pytest.mark.parametrize("file", ["state.json", "model.safetensors"])
def test_damaged_checkpoint_is_passed_over_with_a_message(file: str, run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    path = folder / "checkpoints" / "step-00000008" / file
    position = path.read_bytes().index(b'"step": 8') + 8 if file == "state.json" else -1
    flip(path, position)  # 8 becomes 9
    done = command("translate", folder, "red cat")
    assert (done.code, str(path) in done.err, "step 4" in done.err) == (0, True, True)
    assert_refused(command("translate", f"{folder}@8", "red cat"), str(path))
    callback = RecordingCallback()
    train(read_recipe(folder), folder, resume=True, callback=callback)
    assert "Resuming from step 4." in callback.text
    assert "The checkpoint of step 8 is skipped" in callback.text


def test_damaged_tokenizer_of_a_run_is_refused(run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    path = folder / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"a"', '"q"'), encoding="utf-8")
    for arguments in (("train", folder, "--resume"), ("translate", folder, "a")):
        assert_refused(command(*arguments), str(path), "SHA-256")
    assert CheckpointReader(folder / "checkpoints").steps() == [4, 8]


# Models


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json"])
def test_damaged_model_is_refused(file: str, tmp_path: Path) -> None:
    path = save_random_model(tmp_path / "model") / file
    if file == "tokenizer.json":
        path.write_text(path.read_text(encoding="utf-8").replace('"a"', '"q"'), encoding="utf-8")
    else:
        flip(path)
    with pytest.raises(UserError, match=f"{file} is missing or damaged"):
        load_model(tmp_path / "model")


def test_missing_tokenizer_is_noticed(tmp_path: Path) -> None:
    (save_random_model(tmp_path / "model") / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json is missing or damaged"):
        load_model(tmp_path / "model")


def test_model_without_digests_loads(tmp_path: Path) -> None:
    path = save_random_model(tmp_path / "model") / "run.json"
    metadata = json.loads(path.read_text(encoding="utf-8"))
    del metadata["sha256"]
    path.write_text(json.dumps(metadata), encoding="utf-8")
    flip(tmp_path / "model" / "model.safetensors")
    load_model(tmp_path / "model")


def test_finished_run_records_its_tokenizer_and_weights(tmp_path: Path) -> None:
    recipe = small_recipe(write_table(tmp_path / "train.tsv", pairs(60)), "train.steps=1")
    train(recipe, tmp_path / "run")
    metadata = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert sorted(metadata["sha256"]) == ["model.safetensors", "tokenizer.json"]


# The token cache


@pytest.mark.parametrize("file", ["text.tokens", "text.offsets", "header.json"])
def test_flipped_bit_in_the_token_cache_is_repaired_with_a_message(file: str, tmp_path: Path) -> None:
    items = [([1, 2, 3],), ([4, 5],)]
    path = cached_store(tmp_path, "key", lambda: items, ["text"], 10).path / file
    flip(path, len(path.read_bytes()) // 2)
    messages: list[str] = []
    store = cached_store(tmp_path, "key", lambda: items, ["text"], 10, messages.append)
    assert [ids.tolist() for (ids,) in store] == [[1, 2, 3], [4, 5]]
    assert len(messages) == 1
    assert str(path) in messages[0]
