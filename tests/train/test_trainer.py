"""The trainer takes the right steps, logs them, handles too little memory and reports what goes wrong."""

import contextlib
import errno
import itertools
import math
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard import UserError
from regard.data.batching.token_batches import Batch, TokenBatches
from regard.kernels.cpu.threads import Monitor
from regard.progress import Phase, listen_to_phases
from regard.run.tensors import write_tensors
from regard.train.callback import Callback
from regard.train.config import TrainConfig
from regard.train.loss import Loss
from regard.train.policies import TrainResult
from regard.train.task import Evaluation, Forward
from regard.train.trainer import Trainer
from tests.train.test_resume import Crash, crash_at
from tests.train.toy import (
    BatchHook,
    LogRecorder,
    Sentences,
    Toy,
    assert_close,
    assert_same,
    log_lines,
    log_lines_without_times,
    make_trainer,
    no_hook,
    record_steps,
    settings,
    trained,
    validation_nll,
    weights_of,
    word_by_word,
)

# Steps and logs


def test_loss_falls(tmp_path: Path) -> None:
    trained(Toy(), settings(steps=40), tmp_path)
    losses = [line["loss"] for line in log_lines(tmp_path) if "loss" in line]
    assert losses[-1] < 0.5 * losses[0]


def test_log_lines_come_every_log_every_steps_and_after_the_last(tmp_path: Path) -> None:
    trained(Toy(validation=False), settings(log_every=3), tmp_path)
    assert [line["step"] for line in log_lines(tmp_path)] == [3, 6, 8]


def test_busy_cores_are_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor, callback = Monitor(dict), LogRecorder()
    monkeypatch.setattr("regard.kernels.cpu.threads._monitor", lambda: monitor)
    monkeypatch.setattr(monitor, "_set_idle_threads", lambda wanted: None)
    task = Toy(hook=lambda call, batch: monitor.observe(0.5))
    make_trainer(task, settings(steps=20), tmp_path, callback).run()
    assert sum("Other processes" in message for message in callback.messages) == 1


def test_log_line_has_lr_and_tokens_so_far(tmp_path: Path) -> None:
    counts: list[int] = []
    task = Toy(hook=lambda call, batch: counts.append(batch.count), validation=False)
    config = settings(grad_accumulation=2)
    trained(task, config, tmp_path)
    lines = log_lines(tmp_path)
    names = {"step", "loss", "nll", "tokens_per_second", "tokens", "seconds", "lr", "grad_norm"}
    assert all(line.keys() == names for line in lines)
    assert [line["lr"] for line in lines] == [config.schedule.at(step) for step in range(1, 9)]
    assert [line["tokens"] for line in lines] == list(itertools.accumulate(counts))[1::2]


def test_logged_loss_is_the_mean_over_the_tokens_since_the_last_line(tmp_path: Path) -> None:
    sums: list[tuple[float, int]] = []
    task = Toy(
        hook=lambda call, batch: sums.append((float(word_by_word(task.model, batch).nll), batch.count)),
        validation=False,
    )
    trained(task, settings(log_every=4), tmp_path)
    means = [sum(total for total, _ in part) / sum(count for _, count in part) for part in (sums[:4], sums[4:])]
    assert [line["loss"] for line in log_lines(tmp_path)] == pytest.approx(means, rel=1e-12)


def test_validation_has_its_own_log_lines(tmp_path: Path) -> None:
    trained(Toy(scores={4: 0.5, 8: 0.25}), settings(log_every=100), tmp_path)
    lines = log_lines(tmp_path)
    assert [line["step"] for line in lines] == [4, 8, 8]
    assert (lines[0].keys(), lines[0]["valid/points"]) == ({"step", "valid/loss", "valid/nll", "valid/points"}, 0.5)


def test_validation_loss_is_without_dropout(tmp_path: Path) -> None:
    task = Toy(dropout=0.5)
    trained(task, settings(), tmp_path)
    assert log_lines(tmp_path)[-1]["valid/loss"] == pytest.approx(validation_nll(task), rel=1e-12)
    assert not task.model.training


@pytest.mark.parametrize("training", [True, False])
def test_training_is_with_dropout_before_and_after_validation(tmp_path: Path, training: bool) -> None:
    modes: list[bool] = []
    task = Toy(dropout=0.5, hook=lambda call, batch: modes.append(task.model.training))
    task.model.train(training)
    trained(task, settings(validate_every=1), tmp_path)
    assert modes == [True] * 8


