"""The trainer: the one training loop.

A step takes `grad_accumulation` batches, sums their gradients, clips them and updates the weights. At intervals the
trainer logs, validates and saves a checkpoint. Everything a step depends on (weights, optimizer state, position in the
data, random number generators, the best validation so far) is part of the checkpoint, so a resumed run takes the same
steps as one that was never interrupted: bit for bit on a CPU.

Several processes take the same steps together: each computes its shard of a step's batches, and the gradient is divided
by the number of targets of all of them (communication: distributed/process_group.py, weights: distributed/parallel.py).
"""

import contextlib
import hashlib
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor

from regard.cost import is_out_of_memory
from regard.errors import UserError
from regard.kernels.cpu.threads import report_busy_cores
from regard.progress import phase
from regard.train.callback import Callback
from regard.train.checkpoint import Checkpoint, CheckpointManager, restore_rng_state, rng_state
from regard.train.config import TrainConfig
from regard.train.cuda_graph_step import CudaGraphStep, uncapturable_reason
from regard.train.distributed.parallel import make_placement
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from regard.train.fused_adam import fused_adam_for
from regard.train.loss import Loss
from regard.train.metrics import MetricsWriter, NullMetricsWriter, RunningStats
from regard.train.mixed_precision import resolve_precision
from regard.train.policies import EMA, BatchSplitter, BestTracker, TrainResult, load_final_weights
from regard.train.runtime import (
    DivergedError,
    StoppedError,
    deterministic_algorithms,
    stop_on_signal,
    without_cudnn_attention,
)
from regard.train.step import ExpertBalance, Pass, TrainStep, check_batch_sharding, forward_in_precision, shard_batches
from regard.train.task import AnyBatch, Task
from regard.train.validation import validation_loss


@dataclass
class TrainState:
    """The trainer's counters."""

    step: int = 0
    tokens: int = 0
    """Targets trained on so far."""
    seconds: float = 0.0
    """Training time, over all sessions."""


