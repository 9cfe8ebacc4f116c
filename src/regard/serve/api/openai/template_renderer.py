"""Rendering chat templates in a process of their own (`template_process`), which is killed when it takes too long."""

import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from regard.errors import UserError
from regard.serve.worker import OverloadedError

SECONDS = 1.5
"""How long a template may take, waiting for the process included. The process has a shorter limit of its own."""
START_SECONDS = 30.0
"""How long the process may take to start."""
WAIT_SECONDS = 5.0
"""How long a chat waits for those before it."""
_PROGRAM = Path(__file__).parent / "template_process.py"


class TemplateRenderer:
    """Renders one template at a time. The process is started when it is first needed, and after it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """The text that a template writes; an error in a sentence, also if it does not end."""
        line = json.dumps({"template": template, "variables": variables})
        if not self._lock.acquire(timeout=WAIT_SECONDS):
            raise OverloadedError("The server is busy with other chats; try again in a few seconds.")
        try:
            answer = json.loads(self._ask(line) or '{"error": "it takes too long, or too much memory"}')
        finally:
            self._lock.release()
        if "text" not in answer:
            raise UserError(
                f"messages: the model's chat template fails with these messages: {answer['error'].rstrip('.')}."
            )
        return str(answer["text"])

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._kill()

    def _ask(self, line: str) -> str:
        """The process's answer; empty if it had to be killed."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._start()
        with suppress(OSError):  # it has ended
            _stdin(process).write(line + "\n")
            _stdin(process).flush()
            if answer := _read_line(process, SECONDS):
                return answer
        self._kill()
        return ""

    def _start(self) -> "subprocess.Popen[str]":
        self._kill()
        process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        self._process = process
        weakref.finalize(self, _end, process)
        if _read_line(process, START_SECONDS) != "ready\n":
            self._kill()
            raise RuntimeError("The process that renders chat templates did not start.")
        return process

    def _kill(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._process = None


def _read_line(process: "subprocess.Popen[str]", seconds: float) -> str:
    """A line of the process's output; empty if it has ended, or had to be killed after some seconds."""
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    try:
        assert process.stdout is not None
        return process.stdout.readline()
    finally:
        timer.cancel()


def _stdin(process: "subprocess.Popen[str]") -> IO[str]:
    assert process.stdin is not None
    return process.stdin


def _end(process: "subprocess.Popen[str]") -> None:
    """Kill a process and close its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()
