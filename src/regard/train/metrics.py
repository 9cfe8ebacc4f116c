"""What a run writes down about itself: a JSON object a line in metrics.jsonl, and TensorBoard's files where wanted."""

import json
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
        except OSError as error:
            raise UserError(f"{self.path} could not be written ({error.strerror}).") from None
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, step)

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


def _step(line: str) -> float:
    """The step of a line; a line that a killed process left half-written counts as later than all."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _plain(value: Any) -> Any:
    return value if not isinstance(value, float) or abs(value) < float("inf") else None


def _board(folder: Path, after: int) -> Any:
    """TensorBoard's writer, where it is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    try:
        return SummaryWriter(str(folder), purge_step=after + 1)
    except OSError as error:
        raise UserError(f"{folder} could not be written ({error.strerror}).") from None
