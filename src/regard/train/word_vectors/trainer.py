"""The trainer of word vectors: blocks of the data, one after the other or on several threads at once.

A step is a block. Its learning rate and its random numbers follow from its place in the run, so with one thread a run
that was interrupted and resumed ends with the same tables, bit for bit. Several threads update the same tables without
waiting for each other (Hogwild, Niu et al. 2011): blocks are counted in order, but how their updates mix is chance.
"""

import math
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch

from regard.errors import UserError
from regard.model.before.word_vectors.static_vectors import StaticVectors
from regard.progress import phase
from regard.train.callback import Callback
from regard.train.checkpoint import Checkpoint, CheckpointManager
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from regard.train.metrics import MetricsWriter
from regard.train.policies import FinalWeights, TrainResult
from regard.train.runtime import StoppedError, stop_on_signal
from regard.train.task import LogFn
from regard.train.word_vectors.config import VectorTrainConfig
from regard.train.word_vectors.engine import BlockLoss, VectorEngine
from regard.train.word_vectors.sampling import block_seed

Block = TypeVar("Block")


@dataclass(frozen=True)
class Piece(Generic[Block]):
    """A block of the data and where it is."""

    block: Block
    size: int
    """How much it is of the epoch: words, for instance."""
    end: int
    """The position behind it, from which the epoch goes on."""


class VectorTask(Protocol):
    """What the trainer needs from a task."""

    @property
    def model(self) -> StaticVectors: ...

    @property
    def process_group(self) -> ProcessGroup: ...

    @property
    def epoch_size(self) -> int:
        """The sum of the sizes of all blocks of an epoch."""
        ...

    @property
    def epoch_steps(self) -> int:
        """The number of blocks of an epoch."""
        ...

    def blocks(self, epoch: int, position: int) -> Iterator[Piece[Any]]:
        """The blocks of an epoch (counted from 0) from a position on; 0 is its beginning."""
        ...

    def engine(self, device: torch.device, log: LogFn) -> VectorEngine[Any]: ...

    def describe_data(self) -> str: ...


@dataclass
class Sums:
    """Losses since some point of the run."""

    total: float = 0.0
    count: float = 0.0

    def add(self, loss: BlockLoss) -> None:
        self.total, self.count = self.total + loss.total, self.count + loss.count

    @property
    def mean(self) -> float:
        return self.total / max(self.count, 1)


@dataclass
class VectorState:
    """Where a run is: all that a checkpoint has besides tensors."""

    step: int = 0
    tokens: int = 0
    """Words trained on so far, or whatever blocks consist of."""
    seconds: float = 0.0
    epoch: int = 0
    """Epochs that are over."""
    position: int = 0
    """Where the current epoch goes on."""
    in_epoch: int = 0
    """The sizes of this epoch's blocks so far."""
    logged_tokens: int = 0
    """Words at the last line of the log."""
    since_log: Sums = field(default_factory=Sums)
    since_epoch: Sums = field(default_factory=Sums)


@dataclass(frozen=True)
class _Step:
    """A block that is being trained on."""

    number: int
    piece: Piece[Any]
    epoch: int
    loss: "Future[BlockLoss]"


