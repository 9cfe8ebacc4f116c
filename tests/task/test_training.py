"""A recipe becomes a finished folder, the same one every time, whatever happens on the way."""

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
from regard.cost import HARDWARE, USABLE, Cost, Hardware, this_hardware
from regard.data.tokenizer import TextTokenizer
from regard.run.tensors import read_tensors
from regard.score import score_translations
from regard.task import Recipe, load_translator, read_recipe, train
from regard.task.prepare import prepare, read_tokenizers
from regard.task.training import _preflight
from regard.task.translation import TranslationTask
from regard.train.checkpoint import Checkpoint, Checkpoints
from regard.train.surroundings import StoppedError
from regard.train.world import World
from tests.task.small import (
    Heard,
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


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


@dataclass(frozen=True)
class Reference:
    """A run that nothing disturbed."""

    recipe: Path
    folder: Path

    @property
    def weights(self) -> bytes:
        return weights(self.folder)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def steps(folder: Path) -> list[int]:
    return Checkpoints(folder / "checkpoints").steps()


CHANGES = ("model.embedding={dropout = 0.1}", "train.keep=3", "train.average=3", "train.final=mean")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Twelve steps, checkpoints at 4, 8 and 12; dropout, so that the random numbers count."""
    place = tmp_path_factory.mktemp("reference")
    write_aligned(place, pairs(60))
    data = {"train": [{"source": "train.en", "target": "train.de"}]}
    recipe = write_recipe_file(place / "small.toml", data, *CHANGES)
    train(read_recipe(recipe), place / "run")
    return Reference(recipe, place / "run")


class Stopping(Heard):
    """Asks the run to stop at a step, as Ctrl-C does."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def stepped(self, step: int, values: Mapping[str, float]) -> None:
        super().stepped(step, values)
        if step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def stopped(recipe: Recipe, folder: Path, step: int) -> Path:
    """A run that was stopped at a step."""
    with pytest.raises(StoppedError):
        train(recipe, folder, listener=Stopping(step))
    return folder


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its bytes and the time it was written."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


# A finished run.


def test_a_run_from_two_text_files_ends_as_a_folder_with_all_there_is_to_know(reference: Reference) -> None:
    wanted = {
        "recipe.toml",
        "tokenizer.json",
        "metrics.jsonl",
        "checkpoints",
        "run.json",
        "model.safetensors",
        "README.md",
    }
    assert wanted <= {path.name for path in reference.folder.iterdir()}


def test_a_finished_folder_holds_nothing_unfinished(reference: Reference) -> None:
    assert not [path for path in reference.folder.rglob("*") if "unfinished" in path.name]


def test_the_metrics_have_a_line_for_each_step_and_validation(reference: Reference) -> None:
    lines = [json.loads(line) for line in (reference.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    assert [line["step"] for line in lines if "valid/loss" in line] == [6, 12]


def test_the_card_names_checksums_versions_seed_time_and_work(reference: Reference) -> None:
    card = (reference.folder / "README.md").read_text(encoding="utf-8")
    origin = json.loads((reference.folder / "run.json").read_text(encoding="utf-8"))["origin"]
    facts = {
        "checksum": origin["data"]["train"],
        "regard": f"regard {regard.__version__}",
        "torch": f"torch {torch.__version__}",
        "seed": "seed 1",
        "time": f"{origin['seconds'] / 60:.1f} minutes on cpu",
        "work": f"{origin['flops']:.2e} FLOP",
        "weights": "the mean of the last 3 checkpoints",
        "score": f"| held-out | {origin['scores']['held-out']['bleu']:.2f} |",
    }
    assert [name for name, fact in facts.items() if fact not in card] == []


def test_the_time_and_work_that_are_noted_are_more_than_nothing(reference: Reference) -> None:
    origin = json.loads((reference.folder / "run.json").read_text(encoding="utf-8"))["origin"]
    assert origin["seconds"] > 0
    assert origin["flops"] > 0


def test_a_copying_task_is_learnt(tmp_path: Path) -> None:
    """Data, model, loss, optimiser and search work together: sentences never seen are copied."""
    rows = [(sentence, sentence) for sentence in sentences(400)]
    recipe = small_recipe(
        write_table(tmp_path / "train.tsv", rows),
        "tokenizer.kind=word",
        "model.width=64",
        "train.steps=250",
        "train.tokens=512",
        "train.log_every=50",
        "train.validate_every=250",
        "train.save_every=250",
        'train.schedule={kind = "linear", rate = 0.005, warmup = 30}',
    )
    trained = train(recipe, tmp_path / "run")
    assert trained.scores["held-out"].bleu > 80


def test_the_folder_translates_with_the_weights_that_were_scored(reference: Reference) -> None:
    origin = json.loads((reference.folder / "run.json").read_text(encoding="utf-8"))["origin"]
    trained = train(read_recipe(reference.recipe), reference.folder, resume=True)
    assert trained.scores["held-out"].bleu == origin["scores"]["held-out"]["bleu"]
    assert trained.folder == reference.folder


# The same again.


def test_the_same_recipe_gives_the_same_weights_bit_for_bit(reference: Reference, tmp_path: Path) -> None:
    train(read_recipe(reference.recipe), tmp_path / "run")
    assert weights(tmp_path / "run") == reference.weights


def test_another_seed_gives_other_weights(reference: Reference, tmp_path: Path) -> None:
    train(read_recipe(reference.recipe, ["train.seed=2"]), tmp_path / "run")
    assert weights(tmp_path / "run") != reference.weights


def test_what_the_machine_is_thought_to_do_changes_no_weights(
    reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timing it must draw none of the run's random numbers, or the same recipe differs where no timing is needed."""
    monkeypatch.setattr("regard.task.training.this_hardware", this_hardware)
    train(read_recipe(reference.recipe), tmp_path / "run")
    assert weights(tmp_path / "run") == reference.weights


@pytest.mark.parametrize("final", ["last", "best", "mean", "moving"])
def test_a_run_stopped_and_resumed_ends_bit_for_bit_as_one_that_was_not(
    final: str, reference: Reference, tmp_path: Path
) -> None:
    moving = ["train.moving=0.9"] if final == "moving" else []
    recipe = read_recipe(reference.recipe, [f"train.final={final}", "train.validate_every=3", *moving])
    train(recipe, tmp_path / "straight")
    stopped(recipe, tmp_path / "run", 5)
    train(recipe, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == weights(tmp_path / "straight")


def test_a_resumed_run_has_each_step_once_in_its_metrics(reference: Reference, tmp_path: Path) -> None:
    recipe = read_recipe(reference.recipe)
    stopped(recipe, tmp_path / "run", 5)
    train(recipe, tmp_path / "run", resume=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))


# kill -9.


@dataclass
class Killing:
    """A run in a process of its own, killed without warning again and again."""

    recipe: Path
    folder: Path
    spare: Path

    def kill(self, moment: Callable[[subprocess.Popen[str], float], bool], wait: float = 0.0) -> None:
        """Go on with the run and kill it at a moment; one that came too late is tried again, earlier."""
        if self.folder.exists():
            shutil.copytree(self.folder, self.spare)
        for attempt in range(6):
            process = child("train", self.recipe, "--out", self.folder, "--resume")
            hit = moment(process, wait / 2**attempt)
            process.kill()
            process.communicate()
            if hit and process.returncode == -signal.SIGKILL and not (self.folder / "run.json").exists():
                shutil.rmtree(self.spare, ignore_errors=True)
                return
            shutil.rmtree(self.folder, ignore_errors=True)
            if self.spare.exists():
                shutil.copytree(self.spare, self.folder)
        pytest.fail("the run could not be killed at the moment that was meant")

    def in_preparation(self, process: subprocess.Popen[str], wait: float) -> bool:
        """As soon as the folder has its recipe."""
        return until(process, (self.folder / "recipe.toml").exists)

    def while_training(self, process: subprocess.Popen[str], wait: float) -> bool:
        """Some time after the next checkpoint."""
        newest = max(steps(self.folder), default=0)
        reached = until(process, lambda: max(steps(self.folder), default=0) > newest)
        time.sleep(wait)
        return reached

    def while_saving(self, process: subprocess.Popen[str], wait: float) -> bool:
        """In the midst of a checkpoint, which is left half-written."""
        reached = self.while_training(process, 0) and until(process, self.is_saving)
        process.kill()
        process.wait()
        return reached and self.is_saving()

    def is_saving(self) -> bool:
        return any((self.folder / "checkpoints").glob(".step-*unfinished-*"))


def until(process: subprocess.Popen[str], reached: Callable[[], bool]) -> bool:
    """Wait for something; whether it came before the process ended."""
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end:
        if reached():
            return True
        time.sleep(0.0005)
    return False


def test_a_run_killed_at_any_moment_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    changes = ("train.steps=160", "train.save_every=2", "train.validate_every=80", "train.log_every=20")
    data = {"train": [{"path": str(write_table(tmp_path / "train.tsv", pairs(60)))}]}
    recipe = write_recipe_file(tmp_path / "slow.toml", data, *CHANGES, *changes)
    run = Killing(recipe, tmp_path / "run", tmp_path / "spare")
    dice = random.Random(7)
    with child("train", recipe, "--out", tmp_path / "straight") as straight:
        run.kill(run.in_preparation)
        run.kill(run.while_training, dice.uniform(0, 0.2))
        run.kill(run.while_saving)
        run.kill(run.while_training, dice.uniform(0, 0.2))
        said = straight.communicate()
    before = max(steps(run.folder))
    assert (straight.returncode, 0 < before < 160) == (0, True), said
    done = command("train", recipe, "--out", run.folder, "--resume")
    assert (done.code, f"Going on from step {before}." in done.err) == (0, True)
    assert weights(run.folder) == weights(tmp_path / "straight")


# Damage.


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _flip(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[-5] ^= 1
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", _flip),
        ("optimiser.safetensors", _cut),
        ("state.json", _cut),
        ("random.safetensors", os.remove),
    ],
    ids=["one bit", "cut short", "half a state", "a file missing"],
)
def test_a_damaged_checkpoint_is_passed_over_with_a_message_and_the_bits_stay_the_same(
    name: str, damage: Callable[[Path], None], reference: Reference, tmp_path: Path
) -> None:
    recipe = read_recipe(reference.recipe)
    stopped(recipe, tmp_path / "run", 9)
    damage(tmp_path / "run" / "checkpoints" / "step-00000009" / name)
    heard = Heard()
    train(recipe, tmp_path / "run", resume=True, listener=heard)
    assert "The checkpoint of step 9 is passed over" in heard.text
    assert "Going on from step 8." in heard.text
    assert weights(tmp_path / "run") == reference.weights


# Folders.


@pytest.mark.parametrize(
    "change",
    [
        "train.seed=2",
        "train.steps=13",
        "data.longest=99",
        "data.filter.drop_duplicates=true",
        "tokenizer.kind=byte",
        "decode.beams=3",
        "model.width=32",
        "model.encoder.dropout=0.3",
        "model.decoder.layers=2",
    ],
)
def test_going_on_with_another_recipe_is_refused_and_names_the_key(
    change: str, reference: Reference, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(reference.folder, folder)
    (folder / "run.json").unlink()
    with pytest.raises(UserError, match="was started with another recipe: " + change.partition("=")[0]):
        train(read_recipe(reference.recipe, [change]), folder, resume=True)


def test_a_new_description_is_not_another_recipe(reference: Reference, tmp_path: Path) -> None:
    folder = stopped(read_recipe(reference.recipe), tmp_path / "run", 5)
    train(read_recipe(reference.recipe, ["description=Said in other words."]), folder, resume=True)
    assert weights(folder) == reference.weights


def test_going_on_with_a_finished_run_says_so_and_changes_nothing(reference: Reference) -> None:
    before, heard = contents(reference.folder), Heard()
    train(read_recipe(reference.recipe), reference.folder, resume=True, listener=heard)
    assert heard.said == [f"{reference.folder}: this run is finished already."]
    assert contents(reference.folder) == before


def test_a_folder_that_is_there_is_not_trained_into_unless_asked(reference: Reference) -> None:
    before = contents(reference.folder)
    with pytest.raises(UserError, match="exists already; go on with it by --resume, or choose another folder by --out"):
        train(read_recipe(reference.recipe), reference.folder)
    assert contents(reference.folder) == before


def test_a_folder_with_something_else_in_it_is_left_alone(reference: Reference, tmp_path: Path) -> None:
    (tmp_path / "diary.txt").write_text("Dear diary", encoding="utf-8")
    with pytest.raises(UserError, match="exists already"):
        train(read_recipe(reference.recipe), tmp_path)
    assert contents(tmp_path).keys() == {"diary.txt"}


def test_what_a_killed_run_left_unfinished_is_swept_away(reference: Reference, tmp_path: Path) -> None:
    folder = stopped(read_recipe(reference.recipe), tmp_path / "run", 5)
    left = [folder / ".model.safetensors.unfinished-1", folder / "checkpoints" / ".step-00000008.unfinished-1"]
    left[0].write_bytes(b"half")
    left[1].mkdir()
    train(read_recipe(reference.recipe), folder, resume=True)
    assert not any(path.exists() for path in left)


def test_a_file_in_the_place_of_the_folder_is_a_sentence(reference: Reference, tmp_path: Path) -> None:
    place = tmp_path / "run"
    place.write_text("a file", encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(str(place))):
        train(read_recipe(reference.recipe), place)
    assert place.read_text(encoding="utf-8") == "a file"


def test_an_empty_folder_is_trained_into(reference: Reference, tmp_path: Path) -> None:
    train(read_recipe(reference.recipe), tmp_path)
    assert weights(tmp_path) == reference.weights


# What is said before it begins.


def preflight(place: Path, *changes: str, device: str = "cuda", processes: int = 1) -> tuple[Cost, list[str]]:
    """What a run on a device, shared by some processes, is thought to take, and what it says of that."""
    recipe = small_recipe(write_table(place / "train.tsv", pairs(60)), *changes)
    prepared = prepare(recipe, place, lambda sentence: None, None)
    model = recipe.model_settings(prepared.target.vocabulary).build()
    world, heard = World(), Heard()
    world.size = processes
    cost = _preflight(recipe, TranslationTask(recipe, prepared, model, world), torch.device(device), heard)
    return cost, heard.said


def computer(monkeypatch: pytest.MonkeyPatch, memory: int = 1 << 34) -> Hardware:
    """Let training find this machine."""
    machine = replace(HARDWARE["h200"], memory=memory)
    monkeypatch.setattr("regard.task.training.this_hardware", lambda device: machine)
    return machine


@pytest.mark.parametrize(
    ("device", "changes", "captured"),
    [
        ("cuda", (), True),
        ("cuda", ("train.capture=false",), False),
        ("cuda", ("train.recompute=true",), True),
        ("cuda", ("train.recompute=true", "model.decoder.order=none", "model.decoder.dropout=0.1"), False),
        ("cpu", (), False),
    ],
    ids=str,
)
def test_what_is_said_before_is_of_passes_that_are_recorded_if_they_will_be(
    device: str, changes: tuple[str, ...], captured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = computer(monkeypatch)
    cost, said = preflight(tmp_path, *changes, device=device)
    assert said == [f"Before it begins: {cost.describe(machine, captured=captured)}."]
    assert cost.peak(machine) != cost.peak(machine, captured=True)


def test_what_is_said_before_is_of_layers_computed_again_if_they_will_be(tmp_path: Path) -> None:
    (once, said), (twice, again) = (preflight(tmp_path, f"train.recompute={value}") for value in ("false", "true"))
    assert (once.recompute, twice.recompute) == (False, True)
    assert once.flops_per_step < twice.flops_per_step
    assert said != again


@pytest.mark.parametrize(
    ("changes", "processes", "form", "loss", "lowered", "shards"),
    [
        ((), 1, "fast", "late", True, 1),
        (("train.parallel.kind=fsdp", "train.parallel.shard=2"), 1, "fast", "late", True, 1),
        ((), 4, "fast", "over", False, 1),
        (("train.parallel.kind=fsdp",), 4, "plain", "over", False, 4),
        (("train.parallel.kind=fsdp", "train.parallel.shard=2"), 4, "plain", "over", False, 2),
    ],
    ids=str,
)
def test_what_is_said_before_is_of_the_form_that_processes_take(
    changes: tuple[str, ...], processes: int, form: str, loss: str, lowered: bool, shards: int, tmp_path: Path
) -> None:
    cost, (said,) = preflight(tmp_path, "train.precision=bf16", *changes, processes=processes)
    assert (cost.form, cost.loss, cost.lowered, cost.shards) == (form, loss, lowered, shards)
    assert (cost.processes, cost.recordable) == (processes, processes == 1)
    assert ("in each of 4 processes" in said) == (processes == 4)


def test_what_is_said_before_is_of_all_micro_batches_and_processes(tmp_path: Path) -> None:
    one, three, shared = (
        preflight(tmp_path, "train.precision=bf16", f"train.accumulate={accumulate}", processes=processes)[0]
        for accumulate, processes in ((1, 1), (3, 1), (3, 3))
    )
    assert three.flops_per_step == shared.flops_per_step == 3 * one.flops_per_step
    assert three.gradients_bytes == 2 * one.gradients_bytes  # those of copies in bf16 are added in float32


def test_a_run_that_does_not_fit_is_told_of_layers_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = ("train.tokens=65536", "model.encoder.layers=4", "model.decoder.layers=4")
    machine = computer(monkeypatch)
    once, twice = (preflight(tmp_path, *changes, f"train.recompute={value}")[0] for value in ("false", "true"))
    needed = twice.peak(machine, captured=True)
    assert needed < 0.8 * once.peak(machine, captured=True)
    computer(monkeypatch, int(1.1 * needed / USABLE))
    _, said = preflight(tmp_path, *changes)
    assert len(said) == 2
    assert "train.recompute to true, which takes about" in said[1]
    assert len(preflight(tmp_path, *changes, "train.recompute=true")[1]) == 1


# Starting from old weights.


@pytest.fixture(scope="module")
def second(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Heard]:
    """A run on other pairs that starts from the reference's weights."""
    place, heard = tmp_path_factory.mktemp("second"), Heard()
    recipe = small_recipe(write_table(place / "train.tsv", pairs(40, seed=9)), f"init_from={reference.folder}")
    train(recipe, place / "run", listener=heard)
    return place / "run", heard


def test_a_run_from_old_weights_begins_with_a_lower_loss(second: tuple[Path, Heard], tmp_path: Path) -> None:
    heard = Heard()
    train(
        small_recipe(write_table(tmp_path / "train.tsv", pairs(40, seed=9)), "train.steps=1"),
        tmp_path / "run",
        listener=heard,
    )
    assert second[1].losses[1] < 0.9 * heard.losses[1]


def test_a_run_from_old_weights_has_the_old_tokenizer(second: tuple[Path, Heard], reference: Reference) -> None:
    old, new = (TextTokenizer.load(folder / "tokenizer.json") for folder in (reference.folder, second[0]))
    assert new.fingerprint == old.fingerprint


def test_a_run_from_old_weights_says_so(second: tuple[Path, Heard], reference: Reference) -> None:
    assert f"Starting from the weights and tokenizers of {reference.folder}." in second[1].said


def test_a_run_from_old_weights_leaves_the_old_folder_alone(reference: Reference, tmp_path: Path) -> None:
    before = contents(reference.folder)
    path = write_table(tmp_path / "train.tsv", pairs(20))
    train(small_recipe(path, f"init_from={reference.folder}", "train.steps=1"), tmp_path / "run")
    assert contents(reference.folder) == before


def test_old_weights_that_are_not_there_are_named_and_leave_no_folder(tmp_path: Path) -> None:
    path = write_table(tmp_path / "train.tsv", pairs(20))
    with pytest.raises(UserError, match="nowhere"):
        train(small_recipe(path, f"init_from={tmp_path / 'nowhere'}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Disks and files.


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], None]]:
    """From a step's checkpoint on, no file may grow beyond so many bytes: a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    plain = Checkpoints.write

    def limit(step: int, size: int) -> None:
        def write(self: Checkpoints, checkpoint: Checkpoint, *, best: bool = False, passing: bool = False) -> Path:
            if checkpoint.step >= step:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
            return plain(self, checkpoint, best=best, passing=passing)

        monkeypatch.setattr(Checkpoints, "write", write)

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's own thread
@pytest.mark.parametrize("size", [10_000, 10], ids=["large files fail", "every file fails"])
def test_a_full_disk_is_a_sentence_and_the_run_goes_on_once_there_is_room(
    size: int,
    small_files: Callable[[int, int], None],
    reference: Reference,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    small_files(8, size)
    folder = tmp_path / "run"
    done = command("train", reference.recipe, "--out", folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    monkeypatch.undo()
    last = done.err.splitlines()[-1]
    assert (
        done.code,
        last.startswith(f"regard: {folder / 'checkpoints' / 'step-00000008'}: could not be written"),
    ) == (2, True)
    assert Checkpoints(folder / "checkpoints").read(4).step == 4
    assert command("train", reference.recipe, "--out", folder, "--resume").code == 0
    assert weights(folder) == reference.weights


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's own thread
def test_a_disk_that_is_full_when_metrics_are_written_is_a_sentence(reference: Reference, tmp_path: Path) -> None:
    class Full(Heard):
        def stepped(self, step: int, values: Mapping[str, float]) -> None:
            if step == 5:
                resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(UserError, match=r"metrics\.jsonl could not be written"):
            train(read_recipe(reference.recipe), tmp_path / "run", listener=Full())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_at_the_end_leaves_a_run_that_can_be_finished(
    reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, tensors: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("regard.run.folder.write_tensors", full)
        done = command("train", reference.recipe, "--out", folder)
    assert (done.code, done.err.splitlines()[-1]) == (
        2,
        f"regard: {folder / 'model.safetensors'} could not be written (No space left on device); nothing was changed.",
    )
    assert command("train", reference.recipe, "--out", folder, "--resume").code == 0
    assert weights(folder) == reference.weights


def test_a_place_where_no_folder_can_be_made_is_a_sentence(reference: Reference, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = command("train", reference.recipe, "--out", tmp_path / "file" / "run")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith(f"regard: {tmp_path / 'file' / 'run'}: cannot write there")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_folder_that_cannot_be_written_to_is_a_sentence(reference: Reference, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        done = command("train", reference.recipe, "--out", tmp_path / "run")
    finally:
        tmp_path.chmod(0o700)
    assert (done.code, done.err.count("\n")) == (2, 1)


def test_a_read_only_file_system_is_a_sentence(
    reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, nothing can be opened for writing, and nothing removed, not even what is not there."""

    def refuse(self: Path, *args: object, **keys: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    with monkeypatch.context() as patch:
        for name in ("write_text", "unlink", "rmdir"):
            patch.setattr(Path, name, refuse)
        done = command("train", reference.recipe, "--out", tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert str(tmp_path / "recipe.toml") in done.err


def test_data_that_vanished_before_a_run_goes_on_is_named_and_the_checkpoints_stay(tmp_path: Path) -> None:
    path = write_table(tmp_path / "train.tsv", pairs(20))
    recipe = write_recipe_file(tmp_path / "small.toml", {"train": [{"path": "train.tsv"}]})
    folder = stopped(read_recipe(recipe), tmp_path / "run", 5)
    before = contents(folder / "checkpoints")
    path.unlink()
    done = command("train", recipe, "--out", folder, "--resume")
    assert (done.code, done.err) == (2, f"regard: {path}: there is no such file.\n")
    assert contents(folder / "checkpoints") == before


def test_data_that_changed_before_a_run_goes_on_is_noticed(tmp_path: Path) -> None:
    """Also where every sentence is as long as it was."""
    path = write_table(tmp_path / "train.tsv", pairs(20))
    recipe = small_recipe(path, "data.hold_out=0")
    folder = stopped(recipe, tmp_path / "run", 5)
    path.write_text(path.read_text(encoding="utf-8").replace("red", "sun"), encoding="utf-8")
    with pytest.raises(UserError, match=r"data.* ha(s|ve) changed"):
        train(recipe, folder, resume=True)


def test_a_token_store_that_was_damaged_is_made_again(
    reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    recipe = read_recipe(reference.recipe)
    folder = stopped(recipe, tmp_path / "run", 5)
    for path in (tmp_path / "cache").rglob("*.tokens"):
        path.write_bytes(path.read_bytes()[:-2])
    heard = Heard()
    train(recipe, folder, resume=True, listener=heard)
    assert "It is made again." in heard.text
    assert weights(folder) == reference.weights


# Half the room.


@pytest.fixture(scope="module")
def half(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("half") / "run"
    train(read_recipe(reference.recipe, ["train.store=float16"]), folder)
    return folder


def test_weights_stored_in_float16_are_the_others_rounded(half: Path, reference: Reference) -> None:
    whole, rounded = (read_tensors(folder / "model.safetensors") for folder in (reference.folder, half))
    assert {name: tensor.half().tolist() for name, tensor in whole.items()} == {
        name: tensor.tolist() for name, tensor in rounded.items()
    }
    assert {tensor.dtype for tensor in rounded.values()} == {torch.float16}


def test_a_model_stored_in_float16_scores_as_its_card_says(half: Path) -> None:
    """What is scored at the end of a run is what was stored: the folder, opened anew, gives the same."""
    noted = json.loads((half / "run.json").read_text(encoding="utf-8"))["origin"]["scores"]["held-out"]
    held = prepare(read_recipe(half), half, Heard().say, read_tokenizers(half)).valid_pairs
    found = load_translator(half).translate_sentences([pair.source for pair in held])
    scored = score_translations([best.text for best, *_ in found], [pair.target for pair in held])
    assert (round(scored.bleu, 2), round(scored.chrf, 2)) == (noted["bleu"], noted["chrf"])
