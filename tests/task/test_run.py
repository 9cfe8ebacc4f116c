"""Training runs are reproducible, can be resumed after kills and full disks, and never overwrite a folder."""

import errno
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import regard
from regard import UserError
from regard.cost import HARDWARE, USABLE_MEMORY, Cost, Hardware, detect_hardware
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.run.tensors import read_tensors
from regard.score import score_translations
from regard.task.base import Recipe
from regard.task.recipe_io import read_recipe
from regard.task.run import log_cost, train, with_parallel
from regard.task.translation.pipeline import Translator
from regard.task.translation.prepare import prepare_pairs, read_tokenizers
from regard.task.translation.task import TranslationTask
from regard.train.checkpoint import Checkpoint, CheckpointManager
from regard.train.distributed.process_group import ProcessGroup
from regard.train.runtime import StoppedError
from tests.task.small import (
    RecordingCallback,
    child,
    command,
    pairs,
    quick_runs,
    sentences,
    small_recipe,
    write_aligned,
    write_recipe_file,
    write_table,
)

pytestmark = pytest.mark.start_early(2)


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


@dataclass(frozen=True)
class Reference:
    """A finished run that was not interrupted."""

    recipe: Path
    folder: Path

    @property
    def weights(self) -> bytes:
        return weights(self.folder)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def steps(folder: Path) -> list[int]:
    return CheckpointManager(folder / "checkpoints").steps()


OVERRIDES = (
    "model.embedding={dropout = 0.1}",
    "train.keep_checkpoints=3",
    "train.average_last=3",
    "train.final_weights=average",
)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Twelve steps, checkpoints at 4, 8 and 12; dropout makes the weights depend on the random state."""
    base = tmp_path_factory.mktemp("reference")
    write_aligned(base, pairs(60))
    data = {"train": [{"source": "train.en", "target": "train.de"}]}
    recipe = write_recipe_file(base / "small.toml", data, *OVERRIDES)
    train(read_recipe(recipe), base / "run")
    return Reference(recipe, base / "run")


class SigtermAtStep(RecordingCallback):
    """Sends SIGTERM to the run at a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def on_train_metrics(self, step: int, values: Mapping[str, float]) -> None:
        super().on_train_metrics(step, values)
        if step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def interrupted_run(recipe: Recipe, folder: Path, step: int) -> Path:
    """The folder of a run that SIGTERM stopped at a step."""
    with pytest.raises(StoppedError):
        train(recipe, folder, callback=SigtermAtStep(step))
    return folder


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """The bytes and modification time of every file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


# Finished runs


def test_run_folder_is_complete(reference: Reference) -> None:
    expected = {
        "recipe.toml",
        "tokenizer.json",
        "metrics.jsonl",
        "checkpoints",
        "run.json",
        "model.safetensors",
        "README.md",
    }
    assert expected <= {path.name for path in reference.folder.iterdir()}


def test_finished_run_has_no_temporary_files(reference: Reference) -> None:
    assert not [path for path in reference.folder.rglob("*") if "unfinished" in path.name]


def test_metrics_have_a_line_per_step_and_validation(reference: Reference) -> None:
    lines = [json.loads(line) for line in (reference.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    assert [line["step"] for line in lines if "valid/loss" in line] == [6, 12]


def test_model_card_has_checksums_versions_seed_time_and_flops(reference: Reference) -> None:
    card = (reference.folder / "README.md").read_text(encoding="utf-8")
    origin = json.loads((reference.folder / "run.json").read_text(encoding="utf-8"))["origin"]
    expected = {
        "checksum": origin["data"]["train"],
        "regard": f"regard {regard.__version__}",
        "torch": f"torch {torch.__version__}",
        "seed": "seed 1",
        "time": f"{origin['seconds'] / 60:.1f} minutes on cpu",
        "flops": f"{origin['flops']:.2e} FLOP",
        "weights": "the average of the last 3 checkpoints",
        "score": f"| held-out | {origin['scores']['held-out']['bleu']:.2f} |",
    }
    assert [name for name, value in expected.items() if value not in card] == []


def test_recorded_time_and_flops_are_positive(reference: Reference) -> None:
    origin = json.loads((reference.folder / "run.json").read_text(encoding="utf-8"))["origin"]
    assert origin["seconds"] > 0
    assert origin["flops"] > 0


def test_copy_task_is_learned(tmp_path: Path) -> None:
    """End to end: data, model, loss, optimizer and search. Unseen sentences are copied."""
    rows = [(sentence, sentence) for sentence in sentences(400)]
    recipe = small_recipe(
        write_table(tmp_path / "train.tsv", rows),
        "tokenizer.kind=word",
        "model.width=64",
        "train.steps=250",
        "train.batch_tokens=512",
        "train.log_every=50",
        "train.validate_every=250",
        "train.save_every=250",
        'train.schedule={kind = "linear", lr = 0.005, warmup_steps = 30}',
    )
    trained = train(recipe, tmp_path / "run")
    assert trained.scores["held-out"].bleu > 80


def test_recorded_scores_are_those_of_the_saved_weights(reference: Reference) -> None:
    origin = json.loads((reference.folder / "run.json").read_text(encoding="utf-8"))["origin"]
    trained = train(read_recipe(reference.recipe), reference.folder, resume=True)
    assert trained.scores["held-out"].bleu == origin["scores"]["held-out"]["bleu"]
    assert trained.folder == reference.folder


# Reproducibility


def test_same_recipe_gives_bit_identical_weights(reference: Reference, tmp_path: Path) -> None:
    train(read_recipe(reference.recipe), tmp_path / "run")
    assert weights(tmp_path / "run") == reference.weights


def test_different_seeds_give_different_weights(reference: Reference, tmp_path: Path) -> None:
    train(read_recipe(reference.recipe, ["train.seed=2"]), tmp_path / "run")
    assert weights(tmp_path / "run") != reference.weights


def test_measuring_the_hardware_does_not_change_the_weights(
    reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measurement must not advance the run's random state: it is skipped on hardware that is already known."""
    monkeypatch.setattr("regard.task.run.detect_hardware", detect_hardware)
    train(read_recipe(reference.recipe), tmp_path / "run")
    assert weights(tmp_path / "run") == reference.weights