class VectorTrainer:
    """Trains the task of a recipe in a run folder, where it owns `checkpoints/` and `metrics.jsonl`."""

    def __init__(
        self,
        task: VectorTask,
        config: VectorTrainConfig,
        folder: Path,
        *,
        device: torch.device | str = "cpu",
        callback: Callback | None = None,
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self.task, self.config, self.folder, self.process_group = task, config, folder, process_group
        self.device, self.callback = torch.device(device), callback or Callback()
        self.engine = task.engine(self.device, self.callback.log)
        self.threads = 1 if config.deterministic or self.device.type != "cpu" else torch.get_num_threads()
        self.checkpoints = CheckpointManager(
            folder / "checkpoints", keep=config.keep_checkpoints, log=self.callback.log, process_group=process_group
        )
        self.state = VectorState()
        self._log_start = self._start = 0.0

    def run(self, *, resume: bool = False) -> TrainResult:
        """Train to the end, from the beginning or from the newest intact checkpoint."""
        self.callback.log(f"Training on {self.task.describe_data()}")
        if resume:
            self._resume()
        elif self.threads > 1:
            self.callback.log(
                f"{self.threads} threads update the same vectors without waiting for each other, so no two runs are "
                "quite the same; train.deterministic = true trains in one thread."
            )
        writer = MetricsWriter(self.folder, after=self.state.step or -1)
        try:
            self._train(writer)
        finally:
            writer.close()
        state = self.state
        return TrainResult(state.step, state.tokens, state.seconds, 1, False, FinalWeights("last", state.step))

    def _train(self, writer: MetricsWriter) -> None:
        """Take all steps. Between two checkpoints, blocks are handed out ahead of those that are being counted."""
        config, state = self.config, self.state
        steps = config.epochs * self.task.epoch_steps
        self.callback.on_steps_known(min(config.steps, steps) if config.steps else steps)
        self.callback.on_train_begin(state.step, state.tokens)
        self._start = time.perf_counter() - state.seconds
        self._log_start = time.perf_counter()
        with ThreadPoolExecutor(self.threads) as pool, stop_on_signal() as signaled:
            running: deque[_Step] = deque()
            stream = self._hand_out(pool)
            more = True
            while more:
                step = next(stream, None)
                more = step is not None
                if step is not None:
                    running.append(step)
                stop = more and signaled()
                regular = step is None or step.number % config.save_every == 0
                while len(running) > (0 if regular or stop else self.threads):
                    self._count(running.popleft(), writer)
                if (regular and (more or state.step % config.save_every)) or stop:
                    self._save(temporary=not regular)
                if stop:
                    raise StoppedError(state.step)
        if state.tokens > state.logged_tokens:
            self._log(writer)

    def _hand_out(self, pool: ThreadPoolExecutor) -> Iterator[_Step]:
        """Start the steps that are left, each as soon as it is asked for."""
        config, state = self.config, self.state
        number, tokens, position = state.step, state.tokens, state.position
        total = config.epochs * self.task.epoch_size
        for epoch in range(state.epoch, config.epochs):
            for piece in self.task.blocks(epoch, position):
                if config.steps and number >= config.steps:
                    return
                number += 1
                lr = config.schedule.after(tokens / total)
                loss = pool.submit(self.engine.train_block, piece.block, lr, block_seed(config.seed, number))
                tokens += piece.size
                yield _Step(number, piece, epoch, loss)
            position = 0

    def _count(self, step: _Step, writer: MetricsWriter) -> None:
        """Wait for a step, and take it into account."""
        state, loss = self.state, step.loss.result()
        if not math.isfinite(loss.total):
            raise UserError(
                f"The loss is not finite at step {step.number:,}; lower train.schedule.lr, and start again."
            )
        state.step, state.tokens = step.number, state.tokens + step.piece.size
        state.position, state.in_epoch = step.piece.end, state.in_epoch + step.piece.size
        state.since_log.add(loss)
        state.since_epoch.add(loss)
        self.callback.on_step(state.step, state.tokens)
        if state.step % self.config.log_every == 0:
            self._log(writer)
        if state.in_epoch >= self.task.epoch_size:
            state.epoch, state.position, state.in_epoch = step.epoch + 1, 0, 0
            mean = state.since_epoch.mean
            writer.write(state.step, {"epoch": state.epoch, "epoch_loss": mean})
            self.callback.log(f"Epoch {state.epoch} of {self.config.epochs}: mean loss {mean:.4f}.")
            state.since_epoch = Sums()

    def _log(self, writer: MetricsWriter) -> None:
        state, now = self.state, time.perf_counter()
        state.seconds = now - self._start
        metrics = {
            "loss": state.since_log.mean,
            "tokens_per_second": (state.tokens - state.logged_tokens) / max(now - self._log_start, 1e-9),
            "tokens": state.tokens,
            "seconds": state.seconds,
            "lr": self.config.schedule.after(state.tokens / (self.config.epochs * self.task.epoch_size)),
        }
        writer.write(state.step, metrics)
        self.callback.on_train_metrics(state.step, metrics)
        state.since_log, state.logged_tokens, self._log_start = Sums(), state.tokens, now

    def _save(self, *, temporary: bool) -> None:
        begin = time.perf_counter()
        self.state.seconds = begin - self._start
        model = self.task.model.state_dict()
        checkpoint = Checkpoint(self.state.step, model, self.engine.state_dict(), {}, {"state": asdict(self.state)})
        with phase("Saving a checkpoint"):
            self.checkpoints.save(checkpoint, temporary=temporary)
        self._log_start += time.perf_counter() - begin

    def _resume(self) -> None:
        checkpoint = self.checkpoints.load_latest()
        if checkpoint is None:
            self.callback.log("There is no checkpoint to resume from, so the run starts from the beginning.")
            return
        values = checkpoint.metadata["state"]
        sums = {name: Sums(**values[name]) for name in ("since_log", "since_epoch")}
        self.state = VectorState(**values | sums)
        with torch.no_grad():
            for name, table in self.task.model.named_parameters():
                table.copy_(checkpoint.model[name])
        self.engine.load_state_dict(checkpoint.optimizer)
        exact = (
            ""
            if self.threads == 1
            else (f" {self.threads} threads race, so the result will not be exactly that of an uninterrupted run.")
        )
        self.callback.log(f"Resuming from step {self.state.step:,}.{exact}")
