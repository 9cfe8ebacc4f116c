"""The one training loop.

A step takes `accumulate` batches, sums their gradients, clips them and moves the weights. Every so often the loop
writes down how it goes, validates, and saves a checkpoint. Everything a step depends on (weights, optimiser, place in
the data, random numbers, what was best so far) is in the checkpoint, so a run that goes on from one takes the same
steps as a run never stopped: bit for bit on a CPU.

If a batch does not fit into memory, it is cut into parts whose gradients are summed: the same step, more slowly. The
number of parts stays with the run.
"""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.train.checkpoint import Checkpoint, Checkpoints, random_state, restore_random_state
from regard.train.gradient import CapturedGradients, Gradients, in_precision
from regard.train.loss import Loss
from regard.train.metrics import Metrics
from regard.train.settings import TrainConfig
from regard.train.surroundings import StoppedError, asked_to_stop, determinism, ready_kernels
from regard.train.tally import Progress, Tally
from regard.train.task import AnyBatch, Measured, Task


class Listener(Protocol):
    """Whoever wants to know how a run goes."""

    def say(self, sentence: str) -> None:
        """Something a person should know."""
        ...

    def stepped(self, step: int, values: Mapping[str, float]) -> None:
        """Some steps were taken."""
        ...

    def validated(self, step: int, values: Mapping[str, float]) -> None: ...


class Silent:
    """Hears nothing."""

    def say(self, sentence: str) -> None: ...

    def stepped(self, step: int, values: Mapping[str, float]) -> None: ...

    def validated(self, step: int, values: Mapping[str, float]) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """How a run ended: with which weights (put into the model), after how much work."""

    progress: Progress
    weights: str
    stopped_early: bool


