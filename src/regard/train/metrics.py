"""What a run logs: sums over the steps since the last log line, and the files that the lines are written to.

metrics.jsonl has one JSON object per line; the same numbers go to TensorBoard if it is installed.
"""

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.files import write_text
from regard.train.distributed.process_group import ProcessGroup
from regard.train.loss import Loss


class RunningStats:
    """Sums since the last log line, kept on the device: reading them at every step would make the CPU wait for it.

    They are part of checkpoints, so that a resumed run logs the same lines as one that was never interrupted. Each
    process keeps its own sums, which are reduced when a line is written.
    """

    def __init__(self, tokens: int, loss: Loss | None = None, expert_load: Sequence[Tensor] = ()) -> None:
        """tokens: how many the run had been trained on at the last line"""
        self._tokens, self._loss, self._expert_load = tokens, loss, list(expert_load)
        self.start_clock()

    def start_clock(self) -> None:
        self._start = time.perf_counter()

    def exclude(self, seconds: float) -> None:
        """Leave time out of the speed: that of validation and checkpoints."""
        self._start += seconds

    def add(self, loss: Loss) -> None:
        self._loss = loss if self._loss is None else self._loss + loss

    def add_expert_load(self, loads: Sequence[Tensor]) -> None:
        """Add the load of the experts in each mixture-of-experts layer.  # (experts,) each"""
        if self._expert_load:
            self._expert_load = [total + load for total, load in zip(self._expert_load, loads, strict=True)]
        else:
            self._expert_load = [*loads]

    def metrics(self, tokens: int, process_group: ProcessGroup) -> dict[str, float]:
        """The means since the last line. tokens: how many the run has been trained on so far"""
        total, nll, count = self._loss_sums(process_group)
        seconds = max(time.perf_counter() - self._start, 1e-9)
        return {
            "loss": total / max(count, 1.0),
            "nll": nll / max(count, 1.0),
            "tokens_per_second": (tokens - self._tokens) / seconds,
            "tokens": tokens,
        } | self._load_metrics(process_group)

    def state_dict(self, process_group: ProcessGroup) -> dict[str, Any]:
        """The sums of all processes, as JSON data."""
        sums = None if self._loss is None else self._loss_sums(process_group)
        return {"tokens": self._tokens, "sums": sums, "expert_load": self._reduced_load(process_group)}

    @classmethod
    def from_state_dict(
        cls, state: Mapping[str, Any], device: torch.device, process_group: ProcessGroup
    ) -> "RunningStats":
        """Restore what `state_dict` gave: rank 0 continues with the sums, the other processes with zeros."""
        expert_load = [
            torch.tensor(load, device=device).long() * int(process_group.is_rank0) for load in state["expert_load"]
        ]
        if state["sums"] is None:
            return cls(state["tokens"], expert_load=expert_load)
        total, nll, count = state["sums"] if process_group.is_rank0 else (0, 0, 0)
        return cls(
            state["tokens"],
            Loss(
                torch.tensor(float(total), device=device),
                torch.tensor(float(nll), device=device),
                torch.tensor(int(count), device=device),
            ),
            expert_load,
        )

    def _loss_sums(self, process_group: ProcessGroup) -> list[float]:
        assert self._loss is not None
        return process_group.all_reduce([float(self._loss.total), float(self._loss.nll), float(self._loss.count)])

    def _load_metrics(self, process_group: ProcessGroup) -> dict[str, float]:
        """The largest and smallest fraction of its layer's tokens that an expert got, over all layers."""
        layers = self._reduced_load(process_group)
        fractions = [load / sum(layer) for layer in layers for load in layer if sum(layer)]
        return {"moe/max_load": max(fractions), "moe/min_load": min(fractions)} if fractions else {}

    def _reduced_load(self, process_group: ProcessGroup) -> list[list[float]]:
        """The load of each expert, for each mixture-of-experts layer, over all processes."""
        if not self._expert_load:
            return []
        loads = iter(process_group.all_reduce(torch.cat(self._expert_load).tolist()))
        return [list(islice(loads, len(load))) for load in self._expert_load]


class MetricsWriter:
    """Writes lines of numbers, each with its step. A resumed run removes the lines after the step it resumes from."""

    def __init__(self, folder: Path, *, after: int = 0, tensorboard: bool = True) -> None:
        self.path = folder / "metrics.jsonl"
        write_text(self.path, "".join(f"{line}\n" for line in self._lines() if _step(line) <= after))
        self._tensorboard = _open_tensorboard(folder / "tensorboard", after) if tensorboard else None

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append a line. NaN and infinity (of a loss that diverged) are written as null."""
        line = json.dumps({"step": step, **{name: _finite_or_none(value) for name, value in metrics.items()}})
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            if self._tensorboard is not None:
                self._tensorboard.add(step, metrics)
        except OSError as error:
            raise UserError(f"{self.path} could not be written ({error.strerror}).") from None

    def close(self) -> None:
        if self._tensorboard is not None:
            self._tensorboard.close()

    def _lines(self) -> list[str]:
        try:
            return self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self.path} cannot be read ({error}).") from None


class NullMetricsWriter:
    """Writes nothing: of several processes, only rank 0 writes."""

    def write(self, step: int, metrics: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


def _step(line: str) -> float:
    """The step of a line; infinite for one that a killed process left incomplete, so that it is removed."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _finite_or_none(value: Any) -> Any:
    return value if not isinstance(value, float) or abs(value) < float("inf") else None


class _TensorBoard:
    """A TensorBoard event file, flushed after every event in this thread, so that a full disk is noticed at once."""

    def __init__(self, folder: Path, after: int) -> None:
        import tensorboard  # noqa: F401  (before anything is created)
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event = Event
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.regard"
        self._records = RecordWriter((folder / name).open("wb"))
        self._write(file_version="brain.Event:2")
        # Makes readers discard events after this step, which an interrupted session left in another file.
        self._write(step=after + 1, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._write(step=step, summary=Summary(value=values))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # every event was flushed when it was written
            self._records.close()

    def _write(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        self._records.flush()


def _open_tensorboard(folder: Path, after: int) -> _TensorBoard | None:
    """TensorBoard's event file; None if TensorBoard is not installed."""
    try:
        return _TensorBoard(folder, after)
    except ImportError:
        return None
    except OSError as error:
        raise UserError(f"{folder} could not be written ({error.strerror}).") from None
