"""The loop takes the right steps, keeps what it must, and goes on from a stop as if there had been none."""

import contextlib
import errno
import itertools
import json
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from regard import UserError
from regard.data.batch import Batch, TokenBatches
from regard.run.tensors import write_tensors
from regard.train.loop import Loop, Outcome, Silent
from regard.train.loss import Loss
from regard.train.settings import TrainConfig
from regard.train.surroundings import StoppedError
from regard.train.task import Forward, Measured
from tests.model.small_models import encoder_decoder

VOCABULARY = 11
FINALS = ["last", "mean", "moving", "best"]
Integers = NDArray[np.int64]
Weights = dict[str, Tensor]
Look = Callable[[int, Batch], None]


class Sentences:
    """Words at random, each of which is translated by the next number."""

    sides = ("source", "target")

    def __init__(self, count: int = 40, seed: int = 5) -> None:
        numbers = np.random.Generator(np.random.PCG64(seed))
        self._words = [numbers.integers(VOCABULARY - 1, size=1 + number % 6) for number in range(count)]

    def lengths(self, side: str) -> Integers:
        return np.array([len(words) for words in self._words])

    def padded(self, side: str, items: Integers, rows: int, length: int, padding: int) -> tuple[Integers, Integers]:
        ids, real = np.full((rows, length), padding), np.zeros(rows, dtype=np.int64)
        for row, item in enumerate(items.tolist()):
            real[row] = len(self._words[item])
            ids[row, : real[row]] = self._words[item] + (side == "target")
        return ids, real


class Given:
    """The same batches over and over."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def epochs(self) -> Iterator[Batch]:
        return itertools.cycle(self._batches)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None: ...


def nothing(call: int, batch: Batch) -> None: ...


class Toy:
    """Word by word translation by a table and a matrix. `look` sees every batch before its loss is taken."""

    def __init__(
        self,
        *,
        seed: int = 1,
        dropout: float = 0.0,
        dtype: torch.dtype = torch.float64,
        look: Look = nothing,
        given: list[Batch] | None = None,
        validation: bool = True,
        losses: Mapping[int, float] | None = None,
        scores: Mapping[int, float] | None = None,
    ) -> None:
        torch.manual_seed(seed)
        layers = (nn.Embedding(VOCABULARY, 8), nn.Dropout(dropout), nn.Linear(8, VOCABULARY))
        self.model = nn.Sequential(*layers).to(dtype)
        self.batches = TokenBatches(Sentences(), 24, seed=seed, shapes=4) if given is None else Given(given)
        self.step: Callable[[], int] = lambda: 0
        self._look, self._calls = look, 0
        self._validation, self._losses, self._scores = validation, losses, scores

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        self._calls += 1
        self._look(self._calls, batch)
        return word_by_word(forward, batch)

    def plain_loss(self, forward: Forward, batch: Batch) -> Loss:
        if self._losses is not None:
            value = torch.tensor(self._losses[self.step()])
            return Loss(value, value, torch.tensor(1))
        return word_by_word(forward, batch)

    def validation(self) -> Iterable[Batch]:
        return TokenBatches(Sentences(12, seed=6), 24).epoch() if self._validation else ()

    def measure(self) -> Measured | None:
        if self._scores is None:
            return None
        score = self._scores[self.step()]
        return Measured(score, {"points": score})


def word_by_word(forward: Forward, batch: Batch) -> Loss:
    """Cross-entropy in the model's own precision.

    Padding is left out before anything is summed, so that equal words give equal sums.
    """
    real = torch.arange(batch.target.shape[1]) < batch.target_lengths[:, None]
    total = functional.cross_entropy(forward(batch.source)[real], batch.target[real], reduction="sum")
    return Loss(total, total.detach(), real.sum())


class Heard(Silent):
    """What was said."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TensorBoard, which is none of the loop's business, and without waiting for the disk."""
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setattr("os.fsync", lambda handle: None)


def settings(**changes: Any) -> TrainConfig:
    usual: dict[str, Any] = {
        "steps": 8,
        "schedule": {"rate": 0.05, "warmup": 2},
        "log_every": 1,
        "validate_every": 4,
        "save_every": 4,
    }
    return TrainConfig(**(usual | changes))


def make(task: Toy, config: TrainConfig, folder: Path, listener: Heard | None = None) -> Loop[Batch]:
    folder.mkdir(exist_ok=True)
    loop = Loop(task, config, folder, listener=listener)
    task.step = lambda: loop.progress.step
    return loop


