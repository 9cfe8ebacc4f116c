"""What a run writes down about itself: a JSON object a line in metrics.jsonl, and TensorBoard's files where wanted."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.files import write_text


class Metrics:
    """Lines of numbers, each with its step. A run that goes on from a step forgets the lines written after it."""

    def __init__(self, folder: Path, *, after: int = 0, tensorboard: bool = True) -> None:
        self.path = folder / "metrics.jsonl"
        write_text(self.path, "".join(f"{line}\n" for line in self._lines() if _step(line) <= after))
        self._board = _board(folder / "tensorboard", after) if tensorboard else None

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Add a line. A number that is none (a loss that has run away) is written as null."""
        line = json.dumps({"step": step, **{name: _plain(value) for name, value in values.items()}})
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            if self._board is not None:
                self._board.add(step, values)
        except OSError as error:
            raise UserError(f"{self.path} could not be written ({error.strerror}).") from None

    def close(self) -> None:
        if self._board is not None:
            self._board.close()

    def _lines(self) -> list[str]:
        try:
            return self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self.path} cannot be read ({error}).") from None


class NoMetrics:
    """Writes nothing: the first of several processes does."""

    def write(self, step: int, values: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


def _step(line: str) -> float:
    """The step of a line; a line that a killed process left half-written counts as later than all."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _plain(value: Any) -> Any:
    return value if not isinstance(value, float) or abs(value) < float("inf") else None


class _Board:
    """A file of TensorBoard's events, written at once and in this thread: a full disk is noticed where it happens."""

    def __init__(self, folder: Path, after: int) -> None:
        import tensorboard  # noqa: F401  (nothing is made where it is missing)
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event = Event
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.regard"
        self._records = RecordWriter((folder / name).open("wb"))
        self._write(file_version="brain.Event:2")
        # Whoever reads the folder forgets what was written after this step by a sitting that did not last.
        self._write(step=after + 1, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, values: dict[str, Any]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
        parts = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._write(step=step, summary=Summary(value=parts))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # all lines were flushed when they were written
            self._records.close()

    def _write(self, **facts: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **facts).SerializeToString())
        self._records.flush()


def _board(folder: Path, after: int) -> _Board | None:
    """TensorBoard's file, where it is installed."""
    try:
        return _Board(folder, after)
    except ImportError:
        return None
    except OSError as error:
        raise UserError(f"{folder} could not be written ({error.strerror}).") from None
