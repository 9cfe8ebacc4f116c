"""A small translation task, and several processes that train it."""

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

from regard.data.batching.token_batches import Batch, TokenBatches
from regard.run.tensors import write_tensors
from regard.train.config import TrainConfig
from regard.train.distributed.multi_process import TorchProcessGroup
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from regard.train.loss import Loss, cross_entropy
from regard.train.task import Evaluation, Forward
from regard.train.trainer import Trainer
from tests.model.small_models import encoder_decoder, stack
from tests.train.toy import Sentences

Workload = Callable[[ProcessGroup, Path], None]

_WIDTH = 18
"""Over two processes some tensors shard unevenly: 18 rows are 9 and 9, but the vocabulary's 13 are 7 and 6."""


class Translating:
    """Random sentence pairs and a small encoder–decoder. `seen` records the items of each training batch."""

    def __init__(
        self, dtype: torch.dtype = torch.float64, dropout: float = 0.0, process_group: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        torch.manual_seed(3)
        small = stack(layers=1, heads=3, hidden=20, dropout=dropout)
        embedding = {"dropout": dropout}
        config = encoder_decoder(
            width=_WIDTH, encoder=small, decoder=small, embedding=embedding, special_tokens={"bos": 12}
        )
        self.model = config.build().to(dtype)
        self.batches = TokenBatches(Sentences(), 36, seed=4, length_buckets=6)
        self.seen: list[list[int]] = []
        self._process_group = process_group

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        self.seen.append(batch.items.tolist())
        return self._loss(forward, batch, 0.1)

    def nll(self, forward: Forward, batch: Batch) -> Loss:
        return self._loss(forward, batch, 0.0)

    def validation_batches(self) -> Iterable[Batch]:
        return TokenBatches(Sentences(12, seed=6), 24).epoch()

    def evaluate(self) -> Evaluation | None:
        """Uses `encode` rather than `forward`; a model that is still sharded could not compute it."""
        sources = [list(range(1, 2 + number)) for number in range(5)]
        with torch.no_grad():
            scores = [float(self.model.encode(torch.tensor([ids])).sum()) for ids in self._process_group.shard(sources)]
        score = sum(self._process_group.gather_interleaved(scores))
        return Evaluation(score, {"points": score})

    def _loss(self, forward: Forward, batch: Batch, label_smoothing: float) -> Loss:
        shifted = torch.cat((torch.full_like(batch.target[:, :1], 12), batch.target[:, :-1]), dim=1)
        logits = forward(batch.source, shifted, source_lengths=batch.source_lengths)
        return cross_entropy(logits, batch.target, batch.target_lengths, label_smoothing)


def settings(**changes: Any) -> TrainConfig:
    defaults: dict[str, Any] = {
        "steps": 8,
        "schedule": {"kind": "constant", "lr": 0.01, "warmup_steps": 0},
        "log_every": 1,
        "validate_every": 4,
        "save_every": 4,
        "max_grad_norm": 0.5,
    }
    return TrainConfig(**(defaults | changes))


def trained(
    folder: Path,
    config: TrainConfig,
    process_group: ProcessGroup = SINGLE_PROCESS,
    *,
    dtype: torch.dtype = torch.float64,
    dropout: float = 0.0,
    splits: int = 1,
    resume: bool = False,
) -> dict[str, Tensor]:
    """The final weights of a run. The items of each process's batches are written to FOLDER.seen-RANK.json."""
    folder.mkdir(exist_ok=True, parents=True)
    task = Translating(dtype, dropout, process_group)
    trainer = Trainer(task, config, folder, process_group=process_group)
    if splits > 1:
        trainer.splitter.splits = splits
    trainer.run(resume=resume)
    weights = {name: tensor.detach().clone() for name, tensor in task.model.state_dict().items()}
    Path(f"{folder}.seen-{process_group.rank}.json").write_text(json.dumps(task.seen), encoding="utf-8")
    if process_group.is_rank0:
        write_tensors(Path(f"{folder}.safetensors"), weights)
    return weights


def write_gradients(
    path: Path, config: TrainConfig, process_group: ProcessGroup = SINGLE_PROCESS, dtype: torch.dtype = torch.float32
) -> None:
    """Write the gradients of the first step, as the optimizer receives them."""
    trainer = Trainer(Translating(dtype, process_group=process_group), config, path.parent, process_group=process_group)
    grads: dict[str, Tensor] = {}

    def spy(lr: float) -> None:
        for name, parameter in trainer.placement.module.named_parameters():
            gradient: Any = parameter.grad
            grads[name] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient.clone()

    trainer.optimizer.step = spy  # type: ignore[method-assign]
    list(trainer.steps(1))
    if process_group.is_rank0:
        write_tensors(path, grads)


def copy_without_last_checkpoint(folder: Path, copy: Path) -> None:
    """Copy a run without its last checkpoint."""
    shutil.copytree(folder, copy)
    last = max((copy / "checkpoints").iterdir())
    shutil.rmtree(last)


PRELOADED = (
    "tests.train.distributed.ranks",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "regard.train.distributed.multi_process",
)
"""Modules that the fork server imports once; importing them takes most of the time of starting a process."""


_JOIN_SECONDS = 300
"""Timeout for the processes: far more than they need on an idle machine."""


def run_in_processes(work: Workload, folder: Path, size: int = 2) -> None:
    """Run `work` in several processes, which rendezvous through a file."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    store = folder / f"store-{uuid.uuid4().hex}"
    processes = [context.Process(target=_enter, args=(work, rank, size, store, folder)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(_JOIN_SECONDS)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0] * size


def _enter(work: Workload, rank: int, size: int, store: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    os.fsync = lambda handle: None  # type: ignore[assignment]
    sys.modules["tensorboard"] = None  # type: ignore[assignment]
    file_store = distributed.FileStore(str(store), size)
    process_group = TorchProcessGroup(file_store, rank, size, device=torch.device("cpu"), timeout=60)
    work(process_group, folder)
    process_group.destroy()
    os._exit(0)  # as in cli/processes.py, so that no other thread keeps running


def metrics(folder: Path) -> list[Mapping[str, Any]]:
    times = ("seconds", "tokens_per_second")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in line.items() if name not in times} for line in lines]
