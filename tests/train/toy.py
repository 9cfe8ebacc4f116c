"""A small task for the trainer's tests: word-by-word translation by an embedding and a linear layer."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batching.token_batches import Batch, TokenBatches
from regard.train.callback import Callback
from regard.train.config import TrainConfig
from regard.train.loss import Loss
from regard.train.task import Evaluation, Forward
from regard.train.trainer import Trainer

VOCAB_SIZE = 11
Integers = NDArray[np.int64]
Weights = dict[str, Tensor]
BatchHook = Callable[[int, Batch], None]


class Sentences:
    """Random sentences; the translation of word n is n + 1."""

    sides = ("source", "target")

    def __init__(self, count: int = 40, seed: int = 5) -> None:
        generator = np.random.Generator(np.random.PCG64(seed))
        self._words = [generator.integers(VOCAB_SIZE - 1, size=1 + number % 6) for number in range(count)]

    def lengths(self, side: str) -> Integers:
        return np.array([len(words) for words in self._words])

    def padded(self, side: str, items: Integers, rows: int, length: int, padding: int) -> tuple[Integers, Integers]:
        ids, lengths = np.full((rows, length), padding), np.zeros(rows, dtype=np.int64)
        for row, item in enumerate(items.tolist()):
            lengths[row] = len(self._words[item])
            ids[row, : lengths[row]] = self._words[item] + (side == "target")
        return ids, lengths


class FixedBatches:
    """The same batches in every epoch."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def epochs(self) -> Iterator[Batch]:
        return itertools.cycle(self._batches)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def no_hook(call: int, batch: Batch) -> None: ...


class Toy:
    """The task. `hook` is called with every batch before its loss; `losses` and `scores` fix the validation results."""

    def __init__(
        self,
        *,
        seed: int = 1,
        dropout: float = 0.0,
        dtype: torch.dtype = torch.float64,
        hook: BatchHook = no_hook,
        fixed: list[Batch] | None = None,
        validation: bool = True,
        losses: Mapping[int, float] | None = None,
        scores: Mapping[int, float] | None = None,
    ) -> None:
        torch.manual_seed(seed)
        layers = (nn.Embedding(VOCAB_SIZE, 8), nn.Dropout(dropout), nn.Linear(8, VOCAB_SIZE))
        self.model = nn.Sequential(*layers).to(dtype)
        tokens = TokenBatches(Sentences(), 24, seed=seed, length_buckets=4)
        self.batches = tokens if fixed is None else FixedBatches(fixed)
        self.step: Callable[[], int] = lambda: 0
        self._hook, self._calls = hook, 0
        self._validation, self._losses, self._scores = validation, losses, scores

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        self._calls += 1
        self._hook(self._calls, batch)
        return word_by_word(forward, batch)

    def nll(self, forward: Forward, batch: Batch) -> Loss:
        if self._losses is not None:
            value = torch.tensor(self._losses[self.step()])
            return Loss(value, value, torch.tensor(1))
        return word_by_word(forward, batch)

    def validation_batches(self) -> Iterable[Batch]:
        return TokenBatches(Sentences(12, seed=6), 24).epoch() if self._validation else ()

    def evaluate(self) -> Evaluation | None:
        if self._scores is None:
            return None
        score = self._scores[self.step()]
        return Evaluation(score, {"points": score})


def word_by_word(forward: Forward, batch: Batch) -> Loss:
    """Cross-entropy in the model's dtype. Padding is removed before summing, so that equal words give equal sums."""
    counted = torch.arange(batch.target.shape[1]) < batch.target_lengths[:, None]
    total = functional.cross_entropy(forward(batch.source)[counted], batch.target[counted], reduction="sum")
    return Loss(total, total.detach(), counted.sum())


def validation_nll(task: Toy) -> float:
    """The mean negative log-likelihood of the validation set with the model's weights."""
    losses = [word_by_word(task.model, batch) for batch in task.validation_batches()]
    return float(sum(loss.nll for loss in losses)) / int(sum(loss.count for loss in losses))


class LogRecorder(Callback):
    """Records all messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def log(self, message: str) -> None:
        self.messages.append(message)


def settings(**changes: Any) -> TrainConfig:
    defaults: dict[str, Any] = {
        "steps": 8,
        "schedule": {"lr": 0.05, "warmup_steps": 2},
        "log_every": 1,
        "validate_every": 4,
        "save_every": 4,
    }
    return TrainConfig(**(defaults | changes))


def make_trainer(task: Toy, config: TrainConfig, folder: Path, callback: Callback | None = None) -> Trainer[Batch]:
    folder.mkdir(exist_ok=True)
    trainer = Trainer(task, config, folder, callback=callback)
    task.step = lambda: trainer.state.step
    return trainer


def weights_of(model: nn.Module) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def trained(task: Toy, config: TrainConfig, folder: Path, *, resume: bool = False) -> Weights:
    """The weights at the end of a run."""
    make_trainer(task, config, folder).run(resume=resume)
    return weights_of(task.model)


def log_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def log_lines_without_times(folder: Path) -> list[dict[str, Any]]:
    times = ("seconds", "tokens_per_second")
    return [{name: value for name, value in line.items() if name not in times} for line in log_lines(folder)]


def assert_same(actual: Weights, expected: Weights) -> None:
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


def assert_close(actual: Weights, expected: Weights) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def record_steps(trainer: Trainer[Batch], before: Callable[[], None] = lambda: None) -> list[Weights]:
    """A list to which the weights are appended after each step; `before` is called once the gradients are ready."""
    weights: list[Weights] = []
    step = trainer.optimizer.step

    def spy(lr: float) -> None:
        before()
        step(lr)
        weights.append(weights_of(trainer.model))

    trainer.optimizer.step = spy  # type: ignore[method-assign]
    return weights