def weights(model: nn.Module) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def trained(task: Toy, config: TrainConfig, folder: Path, *, resume: bool = False) -> Weights:
    make(task, config, folder).run(resume=resume)
    return weights(task.model)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def lines_but_times(folder: Path) -> list[dict[str, Any]]:
    times = ("seconds", "words_per_second")
    return [{name: value for name, value in line.items() if name not in times} for line in lines(folder)]


def assert_same(found: Weights, wanted: Weights) -> None:
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def assert_close(found: Weights, wanted: Weights) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def at_each_step(loop: Loop[Batch], before: Callable[[], None] = lambda: None) -> list[Weights]:
    """The weights after each step; `before` is called when the gradients are ready."""
    seen: list[Weights] = []
    step = loop.optimiser.step

    def spy(rate: float) -> None:
        before()
        step(rate)
        seen.append(weights(loop.model))

    loop.optimiser.step = spy  # type: ignore[method-assign]
    return seen


# What a run does and writes down


def test_the_loss_falls(tmp_path: Path) -> None:
    trained(Toy(), settings(steps=40), tmp_path)
    losses = [line["loss"] for line in lines(tmp_path) if "loss" in line]
    assert losses[-1] < 0.5 * losses[0]


def test_a_line_is_written_each_log_every_steps_and_after_the_last(tmp_path: Path) -> None:
    trained(Toy(validation=False), settings(log_every=3), tmp_path)
    assert [line["step"] for line in lines(tmp_path)] == [3, 6, 8]


def test_a_line_says_how_it_goes(tmp_path: Path) -> None:
    trained(Toy(validation=False), settings(), tmp_path)
    wanted = {"step", "loss", "plain_loss", "words_per_second", "words", "seconds", "rate"}
    assert all(line.keys() == wanted for line in lines(tmp_path))


def test_a_line_has_the_rate_of_its_step(tmp_path: Path) -> None:
    config = settings(validate_every=100)
    trained(Toy(validation=False), config, tmp_path)
    assert [line["rate"] for line in lines(tmp_path)] == [config.schedule.at(step) for step in range(1, 9)]


def test_a_line_counts_the_words_so_far(tmp_path: Path) -> None:
    counted: list[int] = []
    task = Toy(look=lambda call, batch: counted.append(batch.count), validation=False)
    trained(task, settings(accumulate=2), tmp_path)
    assert [line["words"] for line in lines(tmp_path)] == list(itertools.accumulate(counted))[1::2]


def test_a_line_has_the_mean_loss_over_the_words_since_the_line_before(tmp_path: Path) -> None:
    sums: list[tuple[float, int]] = []
    task = Toy(
        look=lambda call, batch: sums.append((float(word_by_word(task.model, batch).plain), batch.count)),
        validation=False,
    )
    trained(task, settings(log_every=4), tmp_path)
    means = [sum(total for total, _ in part) / sum(count for _, count in part) for part in (sums[:4], sums[4:])]
    assert [line["loss"] for line in lines(tmp_path)] == pytest.approx(means, rel=1e-12)


def test_validation_writes_its_own_lines(tmp_path: Path) -> None:
    trained(Toy(scores={4: 0.5, 8: 0.25}), settings(log_every=100), tmp_path)
    found = [(line["step"], line.keys() - {"step"}, line["valid/points"]) for line in lines(tmp_path)[::2]]
    assert [line["step"] for line in lines(tmp_path)] == [4, 8, 8]
    assert found[0] == (4, {"valid/loss", "valid/points"}, 0.5)


def test_the_validation_loss_is_that_of_the_weights_without_dropout(tmp_path: Path) -> None:
    task = Toy(dropout=0.5)
    trained(task, settings(), tmp_path)
    losses = [word_by_word(task.model, batch) for batch in task.validation()]
    wanted = float(sum(loss.plain for loss in losses)) / int(sum(loss.count for loss in losses))
    assert lines(tmp_path)[-1]["valid/loss"] == pytest.approx(wanted, rel=1e-12)


def test_training_goes_on_with_dropout_after_validation(tmp_path: Path) -> None:
    modes: list[bool] = []
    task = Toy(dropout=0.5, look=lambda call, batch: modes.append(task.model.training))
    trained(task, settings(validate_every=1), tmp_path)
    assert modes == [True] * 8


def test_a_model_that_comes_ready_for_use_is_trained_with_dropout(tmp_path: Path) -> None:
    modes: list[bool] = []
    task = Toy(dropout=0.5, look=lambda call, batch: modes.append(task.model.training))
    task.model.eval()
    trained(task, settings(steps=1), tmp_path)
    assert modes == [True]


