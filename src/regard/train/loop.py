"""The one training loop.

A step takes `accumulate` batches, sums their gradients, clips them and moves the weights. Every so often the loop
writes down how it goes, validates, and saves a checkpoint. Everything a step depends on (weights, optimiser, place in
the data, random numbers, what was best so far) is in the checkpoint, so a run that goes on from one takes the same
steps as a run never stopped: bit for bit on a CPU.

If a batch does not fit into memory, it is cut into parts whose gradients are summed: the same step, more slowly. The
number of parts stays with the run.

Several processes take the same steps together: each has its share of a step's batches, and the gradient is divided by
the words of all of them. What they have to do with each other is in world.py, where the weights lie in layout.py.
"""

import contextlib
import hashlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol

import torch
from torch import Tensor

from regard.errors import UserError
from regard.fast.swift_training import recomputes_recorded
from regard.train.balance import Balance
from regard.train.checkpoint import Checkpoint, Checkpoints, random_state, restore_random_state
from regard.train.deal import Pass, check_deal, deal
from regard.train.gradient import CapturedGradients, Gradients, in_precision
from regard.train.layout import lay_out
from regard.train.loss import Loss
from regard.train.metrics import Metrics, NoMetrics
from regard.train.mover import mover_of
from regard.train.settings import TrainConfig
from regard.train.surroundings import StoppedError, asked_to_stop, determinism, ready_kernels
from regard.train.tally import Progress, Tally
from regard.train.task import AnyBatch, Measured, Task
from regard.train.world import ALONE, World


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
        world: World = ALONE,
    ) -> None:
        self.task, self.config, self.folder, self.world = task, config, folder, world
        self.device = torch.device(device)
        self.listener: Listener = listener or Silent()
        check_deal(task.batches, config, world)
        self.layout = lay_out(
            task.model, self.device, config.precision, config.parallel, world, recompute=config.recompute
        )
        self.model = self.layout.plain
        self.optimiser = config.optimiser.build(self.layout.module)
        self.checkpoints = Checkpoints(
            folder / "checkpoints", keep=config.keep, say=self.listener.say, world=world, cut=self.layout.cut
        )
        if not world.first:  # each draws its own random numbers, the first those of a single process
            torch.manual_seed(_seed(config.seed, world.rank, 0))
        self.progress = Progress()
        self.moving: dict[str, Tensor] = {}
        if config.moving:
            self.moving = {name: tensor.detach().clone() for name, tensor in self._weights().items()}
        self._gradients = self._gradient_maker()
        self._balance = Balance(self.layout.module)
        self._tally = Tally(0)
        self._began = 0.0

    def run(self, *, resume: bool = False) -> Outcome:
        """Train to the end, from the start or from the newest whole checkpoint."""
        with determinism(self.config.deterministic), ready_kernels(), self.world.watching():
            if resume:
                self._resume()
            metrics = Metrics(self.folder, after=self.progress.step) if self.world.first else NoMetrics()
            try:
                stopped = self._train(metrics)
                return self._finish(stopped)
            finally:
                metrics.close()

    def how(self) -> str:
        """A sentence on how steps are computed."""
        kind, reason = ("GPU" if self.device.type == "cuda" else "CPU"), self.layout.why_plain(self.config.precision)
        recorded = ", recorded and replayed" if isinstance(self._gradients, CapturedGradients) else ""
        if reason is None:
            return f"Steps take the fast form for this {kind}{recorded}."
        return f"Steps take the plain form{recorded}, not the fast one: {reason}."

    def steps(self, count: int) -> Iterator[Loss]:
        """Some steps and their losses, and nothing else: no validation, no checkpoint. For whoever measures."""
        batches = self.task.batches.epochs()
        self.layout.module.train()
        with determinism(self.config.deterministic), ready_kernels():
            for _ in range(count):
                yield self._step(batches)

    def _train(self, metrics: Metrics | NoMetrics) -> bool:
        """All steps; whether they ended before their time."""
        config = self.config
        self._began = time.perf_counter() - self.progress.seconds
        self._tally.start()
        batches = self.task.batches.epochs()
        self.layout.module.train()
        with asked_to_stop(patient=self.world.size > 1) as asked:
            while self.progress.step < config.steps and not self._out_of_patience():
                self._tally.add(self._step(batches))
                step = self.progress.step
                last = step == config.steps
                if step % config.log_every == 0 or last:
                    self._write_down(metrics)
                begin = time.perf_counter()
                better = (step % config.validate_every == 0 or last) and self._validate(metrics)
                stop = self.world.any(asked()) and not last
                regular = step % config.save_every == 0 or last or self._out_of_patience()
                if regular or stop or (better and config.final == "best"):
                    self._save(best=better and (regular or config.final == "best"), passing=not regular)
                self._tally.leave_out(time.perf_counter() - begin)
                if stop:
                    raise StoppedError(step)
        return self.progress.step < config.steps

    def _write_down(self, metrics: Metrics | NoMetrics) -> None:
        self._tick()
        step = self.progress.step
        values = self._tally.values(self.progress, self.world) | {"rate": self.config.schedule.at(step)}
        if not math.isfinite(values["loss"]):
            raise self._ran_away()
        metrics.write(step, values)
        self.listener.stepped(step, values)
        self._tally = Tally(self.progress.words)

    def _step(self, batches: Iterator[AnyBatch]) -> Loss:
        """One move of the weights."""
        work = deal(self.task.batches, batches, self.config.accumulate, self.world)
        while True:
            passes = [part for one in work for part in one.split(self.progress.parts)]
            theirs = self.world.each([sum(one.batch.count for one in work if one.counted), len(passes)])
            words = sum(count for count, _ in theirs)
            # PyTorch takes the mean over processes where the sum is meant.
            scale = torch.full((), self.world.size / max(words, 1), device=self.device)
            try:
                loss = self._add_gradients(passes, max(count for _, count in theirs), scale)
                break
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                largest = max(len(one.batch.split(2**20)) for one in work)
            self._cut_smaller(largest)
        step = self.progress.step + 1
        self._gradients.move(self.optimiser, self.config.schedule.at(step), self.config.clip)
        self._tally.add_loads(self._balance.settle(self.world))
        if self.moving:
            self._move_average(step)
        self.progress = replace(self.progress, step=step, words=self.progress.words + words)
        return loss

    def _add_gradients(self, passes: list[Pass[AnyBatch]], most: int, scale: Tensor) -> Loss:
        """All passes over this process' work, and more that do not count until it has as many as another (`most`)."""
        self._balance.forget()
        total: Loss | None = None
        nothing = torch.zeros_like(scale)
        for number in range(most):
            one = passes[number] if number < len(passes) else Pass(passes[-1].batch, counted=False)
            with self.layout.adding(last=number == most - 1), self._balance.counting(one.counted):
                loss = self._gradients.add(self._here(one.batch), scale if one.counted else nothing, only=most == 1)
            if not one.counted:
                loss = Loss(0 * loss.total, 0 * loss.plain, 0 * loss.count)
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
        keeps_all = not self.config.recompute
        if self.world.size > 1:  # the others are in the middle of the step and cannot be asked to begin it anew
            raise UserError(
                f"Out of memory at step {self.progress.step + 1:,} in process {self.world.rank}. Lower train.tokens "
                f"({self.config.tokens} now) and raise train.accumulate by as much"
                f"{', or set train.recompute=true' if keeps_all else ''}, then start again."
            )
        self.optimiser.forget_gradients()
        self._gradients = Gradients(self.task, self.config.precision, self.layout.forward)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.progress.parts >= rows:
            raise UserError(
                "One row of a batch does not fit into memory. Lower data.longest or train.tokens, compute in bf16 "
                f"(train.precision), {'set train.recompute=true, ' if keeps_all else ''}or make the model smaller."
            )
        self.progress = replace(self.progress, parts=parts)
        self.listener.say(
            f"Out of memory at step {self.progress.step + 1}: from now on each batch is computed in {parts} parts, "
            f"which gives the same result more slowly. A smaller train.tokens ({self.config.tokens} now) with a "
            f"larger train.accumulate{', or train.recompute=true,' if keeps_all else ''} would spare the attempt."
        )

    def _gradient_maker(self) -> Gradients[AnyBatch]:
        captured = self.device.type == "cuda" and self.config.capture and self.world.size == 1
        if captured and self.config.recompute and not recomputes_recorded(self.model):
            captured = False
            self.listener.say(
                "Passes are not recorded (train.capture): with train.recompute dropout has to be drawn twice, which "
                "without the fast form of this model a recording cannot do."
            )
        maker = CapturedGradients[AnyBatch] if captured else Gradients[AnyBatch]
        mover = mover_of(self.optimiser, self.layout.forward) if self.world.size == 1 else None
        return maker(self.task, self.config.precision, self.layout.forward, mover)

    def _move_average(self, step: int) -> None:
        """The moving average follows faster at first, so that it forgets where the weights began."""
        stays = min(self.config.moving, (1 + step) / (10 + step))
        ours = [self.layout.here(tensor) for tensor in self.moving.values()]
        theirs = [self.layout.here(tensor.detach()) for tensor in self._weights().values()]
        torch._foreach_lerp_(ours, theirs, 1 - stays)

    def _weights(self) -> dict[str, Tensor]:
        """All of the model's state that is numbers with fractions, in a fixed order."""
        return {name: tensor for name, tensor in self.layout.state().items() if tensor.is_floating_point()}

    def _validate(self, metrics: Metrics | NoMetrics) -> bool:
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
        """Each process takes its share of the batches; the sums are those of all."""
        forward = in_precision(self.model, self.config.precision)
        total: Loss | None = None
        for number, batch in enumerate(self.task.validation()):
            if number % self.world.size == self.world.rank:
                loss = self.task.plain_loss(forward, self._here(batch))
                total = loss if total is None else total + loss
        sums = [0.0, 0.0, 0.0] if total is None else [1.0, float(total.plain), float(total.count)]
        found, plain, count = self.world.sum(sums)
        return {"loss": plain / max(count, 1.0)} if found else {}

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
        with self.layout.at_hand(self.moving if self.config.final == "moving" else None):
            try:
                self.model.eval()
                yield
            finally:
                self.layout.module.train()

    def _ran_away(self) -> UserError:
        return UserError(
            f"The loss is no longer a number at step {self.progress.step:,}. Lower train.schedule.rate, raise "
            "train.schedule.warmup, or clip gradients (train.clip); then start again."
        )

    def _save(self, *, best: bool, passing: bool) -> None:
        """Write a checkpoint; never one of weights that are no numbers, which nobody could go on from."""
        here = [self.layout.here(weight).isfinite().all() for weight in self.layout.module.parameters()]
        if self.world.any(not bool(torch.stack(here).all())):
            raise self._ran_away()
        self._tick()
        facts = {
            "progress": asdict(self.progress),
            "data": self.task.batches.state(),
            "log": self._tally.plain(self.world),
        }
        moment = Checkpoint(
            self.progress.step,
            self.layout.state(),
            self.optimiser.memory(),
            random_state(self.world),
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
        own = self.layout.own
        self.layout.load(moment.model)
        # A key is the parameter's name and what is remembered of it.
        self.optimiser.recall({key: own(key.rpartition("/")[0], value) for key, value in moment.optimiser.items()})
        self.task.batches.restore(moment.facts["data"])
        self._tally = Tally.read(moment.facts["log"], self.device, self.world)
        if self.moving:
            self.moving = {name: own(name, moment.average[name]).to(self.device) for name in self.moving}
        seed = _seed(self.config.seed, self.world.rank, self.progress.step)
        restore_random_state(moment.random, self.world, seed=seed)
        self.listener.say(f"Going on from step {self.progress.step:,}.")

    def _finish(self, stopped: bool) -> Outcome:
        """Put the weights the run is to end with into the model."""
        weights = "the last weights"
        match self.config.final:
            case "mean":
                count = min(self.config.average, len(self.checkpoints.regular()))
                self.layout.end_with(self.checkpoints.mean(count))
                weights = f"the mean of the last {count} checkpoints"
            case "moving":
                self.layout.end(self.moving)
                weights = f"the moving average ({self.config.moving})"
            case "best" if self.progress.best_step:
                self.layout.end_with(self.checkpoints.read(self.progress.best_step).model)
                weights = f"the weights of step {self.progress.best_step:,}, best on the validation set"
            case _:
                self.layout.end()
        self.model.eval()
        return Outcome(self.progress, weights, stopped)

    def _tick(self) -> None:
        self.progress = replace(self.progress, seconds=time.perf_counter() - self._began)


def _seed(seed: int, rank: int, step: int) -> int:
    """Another seed for each process, and for each step that one may have to begin at."""
    words = hashlib.sha256(f"{seed} {rank} {step}".encode()).digest()
    return int.from_bytes(words[:7], "big")


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
