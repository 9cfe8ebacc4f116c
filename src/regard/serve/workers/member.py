"""What a worker process knows of its supervisor: the socket that it serves on, its device, and whether both live on.

The supervisor tells it in environment variables, and both are connected by a pair of sockets. The worker says there
that it is ready. When its end is closed, the supervisor is gone, even if it was killed, and the worker stops.
"""

import os
import signal
import socket
import threading
from dataclasses import dataclass

VARIABLE = "REGARD_SERVE_WORKER"
"""The number of the worker, the file descriptors of the two sockets, and the device, separated by spaces."""
READY = b"r"


@dataclass(frozen=True)
class Member:
    """A worker process."""

    number: int
    listener: socket.socket
    """The socket that all workers accept connections from."""
    supervisor: socket.socket
    device: str

    def report_ready(self) -> None:
        """Tell the supervisor that this worker answers requests."""
        try:
            self.supervisor.sendall(READY)
        except OSError:  # it has gone, and the worker stops
            return


def environment(number: int, listener: socket.socket, control: socket.socket, device: str) -> dict[str, str]:
    """The environment variable that makes a process a worker."""
    return {VARIABLE: f"{number} {listener.fileno()} {control.fileno()} {device}"}


def join_supervisor() -> Member | None:
    """This process as a worker; None if it is none. From then on it stops when the supervisor ends."""
    value = os.environ.pop(VARIABLE, None)
    if value is None:
        return None
    number, listener, control, device = value.split(" ")
    member = Member(int(number), socket.socket(fileno=int(listener)), socket.socket(fileno=int(control)), device)
    threading.Thread(target=_stop_with, args=(member.supervisor,), name="regard-supervisor", daemon=True).start()
    return member


def _stop_with(supervisor: socket.socket) -> None:
    """Wait until the supervisor has ended, and stop this process as SIGTERM does."""
    try:
        while supervisor.recv(1):
            pass
    except OSError:
        pass
    os.kill(os.getpid(), signal.SIGTERM)