def test_the_model_ends_ready_for_use(tmp_path: Path) -> None:
    task = Toy(dropout=0.5)
    trained(task, settings(), tmp_path)
    assert not task.model.training


def test_a_listener_hears_of_steps_and_validations(tmp_path: Path) -> None:
    class Counting(Heard):
        def stepped(self, step: int, values: Mapping[str, float]) -> None:
            self.sentences.append(f"stepped {step}")

        def validated(self, step: int, values: Mapping[str, float]) -> None:
            self.sentences.append(f"validated {step}")

    heard = Counting()
    make(Toy(), settings(log_every=3), tmp_path, heard).run()
    assert heard.sentences == ["stepped 3", "validated 4", "stepped 6", "stepped 8", "validated 8"]


def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    one, other = (trained(Toy(seed=3, dropout=0.2), settings(), tmp_path / name) for name in "ab")
    assert_same(one, other)


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    one, other = (trained(Toy(seed=seed, dropout=0.2), settings(), tmp_path / str(seed)) for seed in (3, 4))
    assert not any(torch.equal(one[name], other[name]) for name in one)


def test_how_often_a_run_looks_up_does_not_change_its_weights(tmp_path: Path) -> None:
    often = settings(validate_every=1, save_every=1)
    one, other = (
        trained(Toy(dropout=0.2), config, tmp_path / name) for name, config in (("a", often), ("b", settings()))
    )
    assert_same(one, other)


def test_deterministic_algorithms_are_used_while_the_run_lasts_and_not_after(tmp_path: Path) -> None:
    seen: list[bool] = []
    task = Toy(look=lambda call, batch: seen.append(torch.are_deterministic_algorithms_enabled()))
    trained(task, settings(steps=1, deterministic=True), tmp_path)
    assert [*seen, torch.are_deterministic_algorithms_enabled()] == [True, False]


def test_a_run_may_live_in_a_thread_that_cannot_listen_to_signals(tmp_path: Path) -> None:
    ended: list[Outcome] = []
    thread = threading.Thread(target=lambda: ended.append(make(Toy(), settings(), tmp_path).run()))
    thread.start()
    thread.join()
    assert [outcome.progress.step for outcome in ended] == [8]


# Gradients


def batch_of_uneven_rows() -> Batch:
    """Twelve rows whose thirds have different numbers of words."""
    whole = next(TokenBatches(Sentences(36), 72, shapes=1, seed=2).epoch())
    assert len({part.count for part in whole.split(3)}) == 3
    return whole


def test_accumulated_batches_give_the_step_of_their_rows_in_one_batch(tmp_path: Path) -> None:
    whole = batch_of_uneven_rows()
    together = trained(Toy(given=[whole]), settings(), tmp_path / "a")
    apart = trained(Toy(given=whole.split(3)), settings(accumulate=3), tmp_path / "b")
    assert_close(apart, together)


def test_every_word_weighs_the_same_whatever_batch_it_came_in(tmp_path: Path) -> None:
    parts = batch_of_uneven_rows().split(3)
    task = Toy(given=parts)
    sums = [word_by_word(task.model, part) for part in parts]
    over_words, over_batches = (
        torch.autograd.grad(mean, list(task.model.parameters()), retain_graph=True)
        for mean in (sum(s.total for s in sums) / sum(s.count for s in sums), sum(s.mean for s in sums) / len(sums))
    )
    loop = make(task, settings(steps=1, accumulate=3, clip=0.0), tmp_path)
    found: list[Tensor] = []
    at_each_step(loop, lambda: found.extend(p.grad.clone() for p in task.model.parameters() if p.grad is not None))
    loop.run()
    torch.testing.assert_close(found, list(over_words), rtol=1e-6, atol=1e-9)  # the scale is a float32
    assert max(float((a - b).abs().max()) for a, b in zip(found, over_batches, strict=True)) > 1e-3


@pytest.mark.parametrize("parts", [2, 3, 12])
def test_a_batch_in_parts_gives_the_step_of_the_whole(tmp_path: Path, parts: int) -> None:
    whole = trained(Toy(), settings(accumulate=2), tmp_path / "a")
    task = Toy()
    loop = make(task, settings(accumulate=2), tmp_path / "b")
    loop.progress = replace(loop.progress, parts=parts)
    loop.run()
    assert_close(weights(task.model), whole)


def norms_of_applied_gradients(clip: float, folder: Path) -> list[float]:
    loop = make(Toy(), settings(clip=clip), folder)
    norms: list[float] = []

    def norm() -> float:
        return math.sqrt(sum(float(p.grad.square().sum()) for p in loop.model.parameters() if p.grad is not None))

    at_each_step(loop, lambda: norms.append(norm()))
    loop.run()
    return norms


