"""Letting an app be reached from this machine, and from nowhere else."""

import errno
import os
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable

import uvicorn

from regard.errors import UserError
from regard.serve.app import Desk, create_app

HOST = "127.0.0.1"


def host(
    desk: Desk, port: int | None, usual: int, place: str, *, open_browser: bool, say: Callable[[str], None]
) -> None:
    """Answer until someone stops it. `say` hears the address, with `place` behind it, once there is an answer.

    Without a `port` it is the `usual` one, or any other where that is taken.
    """
    bound = bind(port, usual)
    address = f"http://{HOST}:{bound.getsockname()[1]}/{place}"
    config = uvicorn.Config(
        create_app(desk), log_level="warning", server_header=False, ws="none", timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)

    def announce() -> None:
        while not server.started and not server.should_exit:
            time.sleep(0.02)
        if server.started:
            say(address)
            if open_browser and has_screen():
                webbrowser.open(address)

    threading.Thread(target=announce, name="regard-announce", daemon=True).start()
    try:
        server.run(sockets=[bound])
    except KeyboardInterrupt:
        pass
    finally:
        server.should_exit = True
        desk.jobs.stop_all()
        bound.close()


def bind(port: int | None, usual: int) -> socket.socket:
    """A socket of this machine's own address."""
    for number in (usual, 0) if port is None else (port,):
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((HOST, number))
        except OSError as error:
            bound.close()
            if port is None and number == usual and error.errno == errno.EADDRINUSE:
                continue
            raise UserError(f"Port {number} cannot be had ({error.strerror}); choose another with --port.") from None
        return bound
    raise AssertionError("any port would have done")


def has_screen() -> bool:
    """Whether a browser opened here would be seen."""
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