class Trainer(Generic[AnyBatch]):
    """Trains a task in a run folder, where it owns `checkpoints/` and `metrics.jsonl`."""

    def __init__(
        self,
        task: Task[AnyBatch],
        config: TrainConfig,
        folder: Path,
        *,
        device: torch.device | str = "cpu",
        callback: Callback | None = None,
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self.device = torch.device(device)
        config = config.model_copy(update={"precision": resolve_precision(config.precision, self.device)})
        self.task, self.config, self.folder, self.process_group = task, config, folder, process_group
        self.callback = callback or Callback()
        check_batch_sharding(task.batches, config, process_group)
        self.placement = make_placement(task.model, self.device, config, process_group)
        self.model = self.placement.model
        self.optimizer = config.optimizer.build(self.placement.module)
        self.checkpoints = CheckpointManager(
            folder / "checkpoints",
            keep=config.keep_checkpoints,
            log=self.callback.log,
            process_group=process_group,
            sharding=self.placement.sharding,
        )
        if not process_group.is_rank0:  # every process draws other random numbers, rank 0 those of a single process
            torch.manual_seed(_seed(config.seed, process_group.rank, 0))
        self.state = TrainState()
        self.best = BestTracker(config.monitor, config.patience)
        self.splitter = BatchSplitter(config, process_group, self.callback.log)
        self.ema = EMA(config.ema_decay, self.placement) if config.ema_decay else None
        self.train_step = self._make_train_step()
        self._experts = ExpertBalance(self.placement.module)
        self._stats = RunningStats(0)
        self._start = 0.0

    def run(self, *, resume: bool = False, validate_first: bool = False) -> TrainResult:
        """Train to the end, from the beginning or from the newest intact checkpoint.

        With `validate_first` a validation comes before the first step, which shows what the initial model can do.
        """
        with (
            deterministic_algorithms(self.config.deterministic),
            without_cudnn_attention(),
            report_busy_cores(self.callback.log),
            self.process_group.detect_lost_peers(),
        ):
            if resume:
                self._resume()
            rank0 = self.process_group.is_rank0
            after = self.state.step or -1  # at step 0 nothing was logged that stays: it is validated again
            writer = MetricsWriter(self.folder, after=after) if rank0 else NullMetricsWriter()
            try:
                if validate_first and self.state.step == 0:
                    self._validate_first(writer)
                stopped_early = self._train(writer)
                return self._finish(stopped_early)
            finally:
                writer.close()

    def steps(self, count: int) -> Iterator[Loss]:
        """Take some steps and nothing else (no validation, no checkpoint), giving their losses. For benchmarks."""
        stream = self.task.batches.epochs()
        self.placement.module.train()
        with deterministic_algorithms(self.config.deterministic), without_cudnn_attention():
            for _ in range(count):
                yield self._take_step(stream)

    def describe_kernels(self) -> str:
        """A sentence on which kernels steps run on."""
        device = "CUDA" if self.device.type == "cuda" else "CPU"
        reason = self.placement.unfused_reason(self.config.precision)
        graphs = " and CUDA graphs" if isinstance(self.train_step, CudaGraphStep) else ""
        if reason is None:
            return f"Using fused {device} kernels{graphs}."
        return f"Using PyTorch's kernels{graphs}, not the fused ones: {reason}."

    def _train(self, writer: MetricsWriter | NullMetricsWriter) -> bool:
        """Take all steps; returns whether early stopping ended them."""
        config = self.config
        self._start = time.perf_counter() - self.state.seconds
        self._stats.start_clock()
        stream = self.task.batches.epochs()
        self.placement.module.train()
        self.callback.on_train_begin(self.state.step, self.state.tokens)
        # Kernels are compiled, and CUDA graphs captured, when they are first needed.
        first: contextlib.AbstractContextManager[Any] = phase("Taking the first step")
        with stop_on_signal(ignore_repeats=self.process_group.size > 1) as signaled:
            while self.state.step < config.steps and not self.best.out_of_patience:
                with first:
                    self._stats.add(self._take_step(stream))
                first = contextlib.nullcontext()
                step = self.state.step
                self.callback.on_step(step, self.state.tokens)
                last = step == config.steps
                if step % config.log_every == 0 or last:
                    self._log(writer)
                begin = time.perf_counter()
                is_best = (step % config.validate_every == 0 or last) and self._validate(writer)
                stop = self.process_group.any(signaled()) and not last
                regular = step % config.save_every == 0 or last or self.best.out_of_patience
                if regular or stop or (is_best and config.final_weights == "best"):
                    self._save(best=is_best and (regular or config.final_weights == "best"), temporary=not regular)
                self._stats.exclude(time.perf_counter() - begin)
                if stop:
                    raise StoppedError(step)
        return self.state.step < config.steps

    def _take_step(self, stream: Iterator[AnyBatch]) -> Loss:
        """One step: forward and backward passes over its batches, then an update of the weights."""
        work = shard_batches(self.task.batches, stream, self.config.grad_accumulation, self.process_group)
        step = self.state.step + 1
        while True:
            passes = [part for one in work for part in one.split(self.splitter.splits)]
            counts = self.process_group.all_gather([sum(one.batch.count for one in work if one.counted), len(passes)])
            tokens = sum(count for count, _ in counts)
            # PyTorch averages gradients over the processes where their sum is needed.
            scale = torch.full((), self.process_group.size / max(tokens, 1), device=self.device)
            try:
                loss = self._backward(passes, max(count for _, count in counts), scale)
                break
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            # Outside of the handler, where the traceback no longer keeps the pass' tensors alive.
            self.splitter.check_can_retry(step)
            self.optimizer.zero_grad()
            self.train_step = TrainStep(self.task, self.config.precision, self.placement.forward)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self.splitter.split_further(step, max(len(one.batch.split(2**20)) for one in work))
        self.train_step.optimizer_step(self.optimizer, self.config.schedule.at(step), self.config.max_grad_norm)
        if expert_load := self._experts.update(self.process_group):
            self._stats.add_expert_load(expert_load)
        if self.ema is not None:
            self.ema.update(step)
        self.state.step, self.state.tokens = step, self.state.tokens + tokens
        return loss

    def _backward(self, passes: list[Pass[AnyBatch]], count: int, scale: Tensor) -> Loss:
        """All passes of this process, and uncounted ones until there are as many as in another process (`count`)."""
        self._experts.reset()
        total: Loss | None = None
        zero = torch.zeros_like(scale)
        for number in range(count):
            one = passes[number] if number < len(passes) else Pass(passes[-1].batch, counted=False)
            with self.placement.sync_grads(last=number == count - 1), self._experts.counting(one.counted):
                batch = self._to_device(one.batch)
                loss = self.train_step.backward(batch, scale if one.counted else zero, only=count == 1)
            if not one.counted:
                loss = Loss(0 * loss.total, 0 * loss.nll, 0 * loss.count)
            total = loss if total is None else total + loss
        assert total is not None
        return total

    def _to_device(self, batch: Any) -> Any:
        if self.device.type == "cuda":
            return batch.pin_memory().to(self.device, non_blocking=True)
        return batch.to(self.device)

    def _make_train_step(self) -> TrainStep[AnyBatch]:
        graphs = self.device.type == "cuda" and self.config.cuda_graphs and self.process_group.size == 1
        checkpointing = self.config.activation_checkpointing
        reason = uncapturable_reason(self.model, activation_checkpointing=checkpointing) if graphs else None
        if reason is not None:
            graphs = False
            self.callback.log(f"Passes are not captured as CUDA graphs (train.cuda_graphs): {reason}.")
        kind = CudaGraphStep[AnyBatch] if graphs else TrainStep[AnyBatch]
        fused_adam = fused_adam_for(self.optimizer, self.placement.forward) if self.process_group.size == 1 else None
        return kind(self.task, self.config.precision, self.placement.forward, fused_adam)

    def _log(self, writer: MetricsWriter | NullMetricsWriter) -> None:
        self._update_clock()
        step, grad_norm = self.state.step, self.train_step.grad_norm()
        metrics = self._stats.metrics(self.state.tokens, self.process_group)
        metrics |= {"seconds": self.state.seconds, "lr": self.config.schedule.at(step)}
        if grad_norm is not None:
            metrics["grad_norm"] = grad_norm
        if not math.isfinite(metrics["loss"]):
            raise DivergedError(self.state.step)
        writer.write(step, metrics)
        self.callback.on_train_metrics(step, metrics)
        self._stats = RunningStats(self.state.tokens)

    def _validate(self, writer: MetricsWriter | NullMetricsWriter) -> bool:
        """Loss and score on the validation set; returns whether they are the best so far."""
        try:
            with phase("Validating"), self._evaluation_weights():
                forward = forward_in_precision(self.model, self.config.precision)
                metrics = validation_loss(self.task, forward, self._to_device, self.process_group)
                evaluation = self.task.evaluate()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise UserError(
                f"Out of memory in the validation at step {self.state.step:,}. Shorten the longest lines of the "
                "validation set, or make the model smaller; then continue with --resume."
            ) from None
        if not metrics and evaluation is None:
            return False
        if evaluation is not None:
            metrics |= evaluation.metrics
        self._update_clock()
        is_best = self.best.update(self.state.step, metrics, evaluation)
        writer.write(self.state.step, {f"valid/{name}": value for name, value in metrics.items()})
        self.callback.on_validation_metrics(self.state.step, metrics)
        return is_best

    def _validate_first(self, writer: MetricsWriter | NullMetricsWriter) -> None:
        """Validate the initial model, for comparison: it is no checkpoint, so it is never the best one.

        Random number generators are left as they were, so the steps are the same as without this validation.
        """
        self._start = time.perf_counter()
        states, best = rng_state(self.process_group), self.best
        self.best = BestTracker(best.monitor, patience=0)
        try:
            self._validate(writer)
            best.initial_score = self.best.score
        finally:
            self.best = best
            restore_rng_state(states, self.process_group)

    @contextlib.contextmanager
    def _evaluation_weights(self) -> Iterator[None]:
        """The model in evaluation mode, with the EMA's weights if the run ends with them."""
        ema = self.ema.weights if self.ema is not None and self.config.final_weights == "ema" else None
        with self.placement.full_weights(ema):
            try:
                self.model.eval()
                yield
            finally:
                self.placement.module.train()

    def _save(self, *, best: bool, temporary: bool) -> None:
        """Write a checkpoint; never one with weights that are not finite, from which nobody could resume."""
        finite = [self.placement.local(weight).isfinite().all() for weight in self.placement.module.parameters()]
        if self.process_group.any(not bool(torch.stack(finite).all())):
            raise DivergedError(self.state.step)
        self._update_clock()
        metadata = {
            "state": asdict(self.state),
            "best": self.best.state_dict(),
            "batch_splits": self.splitter.splits,
            "data": self.task.batches.state_dict(),
            "stats": self._stats.state_dict(self.process_group),
        }
        checkpoint = Checkpoint(
            self.state.step,
            self.placement.state_dict(),
            self.optimizer.state_dict(),
            rng_state(self.process_group),
            metadata,
            ema={} if self.ema is None else self.ema.weights,
        )
        with phase("Saving a checkpoint"):
            self.checkpoints.save(checkpoint, best=best, temporary=temporary)

    def _resume(self) -> None:
        checkpoint = self.checkpoints.load_latest()
        if checkpoint is None:
            self.callback.log("There is no checkpoint to resume from, so the run starts from the beginning.")
            return
        metadata, shard = checkpoint.metadata, self.placement.shard
        self.state = TrainState(**metadata["state"])
        self.best.load_state_dict(metadata["best"])
        self.splitter.splits = metadata["batch_splits"]
        self.placement.load_state_dict(checkpoint.model)
        # A key is PARAMETER/ENTRY; the entries of a parameter are sharded like it.
        state = {key: shard(key.rpartition("/")[0], value) for key, value in checkpoint.optimizer.items()}
        self.optimizer.load_state_dict(state)
        self.task.batches.load_state_dict(metadata["data"])
        self._stats = RunningStats.from_state_dict(metadata["stats"], self.device, self.process_group)
        if self.ema is not None:
            self.ema.load(checkpoint.ema, self.device)
        seed = _seed(self.config.seed, self.process_group.rank, self.state.step)
        restore_rng_state(checkpoint.rng, self.process_group, seed=seed)
        self.callback.log(f"Resuming from step {self.state.step:,}.")

    def _finish(self, stopped_early: bool) -> TrainResult:
        state = self.state
        if self.best.is_worse_than_initial:
            self.callback.log(
                "No validation was better than that of step 0, the model that training started from; a lower "
                "train.schedule.lr or fewer train.steps may help."
            )
        with phase("Loading the final weights"):
            weights = load_final_weights(
                self.config, self.placement, self.checkpoints, self.best.step, self.ema, last_step=state.step
            )
        self.model.eval()
        return TrainResult(state.step, state.tokens, state.seconds, self.splitter.splits, stopped_early, weights)

    def _update_clock(self) -> None:
        self.state.seconds = time.perf_counter() - self._start


def _seed(seed: int, rank: int, step: int) -> int:
    """A different seed for each process, and for each step at which a process may begin."""
    digest = hashlib.sha256(f"{seed} {rank} {step}".encode()).digest()
    return int.from_bytes(digest[:7], "big")
