"""The trainer of word vectors: exact resuming with one thread, the rate, and a loss per epoch that is a mean."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.data.batching.word_blocks import ContextWindow, WordBlock
from regard.model.before.word_vectors.config import CbowConfig
from regard.train.callback import Callback
from regard.train.distributed.process_group import SINGLE_PROCESS
from regard.train.runtime import StoppedError
from regard.train.word_vectors.config import VectorScheduleConfig, VectorTrainConfig
from regard.train.word_vectors.engine import BlockLoss
from regard.train.word_vectors.plain import PlainWord2Vec
from regard.train.word_vectors.trainer import Piece, VectorTrainer
from regard.train.word_vectors.word2vec import make_setup

COUNTS = np.array([60, 40, 20, 10])


class ToyTask:
    """Random words in five blocks an epoch; `hook` is called with the number of each block that is trained on."""

    process_group = SINGLE_PROCESS
    epoch_size, epoch_steps = 5 * 40, 5

    def __init__(self, hook: Any = None) -> None:
        torch.manual_seed(2)
        self.model = CbowConfig(vocab_size=4, width=6).build()
        self.hook, self.rates, self.losses = hook, list[float](), list[BlockLoss]()

    def blocks(self, epoch: int, position: int) -> Iterator[Piece[WordBlock]]:
        for number in range(position, 5):
            ids = np.random.default_rng(number).integers(4, size=40).astype(np.int32)
            yield Piece(WordBlock(ids, np.array([0, 10, 40])), 40, number + 1)

    def engine(self, device: torch.device, log: Any) -> "ToyTask":
        self._inner = PlainWord2Vec(self.model, make_setup(self.model, list("abcd"), COUNTS, ContextWindow(2)))
        return self

    def train_block(self, block: WordBlock, lr: float, seed: int) -> BlockLoss:
        self.rates.append(lr)
        if self.hook is not None:
            self.hook(len(self.rates))
        self.losses.append(self._inner.train_block(block, lr, seed))
        return self.losses[-1]

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"calls": torch.tensor(1.0)}

    def load_state_dict(self, state: Any) -> None:
        assert state["calls"] == 1

    def describe_data(self) -> str:
        return "random words."


class Log(Callback):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def log(self, message: str) -> None:
        self.messages.append(message)


def settings(**changes: Any) -> VectorTrainConfig:
    values = {"epochs": 4, "deterministic": True, "log_every": 3, "save_every": 4, "keep_checkpoints": 9}
    return VectorTrainConfig(**values | changes)


def run(task: ToyTask, folder: Path, resume: bool = False, **changes: Any) -> VectorTrainer:
    folder.mkdir(exist_ok=True)
    trainer = VectorTrainer(task, settings(**changes), folder, callback=Log())  # type: ignore[arg-type]
    trainer.run(resume=resume)
    return trainer


def lines(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in ("seconds", "tokens_per_second")} for row in rows]


@pytest.mark.parametrize("at", [1, 4, 7, 17])
def test_a_stopped_and_resumed_run_equals_one_that_was_not(at: int, tmp_path: Path) -> None:
    whole = ToyTask()
    run(whole, tmp_path / "whole")

    def stop(number: int) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedError):
        run(ToyTask(stop), tmp_path / "stopped")
    resumed = ToyTask()
    run(resumed, tmp_path / "stopped", resume=True)
    for found, expected in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(found, expected)
    assert lines(tmp_path / "stopped") == lines(tmp_path / "whole")
    names = [sorted(path.name for path in (tmp_path / one / "checkpoints").iterdir()) for one in ("whole", "stopped")]
    assert names[0] == names[1]


def test_the_loss_of_an_epoch_is_the_mean_over_its_predictions(tmp_path: Path) -> None:
    task = ToyTask()
    run(task, tmp_path)
    epochs = [row for row in lines(tmp_path) if "epoch" in row]
    assert [row["epoch"] for row in epochs] == [1, 2, 3, 4]
    for number, row in enumerate(epochs):
        losses = task.losses[5 * number : 5 * number + 5]
        assert row["epoch_loss"] == pytest.approx(sum(one.total for one in losses) / sum(one.count for one in losses))


def test_the_rate_falls_linearly_with_the_words_to_a_fraction_of_its_start(tmp_path: Path) -> None:
    task = ToyTask()
    run(task, tmp_path, schedule=VectorScheduleConfig(lr=0.1, min_lr_ratio=0.3))
    assert task.rates == pytest.approx([0.1 * max(1 - step / 20, 0.3) for step in range(20)])


def test_ending_early_does_not_change_the_rate(tmp_path: Path) -> None:
    short, whole = ToyTask(), ToyTask()
    run(short, tmp_path / "short", steps=7)
    run(whole, tmp_path / "whole")
    assert short.rates == whole.rates[:7]


def test_several_threads_train_every_block_once_and_say_that_they_race(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        task = ToyTask()
        trainer = run(task, tmp_path, deterministic=False)
    finally:
        torch.set_num_threads(threads)
    assert len(task.losses) == 20
    assert (trainer.state.step, trainer.state.tokens, trainer.state.epoch) == (20, 800, 4)
    messages = trainer.callback.messages  # type: ignore[attr-defined]
    assert any("2 threads update the same vectors" in message for message in messages)


def test_settings_of_networks_do_not_exist() -> None:
    from regard.config import ConfigError

    with pytest.raises(ConfigError, match="unknown key"):
        VectorTrainConfig(max_grad_norm=1.0)