class Loop(Generic[AnyBatch]):
    """A run under way in a folder, whose `checkpoints/` and `metrics.jsonl` are its own."""

    def __init__(
        self,
        task: Task[AnyBatch],
        config: TrainConfig,
        folder: Path,
        *,
        device: torch.device | str = "cpu",
        listener: Listener | None = None,
    ) -> None:
        self.task, self.config, self.folder = task, config, folder
        self.device = torch.device(device)
        self.listener: Listener = listener or Silent()
        self.model = task.model.to(self.device)
        self.optimiser = config.optimiser.build(self.model)
        self.checkpoints = Checkpoints(folder / "checkpoints", keep=config.keep, say=self.listener.say)
        self.progress = Progress()
        self.moving: dict[str, Tensor] = {}
        if config.moving:
            self.moving = {name: tensor.detach().clone() for name, tensor in self._weights().items()}
        self._gradients = self._gradient_maker()
        self._tally = Tally(0)
        self._began = 0.0

    def run(self, *, resume: bool = False) -> Outcome:
        """Train to the end, from the start or from the newest whole checkpoint."""
        with determinism(self.config.deterministic), ready_kernels():
            if resume:
                self._resume()
            metrics = Metrics(self.folder, after=self.progress.step)
            try:
                stopped = self._train(metrics)
                return self._finish(stopped)
            finally:
                metrics.close()

    def steps(self, count: int) -> Iterator[Loss]:
        """Some steps and their losses, and nothing else: no validation, no checkpoint. For whoever measures."""
        batches = self.task.batches.epochs()
        self.model.train()
        with determinism(self.config.deterministic), ready_kernels():
            for _ in range(count):
                yield self._step(batches)

    def _train(self, metrics: Metrics) -> bool:
        """All steps; whether they ended before their time."""
        config = self.config
        self._began = time.perf_counter() - self.progress.seconds
        self._tally.start()
        batches = self.task.batches.epochs()
        self.model.train()
        with asked_to_stop() as asked:
            while self.progress.step < config.steps and not self._out_of_patience():
                self._tally.add(self._step(batches))
                step = self.progress.step
                last = step == config.steps
                if step % config.log_every == 0 or last:
                    self._write_down(metrics)
                begin = time.perf_counter()
                better = (step % config.validate_every == 0 or last) and self._validate(metrics)
                stop = asked() and not last
                regular = step % config.save_every == 0 or last or self._out_of_patience()
                if regular or stop or (better and config.final == "best"):
                    self._save(best=better and (regular or config.final == "best"), passing=not regular)
                self._tally.leave_out(time.perf_counter() - begin)
                if stop:
                    raise StoppedError(step)
        return self.progress.step < config.steps

    def _write_down(self, metrics: Metrics) -> None:
        self._tick()
        step = self.progress.step
        values = self._tally.values(self.progress) | {"rate": self.config.schedule.at(step)}
        if not math.isfinite(values["loss"]):
            raise self._ran_away()
        metrics.write(step, values)
        self.listener.stepped(step, values)
        self._tally = Tally(self.progress.words)

    def _step(self, batches: Iterator[AnyBatch]) -> Loss:
        """One move of the weights."""
        work = [next(batches) for _ in range(self.config.accumulate)]
        words = sum(batch.count for batch in work)
        scale = torch.full((), 1.0 / max(words, 1), device=self.device)
        while True:
            try:
                loss = self._add_gradients(work, scale)
                break
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                largest = max(len(batch.split(2**20)) for batch in work)
            self._cut_smaller(largest)
        if self.config.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        step = self.progress.step + 1
        self.optimiser.step(self.config.schedule.at(step))
        self.optimiser.forget_gradients(in_place=isinstance(self._gradients, CapturedGradients))
        if self.moving:
            self._move_average(step)
        self.progress = replace(self.progress, step=step, words=self.progress.words + words)
        return loss

    def _add_gradients(self, work: list[AnyBatch], scale: Tensor) -> Loss:
        total: Loss | None = None
        for batch in work:
            parts = [batch] if self.progress.parts == 1 else batch.split(self.progress.parts)
            for part in parts:
                loss = self._gradients.add(self._here(part), scale)
                total = loss if total is None else total + loss
        assert total is not None
        return total

    def _here(self, batch: Any) -> Any:
        if self.device.type == "cuda":
            return batch.pin_memory().to(self.device, non_blocking=True)
        return batch.to(self.device)

    def _cut_smaller(self, rows: int) -> None:
        """Batches in twice as many parts from now on; refused when they cannot be cut any more."""
        parts = 2 * self.progress.parts
        self.optimiser.forget_gradients()
        self._gradients = Gradients(self.task, self.config.precision)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.progress.parts >= rows:
            raise UserError(
                "One row of a batch does not fit into memory. Lower data.longest or train.tokens, compute in bf16 "
                "(train.precision), or make the model smaller."
            )
        self.progress = replace(self.progress, parts=parts)
        self.listener.say(
            f"Out of memory at step {self.progress.step + 1}: from now on each batch is computed in {parts} parts, "
            f"which gives the same result more slowly. A smaller train.tokens ({self.config.tokens} now) with a "
            "larger train.accumulate would spare the attempt."
        )

    def _gradient_maker(self) -> Gradients[AnyBatch]:
        captured = self.device.type == "cuda" and self.config.capture
        return (CapturedGradients if captured else Gradients)(self.task, self.config.precision)

    def _move_average(self, step: int) -> None:
        """The moving average follows faster at first, so that it forgets where the weights began."""
        stays = min(self.config.moving, (1 + step) / (10 + step))
        ours = list(self.moving.values())
        theirs = [tensor.detach() for tensor in self._weights().values()]
        torch._foreach_lerp_(ours, theirs, 1 - stays)

    def _weights(self) -> dict[str, Tensor]:
        """All of the model's state that is numbers with fractions, in a fixed order."""
        return {name: tensor for name, tensor in self.model.state_dict().items() if tensor.is_floating_point()}

    def _validate(self, metrics: Metrics) -> bool:
        """Loss and score on the validation set; whether they are the best so far."""
        try:
            with self._final_kind_of_weights():
                values = self._validation_loss()
                measured = self.task.measure()
        except RuntimeError as error:
            if not _out_of_memory(error):
                raise
            raise UserError(
                f"Out of memory in the validation at step {self.progress.step:,}. Shorten the longest lines of the "
                "validation set, or make the model smaller; training goes on with --resume."
            ) from None
        if not values and measured is None:
            return False
        if measured is not None:
            values |= measured.details
        self._tick()
        better = self._judge(values, measured)
        metrics.write(self.progress.step, {f"valid/{name}": value for name, value in values.items()})
        self.listener.validated(self.progress.step, values)
        return better

    @torch.no_grad()
    def _validation_loss(self) -> dict[str, float]:
        self.model.eval()
        forward = in_precision(self.model, self.config.precision)
        total: Loss | None = None
        for batch in self.task.validation():
            loss = self.task.plain_loss(forward, self._here(batch))
            total = loss if total is None else total + loss
        return {} if total is None else {"loss": float(total.plain) / max(float(total.count), 1.0)}

    def _judge(self, values: Mapping[str, float], measured: Measured | None) -> bool:
        if measured is not None and (self.config.watch == "score" or "loss" not in values):
            score = measured.score
        else:
            score = -values["loss"]
        if math.isfinite(score) and (self.progress.best is None or score > self.progress.best):
            self.progress = replace(self.progress, best=score, best_step=self.progress.step, stale=0)
            return True
        self.progress = replace(self.progress, stale=self.progress.stale + 1)
        return False

    def _out_of_patience(self) -> bool:
        return 0 < self.config.patience <= self.progress.stale

    @contextlib.contextmanager
    def _final_kind_of_weights(self) -> Iterator[None]:
        """Validate the moving average where that is what the run ends with; then training goes on as it was."""
        kept = None
        if self.config.final == "moving":
            kept = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
            self.model.load_state_dict(kept | self.moving)
        try:
            self.model.eval()
            yield
        finally:
            if kept is not None:
                self.model.load_state_dict(kept)
            self.model.train()

    def _ran_away(self) -> UserError:
        return UserError(
            f"The loss is no longer a number at step {self.progress.step:,}. Lower train.schedule.rate, raise "
            "train.schedule.warmup, or clip gradients (train.clip); then start again."
        )

    def _save(self, *, best: bool, passing: bool) -> None:
        """Write a checkpoint; never one of weights that are no numbers, which nobody could go on from."""
        if not bool(torch.stack([weight.isfinite().all() for weight in self.model.parameters()]).all()):
            raise self._ran_away()
        self._tick()
        facts = {"progress": asdict(self.progress), "data": self.task.batches.state(), "log": self._tally.plain()}
        moment = Checkpoint(
            self.progress.step,
            self.model.state_dict(),
            self.optimiser.memory(),
            random_state(),
            facts,
            average=self.moving,
        )
        self.checkpoints.write(moment, best=best, passing=passing)

    def _resume(self) -> None:
        moment = self.checkpoints.latest()
        if moment is None:
            self.listener.say("There is no checkpoint to go on from, so the run starts at its beginning.")
            return
        self.progress = Progress(**moment.facts["progress"])
        self.model.load_state_dict(moment.model)
        self.optimiser.recall(moment.optimiser)
        self.task.batches.restore(moment.facts["data"])
        self._tally = Tally.read(moment.facts["log"], self.device)
        if self.moving:
            self.moving = {name: moment.average[name].to(self.device) for name in self.moving}
        restore_random_state(moment.random)
        self.listener.say(f"Going on from step {self.progress.step:,}.")

    def _finish(self, stopped: bool) -> Outcome:
        """Put the weights the run is to end with into the model."""
        weights = "the last weights"
        match self.config.final:
            case "mean":
                count = min(self.config.average, len(self.checkpoints.regular()))
                self.model.load_state_dict(self.checkpoints.mean(count))
                weights = f"the mean of the last {count} checkpoints"
            case "moving":
                self.model.load_state_dict(self.model.state_dict() | self.moving)
                weights = f"the moving average ({self.config.moving})"
            case "best" if self.progress.best_step:
                self.model.load_state_dict(self.checkpoints.read(self.progress.best_step).model)
                weights = f"the weights of step {self.progress.best_step:,}, best on the validation set"
        self.model.eval()
        return Outcome(self.progress, weights, stopped)

    def _tick(self) -> None:
        self.progress = replace(self.progress, seconds=time.perf_counter() - self._began)


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