def test_no_applied_gradient_is_longer_than_the_clip(tmp_path: Path) -> None:
    assert max(norms_of_applied_gradients(0.1, tmp_path)) <= 0.1 * (1 + 1e-9)


def test_gradients_are_left_as_they_are_without_a_clip(tmp_path: Path) -> None:
    assert min(norms_of_applied_gradients(0.0, tmp_path)) > 0.1


# Out of memory


def more_than(rows: int, error: Callable[[], Exception] = torch.OutOfMemoryError) -> Look:
    def look(call: int, batch: Batch) -> None:
        if len(batch.items) > rows:
            raise error()

    return look


def no_memory_on_the_cpu() -> RuntimeError:
    return RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried ...")


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, no_memory_on_the_cpu])
@pytest.mark.parametrize(("rows", "parts"), [(6, 2), (3, 4)])
def test_batches_that_do_not_fit_are_cut_until_they_do(
    tmp_path: Path, rows: int, parts: int, error: Callable[[], Exception]
) -> None:
    whole = batch_of_uneven_rows()
    loop = make(Toy(given=[whole], look=more_than(rows, error)), settings(), tmp_path)
    assert loop.run().progress.parts == parts


def test_cut_batches_give_the_weights_of_batches_that_fit(tmp_path: Path) -> None:
    fits = trained(Toy(), settings(accumulate=2), tmp_path / "a")
    cut = trained(Toy(look=more_than(3)), settings(accumulate=2), tmp_path / "b")
    assert_close(cut, fits)


def test_what_was_summed_before_memory_ran_out_does_not_count_twice(tmp_path: Path) -> None:
    def second(call: int, batch: Batch) -> None:
        if call == 2:
            raise torch.OutOfMemoryError

    halves = batch_of_uneven_rows().split(2)
    fits = trained(Toy(given=halves), settings(accumulate=2), tmp_path / "a")
    cut = trained(Toy(given=halves, look=second), settings(accumulate=2), tmp_path / "b")
    assert_close(cut, fits)


def test_cut_batches_are_logged_as_batches_that_fit(tmp_path: Path) -> None:
    trained(Toy(), settings(accumulate=2), tmp_path / "a")
    trained(Toy(look=more_than(3)), settings(accumulate=2), tmp_path / "b")
    for cut, fits in zip(lines_but_times(tmp_path / "b"), lines_but_times(tmp_path / "a"), strict=True):
        assert cut == pytest.approx(fits, rel=1e-9)


def test_cutting_is_said_once_with_the_setting_that_would_spare_it(tmp_path: Path) -> None:
    heard = Heard()
    make(Toy(given=[batch_of_uneven_rows()], look=more_than(6)), settings(), tmp_path, heard).run()
    (sentence,) = heard.sentences
    assert sentence.startswith("Out of memory at step 1: from now on each batch is computed in 2 parts")
    assert "train.tokens (4096 now)" in sentence


def test_one_row_that_does_not_fit_ends_the_run_with_what_to_change(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"One row .* data\.longest or train\.tokens, .* \(train\.precision\)"):
        make(Toy(look=more_than(0)), settings(), tmp_path).run()


def test_another_error_is_not_taken_for_too_little_memory(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="something else"):
        make(Toy(look=more_than(0, lambda: RuntimeError("something else"))), settings(), tmp_path).run()


def test_a_resumed_run_goes_on_in_as_many_parts(tmp_path: Path) -> None:
    given = [batch_of_uneven_rows()]
    with pytest.raises(Crash):
        make(Toy(given=given, look=crash_at(14, more_than(6))), settings(), tmp_path).run()
    heard = Heard()
    make(Toy(given=given, look=more_than(6)), settings(), tmp_path, heard).run(resume=True)
    assert heard.sentences == ["Going on from step 4."]


# Going on after a kill


class Crash(BaseException):
    """As sudden as a kill: nothing catches it."""


def crash_at(number: int, first: Look = nothing) -> Look:
    def look(call: int, batch: Batch) -> None:
        first(call, batch)
        if call == number:
            raise Crash

    return look


@dataclass(frozen=True)
class Story:
    """A run with dropout, two batches a step, and scores that make it stop early, all to be had again anew."""

    config: TrainConfig

    def task(self, look: Look = nothing) -> Toy:
        scores = {2: 1.0, 4: 3.0, 6: 2.0, 8: 2.5, 9: 1.0, 10: 4.0, 12: 5.0}
        return Toy(dropout=0.3, dtype=torch.float32, look=look, scores=scores)

    def whole(self, folder: Path) -> Weights:
        return trained(self.task(), self.config, folder)

    def stopped(self, folder: Path, look: Look) -> None:
        with pytest.raises((Crash, StoppedError)):
            make(self.task(look), self.config, folder).run()

    def resumed(self, folder: Path, heard: Heard | None = None) -> Weights:
        task = self.task()
        make(task, self.config, folder, heard).run(resume=True)
        return weights(task.model)


