"""Running a command in several processes: launching them, and joining their process group.

A process that torchrun launched finds the others by the environment variables that torchrun sets. `--processes`
launches them on this machine with PyTorch's own launcher, which torchrun uses too, and lets it choose the ports.
"""

import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from regard.cli.options import select_device
from regard.cli.standard_streams import BROKEN_PIPE, print_error
from regard.errors import UserError

if TYPE_CHECKING:
    import torch

    from regard.train.distributed.process_group import ProcessGroup


ProcessesOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1024,
        help="The number of processes to launch on this machine, which share the work (on GPUs, one each).",
    ),
]

TIMEOUT = 24 * 3600.0
"""Seconds that processes wait for each other unless a recipe sets it: some get longer sentences than others."""
_LAUNCHED = "REGARD_PROCESSES"
"""An environment variable that is set in the processes that we launch."""
_ERROR_DELAY = 5.0
"""Seconds that the other ranks wait for rank 0 to report an error."""
_joined_groups: list["ProcessGroup"] = []
"""Groups of more than one process that this process has joined."""


def launch_processes(
    processes: int | None, device: str, threads: int | None, advice: str | Callable[[], str] = ""
) -> None:
    """Launch the requested processes with this command line, wait for them and exit with their code.

    Returns if there is nothing to launch. `advice` is added to the message about a lost process; a function is
    called then.
    """
    if processes is None or _LAUNCHED in os.environ:
        return
    if "TORCHELASTIC_RUN_ID" in os.environ or "RANK" in os.environ:
        raise UserError("--processes launches processes, but torchrun has already done so; leave it out.")
    if processes == 1:
        return
    _check_devices(select_device(device, threads).type, device, processes)
    if threads is None:  # otherwise the processes would compete for the same cores
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    os.environ[_LAUNCHED] = str(processes)
    try:
        code = _launch(processes, advice)
    finally:
        del os.environ[_LAUNCHED]
    raise typer.Exit(code)


@contextlib.contextmanager
def join_process_group(
    device: str, threads: int | None, timeout: float
) -> Iterator["tuple[ProcessGroup, torch.device]"]:
    """This process's group and device. Only one process of the group reports why a command failed."""
    from regard.train.distributed.process_group import SINGLE_PROCESS, LostPeerError, init_process_group

    with report_errors_once():
        own_device = _own_device(device, threads)
    process_group = SINGLE_PROCESS
    try:
        process_group = init_process_group(own_device, timeout)
        if process_group is not SINGLE_PROCESS:
            _joined_groups.append(process_group)
        yield process_group, own_device
    except UserError as error:
        if process_group.claim_error_report():  # at once: when one process ends, the others are terminated
            print_error(f"regard: {error}")
        raise SystemExit(2) from None
    except LostPeerError as lost:
        if process_group.claim_error_report() and _LAUNCHED not in os.environ:  # our launcher reports it
            message = f"{str(lost)[0].upper()}{str(lost)[1:]}"
            print_error(f"regard: {message}. Checkpoints are complete; continue with --resume.")
        exit_now(1)  # cleaning up would wait for the lost process
    process_group.destroy()


def exit_now(code: int = 0) -> None:
    """Exit without finalizing the interpreter, while threads may still be computing.

    A thread that releases a tensor during finalization aborts the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def clean_exit() -> Iterator[None]:
    """Wrap a command so that a member of a process group exits at once when it is done.

    PyTorch's threads keep what they sent for a moment longer; an abort then would count as a lost process.
    """
    try:
        yield
    except SystemExit as end:
        if not _joined_groups:
            raise
        exit_now(end.code if isinstance(end.code, int) else int(end.code is not None))


@contextlib.contextmanager
def report_errors_once() -> Iterator[None]:
    """Before a process group exists, errors are usually the same in all processes: local rank 0 reports them.

    The others wait: if it exits, they are terminated; if it had no error, they report theirs.
    """
    try:
        yield
    except UserError:
        if os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(_ERROR_DELAY)
        raise


def was_restarted() -> bool:
    """Whether torchrun has restarted this process after another was lost."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def _launch(processes: int, advice: str | Callable[[], str]) -> int:
    """Launch the processes and wait for them; returns the exit code."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.CRITICAL)  # we report failures in one sentence
    with tempfile.TemporaryDirectory(prefix="regard-") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "regard", *sys.argv[1:])
        except SignalException:
            return 130
        except ChildFailedError as failed:
            return _report_failures(failed.failures, processes, advice() if callable(advice) else advice)
        finally:
            logging.disable(logging.NOTSET)
    return 0


def _report_failures(failures: dict[int, Any], processes: int, advice: str) -> int:
    """The exit code; reports the failure if no process could report it itself."""
    codes = {rank: failure.exitcode for rank, failure in failures.items()}
    lost = {
        rank: code for rank, code in codes.items() if code < 0 and code != -signal.SIGTERM
    }  # SIGTERM is sent by the launcher
    for code in (2, 130, BROKEN_PIPE):
        if code in codes.values() and not lost:
            return code
    rank, code = next(iter((lost or codes).items()))
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    print_error(f"regard: Process {rank} of {processes} {how}; the others were terminated.{advice}")
    return 1


def _own_device(name: str, threads: int | None) -> "torch.device":
    """The device of this process: in a process group each has its own GPU, or all use the CPU."""
    import torch

    from regard.train.distributed.process_group import LAUNCH_ADVICE, world_size

    device = select_device(name, threads)
    if world_size() == 1:
        return device
    try:
        local_rank, local_size = (int(os.environ[key]) for key in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    except (KeyError, ValueError):
        raise UserError(f"RANK is set but not LOCAL_RANK; {LAUNCH_ADVICE}.") from None
    _check_devices(device.type, name, local_size)
    if device.type != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _check_devices(kind: str, name: str, processes: int) -> None:
    """Refuse more processes than this machine has devices for."""
    import torch

    if kind == "cuda" and ":" in name:
        raise UserError(f"--device {name} is one GPU, but every process needs its own; use --device cuda.")
    if kind == "cuda" and processes > torch.cuda.device_count():
        raise UserError(
            f"{processes} processes need as many GPUs, but this machine has {torch.cuda.device_count()}; use fewer, "
            "or --device cpu."
        )
    if kind == "mps" and name != "auto":
        raise UserError("Apple's GPU supports one process; leave out --processes, or use --device cpu.")
