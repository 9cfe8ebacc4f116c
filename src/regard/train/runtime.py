"""Process-wide settings that a run changes and restores: signal handlers, determinism, attention kernels."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

import torch

from regard.errors import UserError


class StoppedError(Exception):
    """The run was stopped by a signal (Ctrl-C, SIGTERM) and has saved a checkpoint."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step:,}")
        self.step = step


class DivergedError(UserError):
    """The loss, or a weight, is not finite any more; further steps would not help."""

    def __init__(self, step: int) -> None:
        super().__init__(
            f"The loss is not finite at step {step:,}. Lower train.schedule.lr, raise train.schedule.warmup_steps, or "
            "clip gradients (train.max_grad_norm); then start again."
        )
        self.step = step


@contextlib.contextmanager
def stop_on_signal(*, ignore_repeats: bool = False) -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether SIGINT or SIGTERM arrived, so that the step can be finished and saved first.

    A second signal interrupts at once, unless `ignore_repeats` is given: with several processes, each may get a signal
    from the terminal and another from its launcher.
    """
    stopped = False

    def handle(number: int, frame: object) -> None:
        nonlocal stopped
        if stopped and not ignore_repeats:
            raise KeyboardInterrupt
        stopped = True

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set signal handlers
        yield lambda: stopped
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def deterministic_algorithms(enabled: bool) -> Iterator[None]:
    """PyTorch's deterministic algorithms within the block, if `enabled`."""
    if not enabled:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it PyTorch refuses matmuls on CUDA
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextlib.contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Scaled dot-product attention without cuDNN, which builds a kernel for every new shape, in a second each.

    Batches have many shapes, and for rows as short as sentences PyTorch's own kernels are as fast.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