def story(final: str, **changes: Any) -> Story:
    usual: dict[str, Any] = {
        "steps": 12,
        "accumulate": 2,
        "validate_every": 2,
        "save_every": 3,
        "average": 2,
        "keep": 3,
        "watch": "score",
        "moving": 0.9 if final == "moving" else 0.0,
    }
    return Story(settings(final=final, **(usual | changes)))


@pytest.mark.parametrize("call", [1, 7, 8, 13, 24])
@pytest.mark.parametrize("final", FINALS)
def test_a_killed_run_ends_with_the_weights_of_one_never_killed(tmp_path: Path, final: str, call: int) -> None:
    run = story(final)
    whole = run.whole(tmp_path / "whole")
    run.stopped(tmp_path / "killed", crash_at(call))
    assert_same(run.resumed(tmp_path / "killed"), whole)


@pytest.mark.parametrize("final", FINALS)
def test_a_killed_run_ends_with_the_checkpoints_of_one_never_killed(tmp_path: Path, final: str) -> None:
    run = story(final)
    run.whole(tmp_path / "whole")
    run.stopped(tmp_path / "killed", crash_at(17))
    run.resumed(tmp_path / "killed")
    left = [sorted(path.name for path in (tmp_path / name / "checkpoints").iterdir()) for name in ("whole", "killed")]
    assert left[0] == left[1]


@pytest.mark.parametrize("call", [9, 13, 16])
@pytest.mark.parametrize("final", FINALS)
def test_a_killed_run_loses_patience_when_one_never_killed_does(tmp_path: Path, final: str, call: int) -> None:
    run = story(final, patience=2)
    whole = run.whole(tmp_path / "whole")
    run.stopped(tmp_path / "killed", crash_at(call))
    assert_same(run.resumed(tmp_path / "killed"), whole)


def test_the_resumed_loop_knows_that_patience_was_lost_before_the_kill(tmp_path: Path) -> None:
    run = story("last", patience=2)
    run.whole(tmp_path)
    outcome = make(run.task(crash_at(1)), run.config, tmp_path).run(resume=True)
    assert (outcome.stopped_early, outcome.progress.step) == (True, 8)


@pytest.mark.parametrize("final", FINALS)
def test_a_killed_run_has_the_lines_of_one_never_killed(tmp_path: Path, final: str) -> None:
    run = story(final)
    run.whole(tmp_path / "whole")
    run.stopped(tmp_path / "killed", crash_at(17))
    run.resumed(tmp_path / "killed")
    assert lines_but_times(tmp_path / "killed") == lines_but_times(tmp_path / "whole")


def test_a_run_killed_between_two_lines_has_the_lines_of_one_never_killed(tmp_path: Path) -> None:
    run = story("last", log_every=4)
    run.whole(tmp_path / "whole")
    run.stopped(tmp_path / "killed", crash_at(14))  # the checkpoint is that of step 6, the lines are of 4 and 8
    run.resumed(tmp_path / "killed")
    for found, wanted in zip(lines_but_times(tmp_path / "killed"), lines_but_times(tmp_path / "whole"), strict=True):
        assert found == pytest.approx(wanted, rel=1e-6)


def test_time_goes_on_from_the_time_before_the_kill(tmp_path: Path) -> None:
    run = story("last")
    run.stopped(tmp_path, crash_at(17))
    run.resumed(tmp_path)
    seconds = [line["seconds"] for line in lines(tmp_path) if "seconds" in line]
    assert seconds == sorted(seconds)


def test_a_real_model_with_shared_weights_in_bf16_goes_on_as_if_never_killed(tmp_path: Path) -> None:
    class Real(Toy):
        def __init__(self, look: Look = nothing) -> None:
            super().__init__(look=look)
            torch.manual_seed(1)
            self.model = encoder_decoder(vocabulary=VOCABULARY).build()

        def loss(self, forward: Forward, batch: Batch) -> Loss:
            return super().loss(lambda source: forward(source, source, source_lengths=batch.source_lengths), batch)

        def plain_loss(self, forward: Forward, batch: Batch) -> Loss:
            return super().plain_loss(lambda source: forward(source, source), batch)

    config = settings(precision="bf16", steps=6, save_every=2, final="mean", average=2)
    whole = trained(Real(), config, tmp_path / "whole")
    with pytest.raises(Crash):
        make(Real(crash_at(6)), config, tmp_path / "killed").run()
    assert_same(trained(Real(), config, tmp_path / "killed", resume=True), whole)


