"""A run that was interrupted and resumed equals one that was not: weights, checkpoints, log and result."""

import contextlib
import os
import signal
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.data.batching.token_batches import Batch
from regard.train.loss import Loss
from regard.train.policies import TrainResult
from regard.train.runtime import StoppedError
from regard.train.task import Forward
from tests.model.small_models import encoder_decoder
from tests.train.toy import (
    BatchHook,
    LogRecorder,
    Toy,
    Weights,
    assert_same,
    log_lines,
    log_lines_without_times,
    make_trainer,
    no_hook,
    settings,
    trained,
    weights_of,
)

FINAL_WEIGHTS = ["last", "average", "ema", "best"]


class Crash(BaseException):
    """Derived from BaseException, so nothing catches it, as with a kill."""


def crash_at(number: int, first: BatchHook = no_hook) -> BatchHook:
    """Crash at the `number`-th batch; there are two batches per step."""

    def hook(call: int, batch: Batch) -> None:
        first(call, batch)
        if call == number:
            raise Crash

    return hook


def sigterm_at(*numbers: int) -> BatchHook:
    def hook(call: int, batch: Batch) -> None:
        if call in numbers:
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "this would end the tests"
            os.kill(os.getpid(), signal.SIGTERM)

    return hook


def config(final_weights: str = "last", **changes: Any) -> Any:
    """12 steps of two batches; checkpoints (3, 6 …), validations (2, 4 …) and log lines (5, 10 …) all apart."""
    usual: dict[str, Any] = {
        "steps": 12,
        "grad_accumulation": 2,
        "log_every": 5,
        "validate_every": 2,
        "save_every": 3,
        "average_last": 2,
        "keep_checkpoints": 3,
        "monitor": "score",
        "ema_decay": 0.9 if final_weights == "ema" else 0.0,
    }
    return settings(final_weights=final_weights, **(usual | changes))


def task(hook: BatchHook = no_hook) -> Toy:
    """With dropout, and scores that are best at step 4 for a while, so that patience can run out."""
    scores = {2: 1.0, 4: 3.0, 6: 2.0, 8: 2.5, 9: 1.0, 10: 4.0, 12: 5.0}
    return Toy(dropout=0.3, dtype=torch.float32, hook=hook, scores=scores)


def interrupt(folder: Path, hook: BatchHook, settings: Any, *, resume: bool = False) -> None:
    with pytest.raises((Crash, StoppedError)):
        make_trainer(task(hook), settings, folder).run(resume=resume)


@dataclass(frozen=True)
class Outcome:
    """All that a run leaves behind, except for times."""

    weights: Weights
    checkpoints: list[str]
    log: list[dict[str, Any]]
    result: TrainResult


