"""How long each box of the model diagram takes on this machine: the median of several passes.

A rough figure: hooks run between modules, a batch of one row leaves most cores idle, and other programs may be running.
"""

import platform
import time
from collections.abc import Iterator
from statistics import median

import torch
from torch import Tensor

from regard.look.analysis.activations.box_observer import observe_boxes
from regard.look.analysis.model_diagram import draw_model
from regard.look.schema import ModuleTime, ModuleTimes
from regard.look.trace import Trace

PASSES = 15
"""Passes that are measured, after one that is not."""


def measure_times(trace: Trace) -> Iterator[tuple[int, ModuleTimes]]:
    """Yield the number of passes and the medians so far: first without any, then after each pass."""
    traced_model = trace.require_model()
    model = traced_model.model
    root = draw_model(model, traced_model.name)
    device: torch.device = traced_model.model.device  # type: ignore[assignment]
    measured: dict[str, list[float]] = {}

    def one_pass() -> dict[str, float]:
        clock = _Clock(device)
        traced_model.observed_pass(trace, observe_boxes(model, root, clock))
        return clock.seconds

    def results() -> ModuleTimes:
        boxes = [ModuleTime(path=path, seconds=median(seconds)) for path, seconds in measured.items()]
        return ModuleTimes(passes=len(measured.get("", [])), device=_describe(device), boxes=boxes)

    one_pass()
    yield PASSES, results()
    for _ in range(PASSES):
        for path, seconds in one_pass().items():
            measured.setdefault(path, []).append(seconds)
        yield PASSES, results()


class _Clock:
    """Adds up the seconds between the start of each box and what leaves it."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._device = device
        self._started: dict[str, float] = {}
        self._last = 0.0

    def start(self, name: str) -> None:
        self._started[name] = self._now()

    def leave(self, path: str, output: Tensor, since: str | None = None) -> None:
        now = self._now()
        started = self._last if since == "" else self._started[path if since is None else since]
        self.seconds[path] = self.seconds.get(path, 0.0) + now - started
        self._last = now

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def _describe(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} thread{'s' if threads != 1 else ''}"