def test_a_run_killed_again_and_again_ends_with_the_same_weights(tmp_path: Path) -> None:
    run = story("mean")
    whole = run.whole(tmp_path / "whole")
    run.stopped(tmp_path / "killed", crash_at(9))
    for _ in range(2):  # calls count from where it went on
        with pytest.raises(Crash):
            make(run.task(crash_at(8)), run.config, tmp_path / "killed").run(resume=True)
    assert_same(run.resumed(tmp_path / "killed"), whole)


def test_a_run_killed_after_its_last_checkpoint_only_has_to_end(tmp_path: Path) -> None:
    run = story("mean")
    whole = run.whole(tmp_path)
    task = run.task(crash_at(1))
    assert_same(trained(task, run.config, tmp_path, resume=True), whole)


def test_without_a_checkpoint_a_resumed_run_starts_at_its_beginning_and_says_so(tmp_path: Path) -> None:
    run = story("last")
    run.stopped(tmp_path, crash_at(3))
    heard = Heard()
    run.resumed(tmp_path, heard)
    assert heard.sentences == ["There is no checkpoint to go on from, so the run starts at its beginning."]


@pytest.mark.parametrize("final", FINALS)
def test_a_damaged_checkpoint_is_passed_over_and_the_weights_are_the_same(tmp_path: Path, final: str) -> None:
    run = story(final)
    whole = run.whole(tmp_path / "whole")
    run.stopped(tmp_path / "killed", crash_at(20))
    flip(tmp_path / "killed" / "checkpoints" / "step-00000009" / "model.safetensors")
    heard = Heard()
    assert_same(run.resumed(tmp_path / "killed", heard), whole)
    assert "The checkpoint of step 9 is passed over" in heard.sentences[0]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 0xFF
    path.write_bytes(data)


# Stopped politely


def ask_to_stop_at(*numbers: int) -> Look:
    def look(call: int, batch: Batch) -> None:
        if call in numbers:
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "this would end the tests"
            os.kill(os.getpid(), signal.SIGTERM)

    return look


def test_a_run_that_is_asked_to_stop_ends_its_step_and_saves_it(tmp_path: Path) -> None:
    loop = make(story("last").task(ask_to_stop_at(9)), story("last").config, tmp_path)
    with pytest.raises(StoppedError, match="stopped after step 5"):
        loop.run()
    assert loop.checkpoints.read(5).facts["progress"]["step"] == 5


@pytest.mark.parametrize("call", [1, 9, 12, 15])
@pytest.mark.parametrize("final", FINALS)
def test_a_stopped_run_ends_with_the_weights_of_one_never_stopped(tmp_path: Path, final: str, call: int) -> None:
    run = story(final)
    whole = run.whole(tmp_path / "whole")
    run.stopped(tmp_path / "stopped", ask_to_stop_at(call))
    assert_same(run.resumed(tmp_path / "stopped"), whole)


@pytest.mark.parametrize("step", [5, 6, 7])
@pytest.mark.parametrize("final", FINALS)
def test_the_checkpoint_of_a_stop_is_gone_at_the_end(tmp_path: Path, final: str, step: int) -> None:
    run = story(final)
    run.whole(tmp_path / "whole")
    run.stopped(tmp_path / "stopped", ask_to_stop_at(2 * step))
    run.resumed(tmp_path / "stopped")
    left = [sorted(path.name for path in (tmp_path / name / "checkpoints").iterdir()) for name in ("whole", "stopped")]
    assert left[0] == left[1]


def test_the_checkpoint_of_a_stop_right_after_the_best_validation_is_gone_at_the_end(tmp_path: Path) -> None:
    run = story("mean", steps=9)
    run.whole(tmp_path / "whole")
    run.stopped(tmp_path / "stopped", ask_to_stop_at(8))
    run.resumed(tmp_path / "stopped")
    left = [sorted(path.name for path in (tmp_path / name / "checkpoints").iterdir()) for name in ("whole", "stopped")]
    assert left[0] == left[1]


def test_a_stop_leaves_its_checkpoint_though_a_damaged_one_is_newer(tmp_path: Path) -> None:
    run = story("last")
    run.stopped(tmp_path, crash_at(20))
    flip(tmp_path / "checkpoints" / "step-00000009" / "model.safetensors")
    loop = make(run.task(ask_to_stop_at(2)), run.config, tmp_path)
    with pytest.raises(StoppedError, match="step 7"):
        loop.run(resume=True)
    assert 7 in loop.checkpoints.steps()