def test_stopped_and_resumed_run_equals_uninterrupted(reference: Reference, tmp_path: Path) -> None:
    """All variants are in tests/train/test_resume.py."""
    recipe = read_recipe(reference.recipe)
    interrupted_run(recipe, tmp_path / "run", 5)
    train(recipe, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == reference.weights
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))


# SIGKILL


@dataclass
class KilledRun:
    """A run in a child process that is killed repeatedly with SIGKILL."""

    recipe: Path
    folder: Path
    backup: Path

    def kill(self, condition: Callable[[subprocess.Popen[str], float], bool], wait: float = 0.0) -> None:
        """Resume the run and kill it once `condition` holds; if it finished first, try again with a shorter wait."""
        if self.folder.exists():
            shutil.copytree(self.folder, self.backup)
        for attempt in range(6):
            process = child("train", self.recipe, "--out", self.folder, "--resume")
            reached = condition(process, wait / 2**attempt)
            process.kill()
            process.communicate()
            if reached and process.returncode == -signal.SIGKILL and not (self.folder / "run.json").exists():
                shutil.rmtree(self.backup, ignore_errors=True)
                return
            shutil.rmtree(self.folder, ignore_errors=True)
            if self.backup.exists():
                shutil.copytree(self.backup, self.folder)
        pytest.fail("the run was never killed in the intended phase")

    def while_preparing(self, process: subprocess.Popen[str], wait: float) -> bool:
        """Wait until the folder has its recipe."""
        return wait_until(process, (self.folder / "recipe.toml").exists)

    def while_training(self, process: subprocess.Popen[str], wait: float) -> bool:
        """Wait until some time after the next checkpoint."""
        newest = max(steps(self.folder), default=0)
        reached = wait_until(process, lambda: max(steps(self.folder), default=0) > newest)
        time.sleep(wait)
        return reached

    def while_saving(self, process: subprocess.Popen[str], wait: float) -> bool:
        """Kill the process while it writes a checkpoint, which is left half-written."""
        reached = self.while_training(process, 0) and wait_until(process, self.is_saving)
        process.kill()
        process.wait()
        return reached and self.is_saving()

    def is_saving(self) -> bool:
        return any((self.folder / "checkpoints").glob(".step-*unfinished-*"))


