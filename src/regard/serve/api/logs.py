"""The log of a server: a JSON object a line on standard error, without anything that users sent."""

import json
import sys
import traceback
from datetime import UTC, datetime
from typing import Any


def log_message(message: str) -> None:
    """Something that happened to the server."""
    _write({"message": message})


def log_request(record: dict[str, Any]) -> None:
    """An answered request. What failed in the server itself is told with where it happened."""
    error = record.pop("error", None)
    if isinstance(error, BaseException):
        frames = traceback.extract_tb(error.__traceback__)
        # Not its message, which may quote a text; where it was raised finds the cause.
        record["error"] = type(error).__name__
        record["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-5:]]
    _write(record)


def _write(record: dict[str, Any]) -> None:
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = json.dumps({"time": time, **record}, ensure_ascii=False)
    print(f"{line}\n", end="", file=sys.stderr, flush=True)  # in one piece: several processes may write to one log