def test_callback_receives_train_and_validation_metrics(tmp_path: Path) -> None:
    class Recorder(LogRecorder):
        def on_train_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
            self.messages.append(f"train {step}")

        def on_validation_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
            self.messages.append(f"validation {step}")

    recorder = Recorder()
    make_trainer(Toy(), settings(log_every=3), tmp_path, recorder).run()
    assert recorder.messages == ["train 3", "validation 4", "train 6", "train 8", "validation 8"]


def test_seed_determines_the_weights(tmp_path: Path) -> None:
    one, same, other = (
        trained(Toy(seed=seed, dropout=0.2), settings(), tmp_path / str(number))
        for number, seed in enumerate((3, 3, 4))
    )
    assert_same(one, same)
    assert not any(torch.equal(one[name], other[name]) for name in one)


def test_validation_and_checkpoints_do_not_change_the_weights(tmp_path: Path) -> None:
    often = settings(validate_every=1, save_every=1)
    one, other = (
        trained(Toy(dropout=0.2), config, tmp_path / name) for name, config in (("a", often), ("b", settings()))
    )
    assert_same(one, other)


def test_deterministic_algorithms_are_used_only_during_the_run(tmp_path: Path) -> None:
    seen: list[bool] = []
    task = Toy(hook=lambda call, batch: seen.append(torch.are_deterministic_algorithms_enabled()))
    trained(task, settings(steps=1, deterministic=True), tmp_path)
    assert [*seen, torch.are_deterministic_algorithms_enabled()] == [True, False]


def test_run_works_in_a_thread_that_cannot_handle_signals(tmp_path: Path) -> None:
    results: list[TrainResult] = []
    thread = threading.Thread(target=lambda: results.append(make_trainer(Toy(), settings(), tmp_path).run()))
    thread.start()
    thread.join()
    assert [result.steps for result in results] == [8]


# Gradients


def batch_of_uneven_rows() -> Batch:
    """Twelve rows whose thirds have different numbers of tokens."""
    batch = next(TokenBatches(Sentences(36), 72, length_buckets=1, seed=2).epoch())
    assert len({part.count for part in batch.split(3)}) == 3
    return batch


def test_gradient_accumulation_equals_one_large_batch(tmp_path: Path) -> None:
    batch = batch_of_uneven_rows()
    large = trained(Toy(fixed=[batch]), settings(), tmp_path / "a")
    accumulated = trained(Toy(fixed=batch.split(3)), settings(grad_accumulation=3), tmp_path / "b")
    assert_close(accumulated, large)


def test_gradient_is_the_mean_over_tokens_not_over_batches(tmp_path: Path) -> None:
    parts = batch_of_uneven_rows().split(3)
    task = Toy(fixed=parts)
    sums = [word_by_word(task.model, part) for part in parts]
    over_tokens, over_batches = (
        torch.autograd.grad(mean, list(task.model.parameters()), retain_graph=True)
        for mean in (sum(s.total for s in sums) / sum(s.count for s in sums), sum(s.mean for s in sums) / len(sums))
    )
    trainer = make_trainer(task, settings(steps=1, grad_accumulation=3, max_grad_norm=0.0), tmp_path)
    actual: list[Tensor] = []
    record_steps(trainer, lambda: actual.extend(p.grad.clone() for p in task.model.parameters() if p.grad is not None))
    trainer.run()
    torch.testing.assert_close(actual, list(over_tokens), rtol=1e-6, atol=1e-9)  # the scale is a float32
    assert max(float((a - b).abs().max()) for a, b in zip(actual, over_batches, strict=True)) > 1e-3


@pytest.mark.parametrize("splits", [2, 3, 12])
def test_split_batches_give_the_same_steps(tmp_path: Path, splits: int) -> None:
    whole = trained(Toy(), settings(grad_accumulation=2), tmp_path / "a")
    task = Toy()
    trainer = make_trainer(task, settings(grad_accumulation=2), tmp_path / "b")
    trainer.splitter.splits = splits
    trainer.run()
    assert_close(weights_of(task.model), whole)


@pytest.mark.parametrize("max_grad_norm", [0.1, 0.0])
def test_gradients_are_clipped_and_their_norm_is_logged(tmp_path: Path, max_grad_norm: float) -> None:
    trainer = make_trainer(Toy(validation=False), settings(max_grad_norm=max_grad_norm), tmp_path)
    applied: list[float] = []

    def norm() -> float:
        return math.sqrt(sum(float(p.grad.square().sum()) for p in trainer.model.parameters() if p.grad is not None))

    record_steps(trainer, lambda: applied.append(norm()))
    trainer.run()
    logged = [line.get("grad_norm") for line in log_lines(tmp_path)]
    if max_grad_norm:
        assert applied == pytest.approx([min(each, max_grad_norm) for each in logged], rel=1e-4)
        assert max(applied) <= max_grad_norm * (1 + 1e-9) < min(logged)
    else:
        assert min(applied) > 0.1
        assert logged == [None] * 8