def run(folder: Path, settings: Any, *, resume: bool = False, callback: LogRecorder | None = None) -> Outcome:
    toy = task()
    result = make_trainer(toy, settings, folder, callback).run(resume=resume)
    left = sorted(path.name for path in (folder / "checkpoints").iterdir())
    return Outcome(weights_of(toy.model), left, log_lines_without_times(folder), replace(result, seconds=0.0))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The outcome of a run that is not interrupted, by its final weights and patience; each is trained once."""

    @cache
    def outcome(final_weights: str, patience: int) -> Outcome:
        return run(tmp_path_factory.mktemp("run"), config(final_weights, patience=patience))

    return outcome


def assert_same_outcome(actual: Outcome, expected: Outcome) -> None:
    assert_same(actual.weights, expected.weights)
    assert actual.checkpoints == expected.checkpoints
    assert actual.log == expected.log
    assert actual.result == expected.result


INTERRUPTIONS = {
    "killed before any checkpoint": crash_at(1),
    "killed right after a checkpoint": crash_at(7),
    "killed between checkpoints": crash_at(11),
    "killed after the best validation": crash_at(9),
    "killed in the last step": crash_at(24),
    "stopped in the first step": sigterm_at(1),
    "stopped between checkpoints": sigterm_at(9),
    "stopped at a checkpoint": sigterm_at(12),
    "stopped at the best validation": sigterm_at(8),
}


CASES = [
    (interruption, patience)
    for interruption in INTERRUPTIONS
    for patience in (0, 2)
    if not (patience and interruption == "killed in the last step")  # early stopping comes before
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("interruption", "patience"), CASES)
@pytest.mark.parametrize("final_weights", FINAL_WEIGHTS)
def test_resumed_run_equals_uninterrupted(
    tmp_path: Path, uninterrupted: Any, final_weights: str, interruption: str, patience: int
) -> None:
    expected = uninterrupted(final_weights, patience)
    assert expected.result.stopped_early == bool(patience)
    settings = config(final_weights, patience=patience)
    interrupt(tmp_path, INTERRUPTIONS[interruption], settings)
    assert_same_outcome(run(tmp_path, settings, resume=True), expected)


@pytest.mark.parametrize("final_weights", FINAL_WEIGHTS)
def test_damaged_checkpoint_is_skipped_and_the_outcome_is_the_same(
    tmp_path: Path, uninterrupted: Any, final_weights: str
) -> None:
    interrupt(tmp_path, crash_at(20), config(final_weights))
    damage(tmp_path / "checkpoints" / "step-00000009" / "model.safetensors")
    logged = LogRecorder()
    outcome = run(tmp_path, config(final_weights), resume=True, callback=logged)
    assert_same_outcome(outcome, uninterrupted(final_weights, 0))
    assert "The checkpoint of step 9 is skipped" in logged.messages[0]


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 0xFF
    path.write_bytes(data)


def test_repeatedly_killed_run_equals_uninterrupted(tmp_path: Path, uninterrupted: Any) -> None:
    interrupt(tmp_path, crash_at(9), config("average"))
    for _ in range(2):  # calls count from where it resumed
        interrupt(tmp_path, crash_at(8), config("average"), resume=True)
    assert_same_outcome(run(tmp_path, config("average"), resume=True), uninterrupted("average", 0))


@pytest.mark.parametrize("patience", [0, 2])
def test_resuming_a_finished_run_takes_no_step(tmp_path: Path, uninterrupted: Any, patience: int) -> None:
    settings = config("average", patience=patience)
    expected = run(tmp_path, settings)
    toy = task(crash_at(1))
    result = make_trainer(toy, settings, tmp_path).run(resume=True)
    assert_same(weights_of(toy.model), expected.weights)
    assert (result.stopped_early, result.steps) == (bool(patience), 8 if patience else 12)


def test_resuming_without_a_checkpoint_starts_from_the_beginning(tmp_path: Path) -> None:
    interrupt(tmp_path, crash_at(3), config())
    logged = LogRecorder()
    run(tmp_path, config(), resume=True, callback=logged)
    assert logged.messages == ["There is no checkpoint to resume from, so the run starts from the beginning."]


def test_seconds_continue_after_a_resume(tmp_path: Path) -> None:
    interrupt(tmp_path, crash_at(17), config())
    run(tmp_path, config(), resume=True)
    seconds = [line["seconds"] for line in log_lines(tmp_path) if "seconds" in line]
    assert seconds == sorted(seconds)


def test_resumed_bfloat16_model_with_tied_weights_equals_uninterrupted(tmp_path: Path) -> None:
    class Translation(Toy):
        def __init__(self, hook: BatchHook = no_hook) -> None:
            super().__init__(hook=hook)
            torch.manual_seed(1)
            self.model = encoder_decoder().build()

        def loss(self, forward: Forward, batch: Batch) -> Loss:
            return super().loss(lambda source: forward(source, source, source_lengths=batch.source_lengths), batch)

        def nll(self, forward: Forward, batch: Batch) -> Loss:
            return super().nll(lambda source: forward(source, source), batch)

    bfloat16 = settings(precision="bfloat16", steps=6, save_every=2, final_weights="average", average_last=2)
    expected = trained(Translation(), bfloat16, tmp_path / "whole")
    with pytest.raises(Crash):
        make_trainer(Translation(crash_at(6)), bfloat16, tmp_path / "killed").run()
    assert_same(trained(Translation(), bfloat16, tmp_path / "killed", resume=True), expected)


# Signals


def test_signal_ends_the_step_and_saves_it(tmp_path: Path) -> None:
    trainer = make_trainer(task(sigterm_at(9)), config(), tmp_path)
    with pytest.raises(StoppedError, match="stopped after step 5"):
        trainer.run()
    assert trainer.checkpoints.load(5).metadata["state"]["step"] == 5


def test_signal_saves_a_checkpoint_although_a_damaged_one_is_newer(tmp_path: Path) -> None:
    interrupt(tmp_path, crash_at(20), config())
    damage(tmp_path / "checkpoints" / "step-00000009" / "model.safetensors")
    trainer = make_trainer(task(sigterm_at(2)), config(), tmp_path)
    with pytest.raises(StoppedError, match="step 7"):
        trainer.run(resume=True)
    assert 7 in trainer.checkpoints.steps()


def test_signal_in_the_last_step_changes_nothing(tmp_path: Path) -> None:
    assert make_trainer(task(sigterm_at(24)), config(), tmp_path).run().steps == 12


def test_second_signal_interrupts_at_once(tmp_path: Path) -> None:
    trainer = make_trainer(task(sigterm_at(9, 10)), config(), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert trainer.checkpoints.steps() == [3]


@pytest.mark.parametrize("hook", [no_hook, sigterm_at(3), crash_at(3)], ids=["ended", "stopped", "killed"])
def test_signal_handlers_are_restored(tmp_path: Path, hook: BatchHook) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with contextlib.suppress(Crash, StoppedError):
        make_trainer(task(hook), config(), tmp_path).run()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