def wait_until(process: subprocess.Popen[str], reached: Callable[[], bool]) -> bool:
    """Wait for a condition; whether it held before the process ended."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if reached():
            return True
        time.sleep(0.0005)
    return False


def test_repeatedly_killed_run_equals_uninterrupted(tmp_path: Path) -> None:
    overrides = ("train.steps=120", "train.save_every=2", "train.validate_every=60", "train.log_every=20")
    data = {"train": [{"path": str(write_table(tmp_path / "train.tsv", pairs(60)))}]}
    recipe = write_recipe_file(tmp_path / "slow.toml", data, *OVERRIDES, *overrides)
    run = KilledRun(recipe, tmp_path / "run", tmp_path / "backup")
    with child("train", recipe, "--out", tmp_path / "uninterrupted") as uninterrupted:
        run.kill(run.while_preparing)
        run.kill(run.while_training, random.Random(7).uniform(0, 0.2))
        run.kill(run.while_saving)
        output = uninterrupted.communicate()
    last_step = max(steps(run.folder))
    assert (uninterrupted.returncode, 0 < last_step < 120) == (0, True), output
    done = command("train", recipe, "--out", run.folder, "--resume")
    assert (done.code, f"Resuming from step {last_step}." in done.err) == (0, True)
    assert weights(run.folder) == weights(tmp_path / "uninterrupted")


# Damaged checkpoints


def test_damaged_checkpoint_is_skipped_and_the_weights_are_the_same(reference: Reference, tmp_path: Path) -> None:
    recipe = read_recipe(reference.recipe)
    interrupted_run(recipe, tmp_path / "run", 9)
    path = tmp_path / "run" / "checkpoints" / "step-00000009" / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    callback = RecordingCallback()
    train(recipe, tmp_path / "run", resume=True, callback=callback)
    assert "The checkpoint of step 9 is skipped" in callback.text
    assert "Resuming from step 8." in callback.text
    assert weights(tmp_path / "run") == reference.weights


# Existing run folders


@pytest.mark.parametrize(
    "change",
    [
        "train.seed=2",
        "train.batch_tokens=128",
        "train.ema_decay=0.9",
        "data.max_length=99",
        "data.filter.drop_duplicates=true",
        "tokenizer.kind=byte",
        "decode.beam_size=3",
        "model.width=32",
        "model.encoder.dropout=0.3",
        "model.decoder.layers=2",
    ],
)
def test_resuming_with_a_changed_recipe_names_the_key(change: str, reference: Reference, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(reference.folder, folder)
    (folder / "run.json").unlink()
    with pytest.raises(UserError, match=re.escape(": " + change.partition("=")[0])):
        train(read_recipe(reference.recipe, [change]), folder, resume=True)


def test_run_records_its_precision_and_resumes_with_it(tmp_path: Path) -> None:
    """Started in bfloat16, as on a GPU, it goes on in bfloat16 on a CPU, where a new run would take float32."""
    path, changes = write_table(tmp_path / "data.tsv", pairs(30)), ("train.validate_every=100", "data.dev_size=0")
    train(small_recipe(path, *changes, "train.steps=1"), tmp_path / "new")
    assert read_recipe(tmp_path / "new").train.precision == "float32"
    train(small_recipe(path, *changes, "train.steps=1", "train.precision=bfloat16"), tmp_path / "run")
    recipe = small_recipe(path, *changes, "train.steps=2")
    assert recipe.train.precision == "auto"
    train(recipe, tmp_path / "run", resume=True)
    assert read_recipe(tmp_path / "run").train.precision == "bfloat16"


def test_description_may_change_on_resume(reference: Reference, tmp_path: Path) -> None:
    folder = interrupted_run(read_recipe(reference.recipe), tmp_path / "run", 5)
    train(read_recipe(reference.recipe, ["description=Another description."]), folder, resume=True)
    assert weights(folder) == reference.weights


def test_resuming_a_finished_run_changes_nothing(reference: Reference) -> None:
    before, callback = contents(reference.folder), RecordingCallback()
    train(read_recipe(reference.recipe), reference.folder, resume=True, callback=callback)
    assert callback.messages == [f"{reference.folder}: this run has already finished."]
    assert contents(reference.folder) == before


def test_existing_run_is_not_overwritten(reference: Reference) -> None:
    before = contents(reference.folder)
    with pytest.raises(UserError, match=re.escape(str(reference.folder)) + " .*--resume.*--out"):
        train(read_recipe(reference.recipe), reference.folder)
    assert contents(reference.folder) == before


def test_folder_with_other_files_is_left_alone(reference: Reference, tmp_path: Path) -> None:
    (tmp_path / "diary.txt").write_text("Dear diary", encoding="utf-8")
    with pytest.raises(UserError, match="exists already"):
        train(read_recipe(reference.recipe), tmp_path)
    assert contents(tmp_path).keys() == {"diary.txt"}


def test_temporary_files_of_a_killed_run_are_removed(reference: Reference, tmp_path: Path) -> None:
    folder = interrupted_run(read_recipe(reference.recipe), tmp_path / "run", 5)
    leftovers = [folder / ".model.safetensors.unfinished-1", folder / "checkpoints" / ".step-00000008.unfinished-1"]
    leftovers[0].write_bytes(b"half")
    leftovers[1].mkdir()
    train(read_recipe(reference.recipe), folder, resume=True)
    assert not any(path.exists() for path in leftovers)


def test_file_with_the_name_of_the_run_folder_is_refused(reference: Reference, tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_text("a file", encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(str(path))):
        train(read_recipe(reference.recipe), path)
    assert path.read_text(encoding="utf-8") == "a file"


def test_empty_folder_is_used(reference: Reference, tmp_path: Path) -> None:
    train(read_recipe(reference.recipe), tmp_path)
    assert weights(tmp_path) == reference.weights


# The cost estimate


def estimate(base: Path, *overrides: str, device: str = "cuda", processes: int = 1) -> tuple[Cost, list[str]]:
    """The estimated cost of a run on a device, sharded over this many processes, and the messages it logs."""
    recipe = small_recipe(write_table(base / "train.tsv", pairs(60)), *overrides)
    prepared = prepare_pairs(recipe, base, lambda message: None, None)
    model = recipe.make_model_config(prepared.target.vocab_size).build()
    process_group, callback = ProcessGroup(), RecordingCallback()
    process_group.size = processes
    cost = log_cost(recipe, TranslationTask(recipe, prepared, model, process_group), torch.device(device), callback)
    return cost, callback.messages


def patch_hardware(monkeypatch: pytest.MonkeyPatch, memory: int = 1 << 34) -> Hardware:
    """Let training detect an H200 with this much memory."""
    hardware = replace(HARDWARE["h200"], memory=memory)
    monkeypatch.setattr("regard.task.run.detect_hardware", lambda device: hardware)
    return hardware


@pytest.mark.parametrize(
    ("device", "overrides", "cuda_graphs"),
    [
        ("cuda", (), True),
        ("cuda", ("train.cuda_graphs=false",), False),
        ("cuda", ("train.activation_checkpointing=true",), True),
        (
            "cuda",
            ("train.activation_checkpointing=true", "model.decoder.residual=false", "model.decoder.dropout=0.1"),
            False,
        ),
        ("cpu", (), False),
    ],
    ids=str,
)
def test_estimate_assumes_cuda_graphs_if_they_are_used(
    device: str, overrides: tuple[str, ...], cuda_graphs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hardware = patch_hardware(monkeypatch)
    cost, messages = estimate(tmp_path, *overrides, device=device)
    assert messages == [f"Estimate: {cost.describe(hardware, cuda_graphs=cuda_graphs)}."]
    assert cost.peak_bytes(hardware) != cost.peak_bytes(hardware, cuda_graphs=True)


def test_estimate_includes_activation_checkpointing(tmp_path: Path) -> None:
    (plain, plain_messages), (checkpointed, checkpointed_messages) = (
        estimate(tmp_path, f"train.activation_checkpointing={value}") for value in ("false", "true")
    )
    assert (plain.setup.activation_checkpointing, checkpointed.setup.activation_checkpointing) == (False, True)
    assert plain.flops_per_step < checkpointed.flops_per_step
    assert plain_messages != checkpointed_messages


@pytest.mark.parametrize(
    ("overrides", "processes", "fused", "loss", "bfloat16_copies", "shards"),
    [
        ((), 1, True, "deferred", True, 1),
        (("train.parallel.kind=fsdp", "train.parallel.shard=2"), 1, True, "deferred", True, 1),
        ((), 4, True, "in_place", False, 1),
        (("train.parallel.kind=fsdp",), 4, False, "in_place", False, 4),
        (("train.parallel.kind=fsdp", "train.parallel.shard=2"), 4, False, "in_place", False, 2),
    ],
    ids=str,
)
def test_estimate_assumes_the_kernels_and_shards_of_several_processes(
    overrides: tuple[str, ...],
    processes: int,
    fused: bool,
    loss: str,
    bfloat16_copies: bool,
    shards: int,
    tmp_path: Path,
) -> None:
    cost, (message,) = estimate(tmp_path, "train.precision=bfloat16", *overrides, processes=processes)
    setup = cost.setup
    assert (setup.fused, setup.loss, setup.has_bfloat16_copies, setup.shards) == (fused, loss, bfloat16_copies, shards)
    assert (setup.processes, cost.supports_cuda_graphs) == (processes, processes == 1)
    assert ("in each of 4 processes" in message) == (processes == 4)


def test_estimate_includes_all_micro_batches_and_processes(tmp_path: Path) -> None:
    one, three, sharded = (
        estimate(
            tmp_path, "train.precision=bfloat16", f"train.grad_accumulation={grad_accumulation}", processes=processes
        )[0]
        for grad_accumulation, processes in ((1, 1), (3, 1), (3, 3))
    )
    assert three.flops_per_step == sharded.flops_per_step == 3 * one.flops_per_step
    assert three.gradient_bytes == 2 * one.gradient_bytes  # gradients of the bfloat16 copies are accumulated in float32


def test_activation_checkpointing_is_suggested_if_it_makes_the_run_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ("train.batch_tokens=65536", "model.encoder.layers=4", "model.decoder.layers=4")
    hardware = patch_hardware(monkeypatch)
    plain, checkpointed = (
        estimate(tmp_path, *overrides, f"train.activation_checkpointing={value}")[0] for value in ("false", "true")
    )
    needed = checkpointed.peak_bytes(hardware, cuda_graphs=True)
    assert needed < 0.8 * plain.peak_bytes(hardware, cuda_graphs=True)
    patch_hardware(monkeypatch, int(1.1 * needed / USABLE_MEMORY))
    _, messages = estimate(tmp_path, *overrides)
    assert len(messages) == 2
    assert "train.activation_checkpointing to true, which needs about" in messages[1]
    assert len(estimate(tmp_path, *overrides, "train.activation_checkpointing=true")[1]) == 1


# init_from


@pytest.fixture(scope="module")
def finetuned(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RecordingCallback]:
    """A run on other pairs that is initialized from the reference, and its callback."""
    base, callback = tmp_path_factory.mktemp("finetuned"), RecordingCallback()
    recipe = small_recipe(write_table(base / "train.tsv", pairs(40, seed=9)), f"init_from={reference.folder}")
    train(recipe, base / "run", callback=callback)
    return base / "run", callback


def test_init_from_lowers_the_first_loss(finetuned: tuple[Path, RecordingCallback], tmp_path: Path) -> None:
    callback = RecordingCallback()
    train(
        small_recipe(write_table(tmp_path / "train.tsv", pairs(40, seed=9)), "train.steps=1"),
        tmp_path / "run",
        callback=callback,
    )
    assert finetuned[1].losses[1] < 0.9 * callback.losses[1]


def test_init_from_reuses_the_tokenizer(finetuned: tuple[Path, RecordingCallback], reference: Reference) -> None:
    old, new = (TextTokenizer.load(folder / "tokenizer.json") for folder in (reference.folder, finetuned[0]))
    assert new.fingerprint == old.fingerprint


def test_init_from_is_logged(finetuned: tuple[Path, RecordingCallback], reference: Reference) -> None:
    assert f"Starting from the weights and tokenizers of {reference.folder}." in finetuned[1].messages


def test_init_from_does_not_change_the_original_folder(reference: Reference, tmp_path: Path) -> None:
    before = contents(reference.folder)
    path = write_table(tmp_path / "train.tsv", pairs(20))
    train(small_recipe(path, f"init_from={reference.folder}", "train.steps=1"), tmp_path / "run")
    assert contents(reference.folder) == before


def test_missing_init_from_is_named_and_leaves_no_folder(tmp_path: Path) -> None:
    path = write_table(tmp_path / "train.tsv", pairs(20))
    with pytest.raises(UserError, match="nowhere"):
        train(small_recipe(path, f"init_from={tmp_path / 'nowhere'}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Full disks, read-only paths and changed data


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], None]]:
    """Simulates a full disk: from a step's checkpoint on, no file may grow beyond this many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    original = CheckpointManager.save

    def limit(step: int, size: int) -> None:
        def save(
            self: CheckpointManager, checkpoint: Checkpoint, *, best: bool = False, temporary: bool = False
        ) -> Path:
            if checkpoint.step >= step:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
            return original(self, checkpoint, best=best, temporary=temporary)

        monkeypatch.setattr(CheckpointManager, "save", save)

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's own thread
@pytest.mark.parametrize("size", [10_000, 10], ids=["large files fail", "every file fails"])
def test_run_resumes_after_a_full_disk(
    size: int,
    full_disk: Callable[[int, int], None],
    reference: Reference,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    full_disk(8, size)
    folder = tmp_path / "run"
    done = command("train", reference.recipe, "--out", folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    monkeypatch.undo()
    last = done.err.splitlines()[-1]
    assert (
        done.code,
        last.startswith(f"regard: {folder / 'checkpoints' / 'step-00000008'}: could not be written"),
    ) == (2, True)
    assert CheckpointManager(folder / "checkpoints").load(4).step == 4
    assert command("train", reference.recipe, "--out", folder, "--resume").code == 0
    assert weights(folder) == reference.weights


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's own thread
def test_metrics_that_cannot_be_written_are_an_error(reference: Reference, tmp_path: Path) -> None:
    class FullDisk(RecordingCallback):
        def on_train_metrics(self, step: int, values: Mapping[str, float]) -> None:
            if step == 5:
                resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(UserError, match=r"metrics\.jsonl could not be written"):
            train(read_recipe(reference.recipe), tmp_path / "run", callback=FullDisk())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_run_whose_weights_could_not_be_written_can_be_finished(
    reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, tensors: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("regard.run.folder.write_tensors", full)
        done = command("train", reference.recipe, "--out", folder)
    last = done.err.splitlines()[-1]
    assert (done.code, last.startswith(f"regard: {folder / 'model.safetensors'} could not be written")) == (2, True)
    assert os.strerror(errno.ENOSPC) in last
    assert command("train", reference.recipe, "--out", folder, "--resume").code == 0
    assert weights(folder) == reference.weights


def test_path_below_a_file_is_refused(reference: Reference, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = command("train", reference.recipe, "--out", tmp_path / "file" / "run")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith(f"regard: {tmp_path / 'file' / 'run'}: cannot write there")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_unwritable_folder_is_refused(reference: Reference, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        done = command("train", reference.recipe, "--out", tmp_path / "run")
    finally:
        tmp_path.chmod(0o700)
    assert (done.code, done.err.count("\n")) == (2, 1)


def test_read_only_file_system_is_an_error(
    reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a file for writing fails there, and so does removing one, even one that does not exist."""

    def refuse(self: Path, *args: object, **keys: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    with monkeypatch.context() as patch:
        for name in ("write_text", "unlink", "rmdir"):
            patch.setattr(Path, name, refuse)
        done = command("train", reference.recipe, "--out", tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert str(tmp_path / "recipe.toml") in done.err


def test_missing_data_on_resume_is_named_and_the_checkpoints_stay(tmp_path: Path) -> None:
    path = write_table(tmp_path / "train.tsv", pairs(20))
    recipe = write_recipe_file(tmp_path / "small.toml", {"train": [{"path": "train.tsv"}]})
    folder = interrupted_run(read_recipe(recipe), tmp_path / "run", 5)
    before = contents(folder / "checkpoints")
    path.unlink()
    done = command("train", recipe, "--out", folder, "--resume")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith(f"regard: {path}:")
    assert contents(folder / "checkpoints") == before


def test_changed_data_on_resume_is_refused(tmp_path: Path) -> None:
    """Even if every sentence keeps its length."""
    path = write_table(tmp_path / "train.tsv", pairs(20))
    recipe = small_recipe(path, "data.dev_size=0")
    folder = interrupted_run(recipe, tmp_path / "run", 5)
    path.write_text(path.read_text(encoding="utf-8").replace("red", "sun"), encoding="utf-8")
    with pytest.raises(UserError, match=r"data.* ha(s|ve) changed"):
        train(recipe, folder, resume=True)


def test_damaged_token_store_is_rebuilt(reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    recipe = read_recipe(reference.recipe)
    folder = interrupted_run(recipe, tmp_path / "run", 5)
    for path in (tmp_path / "cache").rglob("*.tokens"):
        path.write_bytes(path.read_bytes()[:-2])
    callback = RecordingCallback()
    train(recipe, folder, resume=True, callback=callback)
    assert "Writing it again." in callback.text
    assert weights(folder) == reference.weights


# save_dtype


@pytest.fixture(scope="module")
def float16_run(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("float16") / "run"
    train(read_recipe(reference.recipe, ["train.save_dtype=float16"]), folder)
    return folder


def test_float16_weights_are_the_float32_weights_rounded(float16_run: Path, reference: Reference) -> None:
    full, rounded = (read_tensors(folder / "model.safetensors") for folder in (reference.folder, float16_run))
    assert {name: tensor.half().tolist() for name, tensor in full.items()} == {
        name: tensor.tolist() for name, tensor in rounded.items()
    }
    assert {tensor.dtype for tensor in rounded.values()} == {torch.float16}


def test_recorded_scores_are_those_of_the_float16_weights(float16_run: Path) -> None:
    """A run scores the weights that it saved, so loading the folder gives the same scores."""
    recorded = json.loads((float16_run / "run.json").read_text(encoding="utf-8"))["origin"]["scores"]["held-out"]
    valid_pairs = prepare_pairs(
        read_recipe(float16_run), float16_run, RecordingCallback().log, read_tokenizers(float16_run)
    ).valid_pairs
    translations = Translator.load(float16_run).translate_sentences([pair.source for pair in valid_pairs])
    scores = score_translations([best.text for best, *_ in translations], [pair.target for pair in valid_pairs])
    assert (round(scores.bleu, 2), round(scores.chrf, 2)) == (recorded["bleu"], recorded["chrf"])


# train.parallel


def test_run_resumes_with_another_kind_of_parallelism(tmp_path: Path) -> None:
    recipe = small_recipe(write_table(tmp_path / "train.tsv", pairs(30)), "train.steps=2")
    train(recipe, tmp_path / "run")
    callback = RecordingCallback()
    train(with_parallel(recipe, "fsdp", 2), tmp_path / "run", resume=True, callback=callback)
    assert callback.messages == [f"{tmp_path / 'run'}: this run has already finished."]


def test_parallelism_flags_override_the_recipe() -> None:
    recipe = small_recipe(Path("unused.tsv"), 'train.parallel={kind = "fsdp", shard = 4, timeout = 5.0}')
    assert with_parallel(recipe, None, None) == recipe
    assert with_parallel(recipe, None, 2).train.parallel.plain() == {"kind": "fsdp", "shard": 2, "timeout": 5.0}
    assert with_parallel(recipe, "ddp", None).train.parallel.plain() == {"kind": "ddp", "shard": None, "timeout": 5.0}


def test_indivisible_shard_size_is_refused() -> None:
    recipe = small_recipe(Path("unused.tsv"))
    with pytest.raises(UserError, match=r"6 processes .* 4"):
        with_parallel(recipe, "fsdp", 4, processes=6)
