"""What every benchmark shares: fair timing, and results that say where they come from.

Ours and the peer are timed in turn, in one process, so that a busy neighbour or a warming chip hits both alike. Results
are JSON with versions, hardware and commit, under benchmarks/results/; documents quote only what stands there.
"""

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import regard
from regard.cost import Work, estimate
from regard.model import AnyModelConfig

RESULTS = Path(__file__).parent / "results"
_CALLS = 5
"""Calls of a sample, where one does not wait for the other."""


def time_in_turn(functions: Sequence[Callable[[], object]], repeats: int, warm: int = 3) -> list[list[float]]:
    """Seconds of each call, one list a function; in every round each function runs once."""
    for function in functions:
        for _ in range(warm):
            function()
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for function, taken in zip(functions, seconds, strict=True):
            taken.append(_seconds(function))
    return seconds


def time_in_blocks(functions: Sequence[Callable[[], object]], rounds: int = 4, samples: int = 4) -> list[list[float]]:
    """Seconds of a call, sampled over a few calls at a time, function after function, round after round.

    For work that heats a GPU: in its block every function first runs untimed until the clocks have settled on it, so
    that a short one does not pay for the heat of a long one before it. Calls of a sample follow another and each other
    without waiting for the device, as steps of training do.
    """
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, taken in zip(functions, seconds, strict=True):
            begin = time.perf_counter()
            while time.perf_counter() - begin < 0.5:
                _seconds(function)
            taken.extend(_seconds(function, _CALLS) for _ in range(samples))
    return seconds


def median_ratio(ours: Sequence[float], peer: Sequence[float]) -> float:
    """The peer's time over ours, round by round, then the median: above 1, ours is faster."""
    return statistics.median(theirs / mine for mine, theirs in zip(ours, peer, strict=True))


def write_results(name: str, cases: Sequence[dict[str, Any]]) -> Path:
    """Write `cases` to benchmarks/results/<name>.json with everything needed to judge them."""
    facts = {
        "benchmark": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "versions": {"regard": regard.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "hardware": _hardware(),
        "cases": list(cases),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def operations(config: AnyModelConfig, target: int, source: int = 0) -> tuple[float, float]:
    """Floating-point operations of matrix products for a token of the source and one of the target, there and back.

    As `regard cost` counts them, for texts of these lengths.
    """
    return estimate(config, Work(1, target, source), precision="fp32").training_flops_per_token


def share_of_peak(speed: float, operations: float, rate: float | None) -> float | None:
    """What tokens a second come to beside the rate of large products, where that was measured."""
    return None if rate is None else speed * operations / rate


def memory_status() -> dict[str, float]:
    """The sizes in /proc/self/status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 / 1e6 for line in lines if line.endswith(" kB")}


def say(case: dict[str, Any]) -> dict[str, Any]:
    """Print a case as one JSON line as soon as it is known."""
    print(json.dumps(case, ensure_ascii=False), flush=True)
    return case


def _seconds(function: Callable[[], object], calls: int = 1) -> float:
    """Of one call, as the mean of some."""
    if not torch.cuda.is_available():
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - begin) / calls
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if calls > 1:
        function()  # so that the device is at work already when the first of them comes
    first.record()
    for _ in range(calls):
        function()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / 1e3 / calls


def _hardware() -> dict[str, Any]:
    processor = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        processor = names[0].split(":", 1)[1].strip() if names else processor
    facts: dict[str, Any] = {"processor": processor, "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def _commit() -> str:
    """The commit measured, marked where the tree differs from it; $REGARD_COMMIT where there is no repository."""
    if "REGARD_COMMIT" in os.environ:
        return os.environ["REGARD_COMMIT"]
    here = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--", "../src"], cwd=here, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + (" with changes" if changed.stdout.strip() else "")
