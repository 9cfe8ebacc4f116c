"""What is set for a whole run and put back after it: signals, determinism, kernels."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

import torch


class StoppedError(Exception):
    """The run was asked to stop (Ctrl-C, or the system's polite request) and has saved where it stands."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step:,}")
        self.step = step


@contextlib.contextmanager
def asked_to_stop(*, patient: bool = False) -> Iterator[Callable[[], bool]]:
    """Whether somebody asked, so that the step in hand can be ended and saved first. Asked again, it stops at once.

    `patient`: it does not. Of several processes each may be asked by the terminal and by whoever started them.
    """
    asked = False

    def note(number: int, frame: object) -> None:
        nonlocal asked
        if asked and not patient:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():  # only that one may listen to signals
        yield lambda: asked
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def determinism(wanted: bool) -> Iterator[None]:
    """PyTorch's deterministic algorithms, for as long as the block lasts."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it matrix products on CUDA are refused
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextlib.contextmanager
def ready_kernels() -> Iterator[None]:
    """Attention without cuDNN, which builds a kernel for every new shape: a second each, where batches have many.

    On rows as short as sentences the kernels that are there already are as fast.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