# Out of memory


def out_of_memory_above(rows: int, error: Callable[[], Exception] = torch.OutOfMemoryError) -> BatchHook:
    def hook(call: int, batch: Batch) -> None:
        if len(batch.items) > rows:
            raise error()

    return hook


def cpu_out_of_memory() -> RuntimeError:
    return RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried ...")


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, cpu_out_of_memory])
@pytest.mark.parametrize(("rows", "splits"), [(6, 2), (3, 4)])
def test_batches_are_split_until_they_fit(
    tmp_path: Path, rows: int, splits: int, error: Callable[[], Exception]
) -> None:
    task = Toy(fixed=[batch_of_uneven_rows()], hook=out_of_memory_above(rows, error))
    assert make_trainer(task, settings(), tmp_path).run().batch_splits == splits


def test_batches_split_for_memory_give_the_same_weights_and_log(tmp_path: Path) -> None:
    fits = trained(Toy(), settings(grad_accumulation=2), tmp_path / "a")
    split = trained(Toy(hook=out_of_memory_above(3)), settings(grad_accumulation=2), tmp_path / "b")
    assert_close(split, fits)
    logs = (log_lines_without_times(tmp_path / name) for name in "ba")
    for actual, expected in zip(*logs, strict=True):
        assert actual == pytest.approx(expected, rel=1e-9)


def test_gradients_from_before_running_out_of_memory_do_not_count_twice(tmp_path: Path) -> None:
    def second(call: int, batch: Batch) -> None:
        if call == 2:
            raise torch.OutOfMemoryError

    halves = batch_of_uneven_rows().split(2)
    fits = trained(Toy(fixed=halves), settings(grad_accumulation=2), tmp_path / "a")
    split = trained(Toy(fixed=halves, hook=second), settings(grad_accumulation=2), tmp_path / "b")
    assert_close(split, fits)


def test_splitting_is_logged_once_with_the_keys_to_change(tmp_path: Path) -> None:
    logged = LogRecorder()
    task = Toy(fixed=[batch_of_uneven_rows()], hook=out_of_memory_above(6))
    make_trainer(task, settings(), tmp_path, logged).run()
    (message,) = logged.messages
    assert message.startswith("Out of memory at step 1: from now on each batch is split into 2 parts")
    assert "train.batch_tokens (4096 now)" in message


def test_row_that_does_not_fit_is_an_error_with_the_keys_to_change(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"One row .* data\.max_length or train\.batch_tokens.* train\.precision"):
        make_trainer(Toy(hook=out_of_memory_above(0)), settings(), tmp_path).run()


def test_other_errors_are_not_taken_for_too_little_memory(tmp_path: Path) -> None:
    hook = out_of_memory_above(0, lambda: RuntimeError("something else"))
    with pytest.raises(RuntimeError, match="something else"):
        make_trainer(Toy(hook=hook), settings(), tmp_path).run()


def test_resumed_run_keeps_its_splits(tmp_path: Path) -> None:
    fixed = [batch_of_uneven_rows()]
    with pytest.raises(Crash):
        make_trainer(Toy(fixed=fixed, hook=crash_at(14, out_of_memory_above(6))), settings(), tmp_path).run()
    logged = LogRecorder()
    make_trainer(Toy(fixed=fixed, hook=out_of_memory_above(6)), settings(), tmp_path, logged).run(resume=True)
    assert logged.messages == ["Resuming from step 4."]


# Errors


def diverging_trainer(number: int, config: TrainConfig, folder: Path) -> Trainer[Batch]:
    """Weights become NaN at the `number`-th batch."""

    def hook(call: int, batch: Batch) -> None:
        if call == number:
            with torch.no_grad():
                next(task.model.parameters()).fill_(math.nan)

    task = Toy(hook=hook, validation=False)
    return make_trainer(task, config, folder)


@pytest.mark.parametrize(
    ("number", "changes", "saved"), [(6, {"save_every": 2}, 4), (3, {"save_every": 2, "log_every": 8}, 2)]
)
def test_nan_ends_the_run_and_the_last_checkpoint_is_finite(
    tmp_path: Path, number: int, changes: dict[str, int], saved: int
) -> None:
    trainer = diverging_trainer(number, settings(**changes), tmp_path)
    with pytest.raises(UserError, match=r"not finite at step \d\. Lower train\.schedule\.lr"):
        trainer.run()
    latest = trainer.checkpoints.load_latest()
    assert latest is not None
    assert latest.step == saved
    assert all(tensor.isfinite().all() for tensor in latest.model.values())