def test_asked_in_its_last_step_a_run_ends_as_usual(tmp_path: Path) -> None:
    run = story("last")
    assert make(run.task(ask_to_stop_at(24)), run.config, tmp_path).run().progress.step == 12


def test_asked_twice_a_run_stops_at_once(tmp_path: Path) -> None:
    run = story("last")
    loop = make(run.task(ask_to_stop_at(9, 10)), run.config, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    assert loop.checkpoints.steps() == [3]


@pytest.mark.parametrize("look", [nothing, ask_to_stop_at(3), crash_at(3)], ids=["ended", "stopped", "killed"])
def test_signals_go_to_whoever_had_them_before(tmp_path: Path, look: Look) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with contextlib.suppress(Crash, StoppedError):
        make(story("last").task(look), story("last").config, tmp_path).run()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


# Which weights a run ends with


def test_a_run_stops_after_as_many_validations_without_progress_as_it_has_patience(tmp_path: Path) -> None:
    losses = {1: 3.0, 2: 1.0, 3: 2.0, 4: 1.5, 5: 1.0, 6: 0.1}  # as good as the best is not better
    outcome = make(Toy(losses=losses), settings(validate_every=1, patience=3), tmp_path).run()
    assert (outcome.progress.step, outcome.progress.best_step, outcome.stopped_early) == (5, 2, True)


def test_something_better_gives_new_patience(tmp_path: Path) -> None:
    losses = dict(enumerate([3.0, 4.0, 2.0, 4.0, 1.0, 4.0, 0.5, 4.0], start=1))
    outcome = make(Toy(losses=losses), settings(validate_every=1, patience=2), tmp_path).run()
    assert (outcome.progress.step, outcome.stopped_early) == (8, False)


def test_without_patience_to_lose_a_run_goes_to_its_end(tmp_path: Path) -> None:
    losses = {step: float(step) for step in range(1, 9)}
    assert make(Toy(losses=losses), settings(validate_every=1), tmp_path).run().progress.step == 8


@pytest.mark.parametrize(("watch", "best"), [("loss", 3), ("score", 6)])
def test_the_best_is_what_is_watched(tmp_path: Path, watch: str, best: int) -> None:
    losses = {step: abs(step - 3.0) for step in range(1, 9)}
    scores = {step: -abs(step - 6.0) for step in range(1, 9)}
    task = Toy(losses=losses, scores=scores)
    outcome = make(task, settings(validate_every=1, watch=watch), tmp_path).run()
    assert outcome.progress.best_step == best


def test_a_validation_loss_that_is_not_a_number_is_never_the_best(tmp_path: Path) -> None:
    losses = dict(enumerate([math.nan, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], start=1))
    outcome = make(Toy(losses=losses), settings(validate_every=1), tmp_path).run()
    assert outcome.progress.best_step == 2


def test_a_task_that_has_a_score_and_no_loss_is_judged_by_its_score(tmp_path: Path) -> None:
    task = Toy(validation=False, scores={4: 2.0, 8: 1.0})
    assert make(task, settings(), tmp_path).run().progress.best_step == 4


def test_the_best_weights_are_those_of_the_best_step(tmp_path: Path) -> None:
    losses = {step: abs(step - 5.0) for step in range(1, 9)}
    loop = make(Toy(losses=losses), settings(validate_every=1, final="best"), tmp_path)
    seen = at_each_step(loop)
    outcome = loop.run()
    assert_same(weights(loop.model), seen[4])
    assert outcome.weights == "the weights of step 5, best on the validation set"


def test_without_a_validation_set_the_last_weights_are_the_best_there_are(tmp_path: Path) -> None:
    loop = make(Toy(validation=False), settings(final="best"), tmp_path)
    seen = at_each_step(loop)
    assert loop.run().weights == "the last weights"
    assert_same(weights(loop.model), seen[-1])


def test_the_mean_is_that_of_the_last_checkpoints(tmp_path: Path) -> None:
    loop = make(Toy(), settings(steps=12, save_every=3, final="mean", average=3, keep=4), tmp_path)
    seen = at_each_step(loop)
    assert loop.run().weights == "the mean of the last 3 checkpoints"
    wanted = {name: (seen[5][name] + seen[8][name] + seen[11][name]) / 3 for name in seen[0]}
    assert_close(weights(loop.model), wanted)


def test_the_mean_of_a_run_that_lost_patience_ends_with_the_step_at_which_it_did(tmp_path: Path) -> None:
    losses = {step: float(step) for step in range(1, 9)}
    config = settings(validate_every=1, save_every=2, patience=2, final="mean", average=3)
    loop = make(Toy(losses=losses), config, tmp_path)  # saved after 2, loses patience after 3
    seen = at_each_step(loop)
    assert loop.run().weights == "the mean of the last 2 checkpoints"
    assert_close(weights(loop.model), {name: (seen[1][name] + seen[2][name]) / 2 for name in seen[0]})


def test_a_run_that_loses_patience_before_its_first_checkpoint_still_ends(tmp_path: Path) -> None:
    losses = {step: float(step) for step in range(1, 9)}
    config = settings(validate_every=1, save_every=8, patience=2, final="mean")
    loop = make(Toy(losses=losses), config, tmp_path)
    seen = at_each_step(loop)
    loop.run()
    assert_same(weights(loop.model), seen[2])


def test_the_moving_average_is_the_formulas(tmp_path: Path) -> None:
    loop = make(Toy(), settings(final="moving", moving=0.3), tmp_path)
    wanted = weights(loop.model)
    seen = at_each_step(loop)
    loop.run()
    for step, now in enumerate(seen, start=1):
        stays = min(0.3, (1 + step) / (10 + step))  # below 0.3 for the first two steps only
        wanted = {name: stays * wanted[name] + (1 - stays) * now[name] for name in wanted}
    assert_close(weights(loop.model), wanted)


def test_the_moving_average_is_what_is_validated_where_it_is_what_the_run_ends_with(tmp_path: Path) -> None:
    task = Toy()
    trained(task, settings(final="moving", moving=0.9), tmp_path)
    losses = [word_by_word(task.model, batch) for batch in task.validation()]
    wanted = float(sum(loss.plain for loss in losses)) / int(sum(loss.count for loss in losses))
    assert lines(tmp_path)[-1]["valid/loss"] == pytest.approx(wanted, rel=1e-12)


def test_the_moving_average_does_not_change_the_steps(tmp_path: Path) -> None:
    plain, averaged = (
        make(Toy(dropout=0.2), settings(**moving), tmp_path / str(number))
        for number, moving in enumerate([{}, {"final": "moving", "moving": 0.9}])
    )
    steps = []
    for loop in (plain, averaged):
        torch.manual_seed(9)
        seen = at_each_step(loop)
        loop.run()
        steps.append(seen[-1])
    assert_same(*steps)


# What goes wrong


class Poison:
    """From a call on, weights that are no numbers."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.task: Toy

    def __call__(self, call: int, batch: Batch) -> None:
        if call == self.number:
            with torch.no_grad():
                next(self.task.model.parameters()).fill_(math.nan)


def poisoned(number: int, config: TrainConfig, folder: Path) -> Loop[Batch]:
    poison = Poison(number)
    poison.task = Toy(look=poison, validation=False)
    return make(poison.task, config, folder)


def test_a_loss_that_is_no_number_stops_the_run_with_its_step_and_what_to_change(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no longer a number at step 6\. Lower train\.schedule\.rate"):
        poisoned(6, settings(), tmp_path).run()


def test_a_loss_that_is_no_number_leaves_the_last_checkpoint_whole(tmp_path: Path) -> None:
    loop = poisoned(6, settings(save_every=2), tmp_path)
    with pytest.raises(UserError, match="no longer a number"):
        loop.run()
    latest = loop.checkpoints.latest()
    assert latest is not None
    assert latest.step == 4
    assert all(tensor.isfinite().all() for tensor in latest.model.values())


def test_weights_that_are_no_numbers_are_not_saved_before_the_next_line_is_due(tmp_path: Path) -> None:
    loop = poisoned(3, settings(save_every=2, log_every=8), tmp_path)
    with pytest.raises(UserError, match="no longer a number"):
        loop.run()
    latest = loop.checkpoints.latest()
    assert latest is not None
    assert all(tensor.isfinite().all() for tensor in latest.model.values())


def test_a_checkpoint_that_cannot_be_written_is_an_error_and_the_one_before_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_later(path: Path, tensors: Mapping[str, Tensor]) -> None:
        if "step-00000008" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_tensors(path, tensors)

    monkeypatch.setattr("regard.train.checkpoint.write_tensors", full_later)
    loop = make(Toy(), settings(), tmp_path)
    with pytest.raises(UserError, match=r"step-00000008.*No space left on device"):
        loop.run()
    assert loop.checkpoints.steps() == [4]
    assert loop.checkpoints.read(4).step == 4
