"""A small translation task, and two processes to train it in."""

import json
import multiprocessing
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from regard.data.batch import Batch, TokenBatches
from regard.run.tensors import write_tensors
from regard.train.loop import Loop
from regard.train.loss import Loss, word_loss
from regard.train.settings import TrainConfig
from regard.train.task import Forward, Measured
from regard.train.together import Together
from regard.train.world import ALONE, World
from tests.model.small_models import encoder_decoder, stack
from tests.train.test_loop import Sentences

Work = Callable[[World, Path], None]

_WIDTH = 18
"""With two processes, rows that do not come out even: 9 and 9, but 13 words are 7 and 6."""


class Translating:
    """Pairs of random words and a small encoder–decoder. `seen`: the items of each batch whose loss was taken."""

    def __init__(self, dtype: torch.dtype = torch.float64, dropout: float = 0.0, world: World = ALONE) -> None:
        torch.manual_seed(3)
        small = stack(layers=1, heads=3, hidden=20, dropout=dropout)
        embedding = {"dropout": dropout}
        config = encoder_decoder(width=_WIDTH, encoder=small, decoder=small, embedding=embedding, tokens={"start": 12})
        self.model = config.build().to(dtype)
        self.batches = TokenBatches(Sentences(), 36, seed=4, shapes=6)
        self.seen: list[list[int]] = []
        self._world = world

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        self.seen.append(batch.items.tolist())
        return self._loss(forward, batch, 0.1)

    def plain_loss(self, forward: Forward, batch: Batch) -> Loss:
        return self._loss(forward, batch, 0.0)

    def validation(self) -> Iterable[Batch]:
        return TokenBatches(Sentences(12, seed=6), 24).epoch()

    def measure(self) -> Measured | None:
        """By a method that is not `forward`, which a model in shares could not compute."""
        sources = [list(range(1, 2 + number)) for number in range(5)]
        with torch.no_grad():
            mine = [float(self.model.encode(torch.tensor([ids])).sum()) for ids in self._world.share(sources)]
        score = sum(self._world.whole(mine))
        return Measured(score, {"points": score})

    def _loss(self, forward: Forward, batch: Batch, smoothing: float) -> Loss:
        before = torch.cat((torch.full_like(batch.target[:, :1], 12), batch.target[:, :-1]), dim=1)
        scores = forward(batch.source, before, source_lengths=batch.source_lengths)
        return word_loss(scores, batch.target, batch.target_lengths, smoothing)


def settings(**changes: Any) -> TrainConfig:
    usual: dict[str, Any] = {
        "steps": 8,
        "schedule": {"kind": "constant", "rate": 0.01, "warmup": 0},
        "log_every": 1,
        "validate_every": 4,
        "save_every": 4,
        "clip": 0.5,
    }
    return TrainConfig(**(usual | changes))


def trained(
    folder: Path,
    config: TrainConfig,
    world: World = ALONE,
    *,
    dtype: torch.dtype = torch.float64,
    dropout: float = 0.0,
    parts: int = 1,
    resume: bool = False,
) -> dict[str, Tensor]:
    """The weights a run ends with. What each process saw is written beside the folder."""
    folder.mkdir(exist_ok=True, parents=True)
    task = Translating(dtype, dropout, world)
    loop = Loop(task, config, folder, world=world)
    if parts > 1:
        loop.progress = type(loop.progress)(parts=parts)
    loop.run(resume=resume)
    weights = {name: tensor.detach().clone() for name, tensor in task.model.state_dict().items()}
    Path(f"{folder}.seen-{world.rank}.json").write_text(json.dumps(task.seen), encoding="utf-8")
    if world.first:
        write_tensors(Path(f"{folder}.safetensors"), weights)
    return weights


def write_gradients(path: Path, config: TrainConfig, world: World = ALONE, dtype: torch.dtype = torch.float32) -> None:
    """The gradients of a first step, as the optimiser gets them."""
    loop = Loop(Translating(dtype, world=world), config, path.parent, world=world)
    found: dict[str, Tensor] = {}

    def spy(rate: float) -> None:
        for name, parameter in loop.layout.module.named_parameters():
            gradient: Any = parameter.grad
            found[name] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient.clone()

    loop.optimiser.step = spy  # type: ignore[method-assign]
    list(loop.steps(1))
    if world.first:
        write_tensors(path, found)


def cut_short(folder: Path, copy: Path) -> None:
    """A copy of a run as it was before its last checkpoint."""
    shutil.copytree(folder, copy)
    last = max((copy / "checkpoints").iterdir())
    shutil.rmtree(last)


KNOWN = ("tests.train.ranks", "torch._dynamo", "torch.distributed.fsdp", "torch.nn.parallel", "regard.train.together")
"""What a process that others are made of imports beforehand: most of what starting one takes."""


_PATIENCE = 300
"""Seconds that processes may take. It is far less alone, but a machine may have other work."""


def run_together(work: Work, folder: Path, size: int = 2) -> None:
    """Do some work in several processes that meet at a file."""
    start = multiprocessing.get_context("forkserver")
    start.set_forkserver_preload(list(KNOWN))
    store = folder / f"store-{uuid.uuid4().hex}"
    processes = [start.Process(target=_enter, args=(work, rank, size, store, folder)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(_PATIENCE)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0] * size


def _enter(work: Work, rank: int, size: int, store: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    os.fsync = lambda handle: None  # type: ignore[assignment]
    sys.modules["tensorboard"] = None  # type: ignore[assignment]
    met = distributed.FileStore(str(store), size)
    world = Together(met, rank, size, device=torch.device("cpu"), timeout=60)
    work(world, folder)
    world.leave()
    os._exit(0)  # as the command does (cli/processes.py): nothing is to be done any more, by no thread


def metrics(folder: Path) -> list[Mapping[str, Any]]:
    times = ("seconds", "words_per_second")
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in line.items() if name not in times} for line in found]