def test_checkpoint_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_later(path: Path, tensors: Mapping[str, Tensor]) -> None:
        if "step-00000008" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_tensors(path, tensors)

    monkeypatch.setattr("regard.train.checkpoint.write_tensors", full_later)
    trainer = make_trainer(Toy(), settings(), tmp_path)
    with pytest.raises(UserError, match=r"step-00000008.*No space left on device"):
        trainer.run()
    assert trainer.checkpoints.steps() == [4]
    assert trainer.checkpoints.load(4).step == 4


class RandomToy(Toy):
    """Its validation draws random numbers."""

    def evaluate(self) -> Evaluation | None:
        torch.rand(3)
        return super().evaluate()


def test_validation_before_the_first_step_changes_no_step(tmp_path: Path) -> None:
    scores = {0: 9.0, 4: 1.0, 8: 2.0}
    config = settings(final_weights="best", monitor="score")
    weights, messages = {}, {}
    for first in (False, True):
        task, callback = RandomToy(dropout=0.5, scores=scores), LogRecorder()
        trainer = make_trainer(task, config, tmp_path / str(first), callback)
        result = trainer.run(validate_first=first)
        weights[first], messages[first] = weights_of(task.model), callback.messages
        assert result.final_weights.step == 8  # the initial model is no checkpoint, so it is not the best
    assert_same(weights[True], weights[False])
    with_first, without = (log_lines_without_times(tmp_path / str(first)) for first in (True, False))
    assert (with_first[0]["step"], with_first[0]["valid/points"]) == (0, 9.0)
    assert with_first[1:] == without
    assert [any("step 0" in message for message in messages[first]) for first in (True, False)] == [True, False]


def test_resumed_run_keeps_the_first_validation_and_does_not_repeat_it(tmp_path: Path) -> None:
    for hook, resume in ((crash_at(6), False), (no_hook, True)):
        trainer = make_trainer(Toy(hook=hook, scores={0: 9.0, 4: 1.0, 8: 2.0}), settings(), tmp_path)
        with contextlib.suppress(Crash):
            trainer.run(resume=resume, validate_first=True)
    assert [line["step"] for line in log_lines(tmp_path) if "valid/points" in line] == [0, 4, 8]
    assert trainer.best.initial_score is not None


def test_run_that_crashed_before_its_first_checkpoint_validates_again(tmp_path: Path) -> None:
    for hook, resume in ((crash_at(2), False), (no_hook, True)):
        with contextlib.suppress(Crash):
            make_trainer(Toy(hook=hook), settings(), tmp_path).run(resume=resume, validate_first=True)
    assert [line["step"] for line in log_lines(tmp_path) if "valid/nll" in line] == [0, 4, 8]


class StepRecorder(Callback):
    """Records where training begins, its steps, and the phases between them."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def on_train_begin(self, step: int, tokens: int) -> None:
        self.events.append(("begin", step))

    def on_step(self, step: int, tokens: int) -> None:
        self.events.append(step)

    def on_phase_begin(self, phase: Phase) -> None:
        if "checksum" not in phase.name:
            self.events.append(phase.name)


def test_callback_is_told_of_every_step_and_of_what_happens_between_them(tmp_path: Path) -> None:
    trained(Toy(), settings(steps=4), tmp_path)
    recorder = StepRecorder()
    with listen_to_phases(recorder):
        make_trainer(Toy(), settings(steps=6), tmp_path, recorder).run(resume=True)
    first, validating = ["Taking the first step"], ["Validating", "Computing the loss", "Saving a checkpoint"]
    assert recorder.events == [("begin", 4), *first, 5, 6, *validating, "Loading the final weights"]


def test_best_is_decided_by_the_loss_without_label_smoothing(tmp_path: Path) -> None:
    class Smoothed(Toy):
        def nll(self, forward: Forward, batch: Batch) -> Loss:
            smoothed = {4: 5.0, 8: 9.0}[self.step()]
            return Loss(torch.tensor(smoothed), torch.tensor(10.0 - smoothed), torch.tensor(1))

    trainer = make_trainer(Smoothed(), settings(), tmp_path)
    trainer.run()
    assert trainer.best.step == 8
    lines = [line for line in log_lines(tmp_path) if "valid/loss" in line]
    assert [(line["valid/loss"], line["valid/nll"]) for line in lines] == [(5.0, 5.0), (9.0, 1.0)]
