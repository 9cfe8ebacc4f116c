"""Helpers for benchmarks: fair timing, and result files that record their provenance.

regard and the peer are timed alternately in one process, so that other load on the machine and a changing GPU clock
affect both alike. Results are JSON files under benchmarks/results/ with versions, hardware and commit; the
documentation quotes only figures from there.
"""

import json
import os
import platform
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import regard
from regard.cost import TrainingSetup, Workload, estimate
from regard.model import AnyModelConfig

RESULTS = Path(__file__).parent / "results"
_CALLS_PER_SAMPLE = 5
"""Calls that `time_in_blocks` enqueues without synchronizing, and averages over."""


def time_alternating(functions: Sequence[Callable[[], object]], repeats: int, warmup: int = 3) -> list[list[float]]:
    """Seconds of each call, one list per function. Every round calls each function once."""
    for function in functions:
        for _ in range(warmup):
            function()
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for function, samples in zip(functions, seconds, strict=True):
            samples.append(_seconds_per_call(function))
    return seconds


def time_in_blocks(functions: Sequence[Callable[[], object]], rounds: int = 4, samples: int = 4) -> list[list[float]]:
    """Seconds per call, one list per function; every round times each function in a block of several samples.

    For work that heats a GPU. A block starts with untimed calls until the clocks have settled, so that a short function
    is not timed at the clocks a long one left behind. A sample is the mean of several calls that are enqueued without
    synchronizing, as training steps are.
    """
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, block in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            while time.perf_counter() - start < 0.5:
                _seconds_per_call(function)
            block.extend(_seconds_per_call(function, _CALLS_PER_SAMPLE) for _ in range(samples))
    return seconds


def median_ratio(ours: Sequence[float], peer: Sequence[float]) -> float:
    """The median over rounds of the peer's time divided by ours. Above 1, regard is faster."""
    return statistics.median(peer_seconds / our_seconds for our_seconds, peer_seconds in zip(ours, peer, strict=True))


def write_results(name: str, cases: Sequence[dict[str, Any]]) -> Path:
    """Write `cases` to benchmarks/results/<name>.json, with versions, hardware and commit."""
    results = {
        "benchmark": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "versions": {"regard": regard.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "hardware": _hardware(),
        "cases": list(cases),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def training_flops_per_token(config: AnyModelConfig, target_length: int, source_length: int = 0) -> tuple[float, float]:
    """Matmul FLOPs per source token and per target token, forward and backward, as `regard cost` counts them."""
    return estimate(
        config, Workload(1, target_length, source_length), TrainingSetup("float32")
    ).training_flops_per_token


def model_flops_utilization(tokens_per_second: float, flops_per_token: float, peak_flops: float | None) -> float | None:
    """Model FLOPs utilization (MFU), relative to the measured FLOP/s of large matmuls; None if that is unknown."""
    return None if peak_flops is None else tokens_per_second * flops_per_token / peak_flops


def process_memory_mb() -> dict[str, float]:
    """The sizes in /proc/self/status (VmRSS, VmHWM, RssAnon …), in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 / 1e6 for line in lines if line.endswith(" kB")}


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """Collects the memory of this process, twenty times a second."""
    samples, stop = [process_memory_mb()["RssAnon"]], threading.Event()

    def sample() -> None:
        while not stop.wait(0.05):
            samples.append(process_memory_mb()["RssAnon"])

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()
        samples.append(process_memory_mb()["RssAnon"])


def word_level_tokenizer(vocab_size: int) -> Any:
    """A tokenizer with one made-up word per id (w0, w1 …), as saving and exporting a model require one."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    return Tokenizer(WordLevel({f"w{token}": token for token in range(vocab_size)}, unk_token="w3"))


def log(case: dict[str, Any]) -> dict[str, Any]:
    """Print a case as one JSON line, as soon as it has been measured, and return it."""
    print(json.dumps(case, ensure_ascii=False), flush=True)
    return case


def _seconds_per_call(function: Callable[[], object], calls: int = 1) -> float:
    """The mean over `calls`; on a GPU by CUDA events."""
    if not torch.cuda.is_available():
        start = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - start) / calls
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if calls > 1:
        function()  # keeps the device busy while the first timed call is enqueued
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
    hardware: dict[str, Any] = {"processor": processor, "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        hardware["gpu"] = torch.cuda.get_device_name()
    return hardware


def _commit() -> str:
    """The measured commit, marked if src/ has uncommitted changes; $REGARD_COMMIT overrides it outside a repository."""
    if "REGARD_COMMIT" in os.environ:
        return os.environ["REGARD_COMMIT"]
    folder = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True)
        status = subprocess.run(
            ["git", "status", "--porcelain", "--", "../src"], cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + (" with changes" if status.stdout.strip() else "")
