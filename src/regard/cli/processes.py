"""Commands that several processes work on together: starting them, and taking part as one of them.

Started by torchrun, a process finds the others by the variables that torchrun sets. `--processes` starts them on this
machine with PyTorch's own launcher, which is what torchrun uses, and lets it choose the ports.
"""

import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from regard.cli.options import chosen_device
from regard.errors import UserError

if TYPE_CHECKING:
    import torch

    from regard.train.world import World

Processes = Annotated[int | None, typer.Option(min=1, help="Start so many processes here that share the work.")]

_STARTED = "REGARD_PROCESSES"
"""Set for the processes that we have started ourselves."""
PATIENCE = 24 * 3600.0
"""Seconds that processes wait for each other where no recipe says how long: some get the longer sentences."""
_met: list["World"] = []
"""Worlds of more than one process that this one has been part of."""
_POLITE = 5.0
"""Seconds to wait for another to speak."""


def start_others(processes: int | None, device: str, threads: int | None, advice: str = "") -> None:
    """Start the processes that were asked for, wait for them and leave as they did; go on here where none were.

    The processes get this one's own command line. `advice` ends the sentence about one that was lost.
    """
    if processes is None or _STARTED in os.environ:
        return
    if "TORCHELASTIC_RUN_ID" in os.environ or "RANK" in os.environ:
        raise UserError("--processes starts processes, and torchrun has done so already; leave it out.")
    if processes == 1:
        return
    kind = chosen_device(device, threads).type
    _check_devices(kind, device, processes)
    if threads is None:  # else they would fight for the same cores
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    os.environ[_STARTED] = str(processes)
    try:
        code = _run(processes, advice)
    finally:
        del os.environ[_STARTED]
    raise typer.Exit(code)


@contextlib.contextmanager
def taking_part(device: str, threads: int | None, timeout: float) -> Iterator["tuple[World, torch.device]"]:
    """The world this process is part of, and the device that is its own. Only one process says why a run failed."""
    from regard.train.world import ALONE, LostError, join

    with one_voice():
        place = _own_device(device, threads)
    world = ALONE
    try:
        world = join(place, timeout)
        if world is not ALONE:
            _met.append(world)
        yield world, place
    except UserError as error:
        if world.may_speak():  # at once: when another ends, this one is ended too
            print(f"regard: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None
    except LostError as lost:
        if world.may_speak() and _STARTED not in os.environ:  # whoever started us knows more about it
            sentence = f"{str(lost)[0].upper()}{str(lost)[1:]}"
            print(f"regard: {sentence}. Checkpoints are whole; go on with --resume.", file=sys.stderr, flush=True)
        leave_at_once(1)  # tidying up would mean to wait for the one that is lost
    world.leave()


def leave_at_once(code: int = 0) -> None:
    """End this process while threads may still compute.

    A thread that gives a tensor back to an interpreter which is being taken down aborts the process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Around a whole command: one of several processes ends at once when it is done.

    PyTorch's threads hold what they sent for a moment longer than the sending took; an abort would count as a loss.
    """
    try:
        yield
    except SystemExit as end:
        if not _met:
            raise
        leave_at_once(end.code if isinstance(end.code, int) else int(end.code is not None))


@contextlib.contextmanager
def one_voice() -> Iterator[None]:
    """What is wrong before processes have met is most often wrong for all: the first on a machine says so.

    The others give it time to. Once it has ended, they are ended; if nothing was wrong there, they speak.
    """
    try:
        yield
    except UserError:
        if os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(_POLITE)
        raise


def restarted() -> bool:
    """Whether torchrun has started this process anew after another was lost."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def _run(processes: int, advice: str) -> int:
    """Start the processes and wait; gives the code to leave with."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.CRITICAL)  # what it has to say, we say in a sentence
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
            return _why(failed.failures, processes, advice)
        finally:
            logging.disable(logging.NOTSET)
    return 0


def _why(failures: dict[int, Any], processes: int, advice: str) -> int:
    """The code to leave with; where no process could say itself why the work has ended, we do."""
    codes = {rank: failure.exitcode for rank, failure in failures.items()}
    lost = {rank: code for rank, code in codes.items() if code < 0 and code != -signal.SIGTERM}  # that one is ours
    for code in (2, 130):
        if code in codes.values() and not lost:
            return code
    rank, code = next(iter((lost or codes).items()))
    how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    print(f"regard: Process {rank} of {processes} {how}, so the others were ended too.{advice}", file=sys.stderr)
    return 1


def _own_device(name: str, threads: int | None) -> "torch.device":
    """The device of this process: of several, each has a GPU of its own, or they all compute on the CPU."""
    import torch

    from regard.train.world import ADVICE, joined_size

    place = chosen_device(name, threads)
    if joined_size() == 1:
        return place
    try:
        local, there = (int(os.environ[key]) for key in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    except (KeyError, ValueError):
        raise UserError(f"RANK is set but not LOCAL_RANK; {ADVICE}.") from None
    _check_devices(place.type, name, there)
    if place.type != "cuda":
        return torch.device("cpu")
    place = torch.device("cuda", local)
    torch.cuda.set_device(place)
    return place


def _check_devices(kind: str, name: str, processes: int) -> None:
    """Whether so many processes of this machine each find a device."""
    import torch

    if kind == "cuda" and ":" in name:
        raise UserError(f"--device {name} is one GPU, and each of several processes takes its own; say --device cuda.")
    if kind == "cuda" and processes > torch.cuda.device_count():
        raise UserError(
            f"{processes} processes need as many GPUs, and this machine has {torch.cuda.device_count()}; start fewer, "
            "or compute on the CPU by --device cpu."
        )
    if kind == "mps" and name != "auto":
        raise UserError("On Apple's GPU one process computes; leave --processes out, or say --device cpu.")
