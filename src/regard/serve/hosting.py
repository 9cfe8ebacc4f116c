"""Running the app on this machine's loopback address, where no other machine can reach it."""

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
from regard.serve.app import AppState, create_app

HOST = "127.0.0.1"


def run_server(
    state: AppState,
    port: int | None,
    default_port: int,
    fragment: str,
    *,
    open_browser: bool,
    log: Callable[[str], None],
) -> None:
    """Serve until interrupted. `log` receives the URL, which ends in `fragment`, once the server responds.

    Without a `port`, the default one is used, or any free one if that is taken.
    """
    listener = bind(port, default_port)
    url = f"http://{HOST}:{listener.getsockname()[1]}/{fragment}"
    config = uvicorn.Config(
        create_app(state), log_level="warning", server_header=False, ws="none", timeout_graceful_shutdown=2
    )
    server = PageServer(config, state)

    def announce() -> None:
        while not server.started and not server.should_exit:
            time.sleep(0.02)
        if server.started:
            log(url)
            if open_browser and has_display():
                webbrowser.open(url)

    threading.Thread(target=announce, name="regard-announce", daemon=True).start()
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        server.should_exit = True
        state.close()
        listener.close()


class PageServer(uvicorn.Server):
    """Stops computations when it shuts down, so that the responses which wait for them end."""

    def __init__(self, config: uvicorn.Config, state: AppState) -> None:
        super().__init__(config)
        self.state = state

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.state.close()
        await super().shutdown(sockets)


def bind(port: int | None, default_port: int) -> socket.socket:
    """A listening socket on the loopback address."""
    for number in (default_port, 0) if port is None else (port,):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, number))
        except OSError as error:
            listener.close()
            if port is None and number == default_port and error.errno == errno.EADDRINUSE:
                continue
            raise UserError(f"Port {number} cannot be used ({error.strerror}); choose another with --port.") from None
        return listener
    raise AssertionError("port 0 always binds")


def has_display() -> bool:
    """Whether a browser opened on this machine would be visible."""
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
