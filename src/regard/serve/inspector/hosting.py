"""Running the app on this machine's loopback address, where no other machine can reach it."""

import os
import secrets
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable

import uvicorn

from regard.serve.inspector.app import AppState, create_app
from regard.serve.inspector.secret import PARAMETER
from regard.serve.listening import LOOPBACK, bind


def run_server(
    state: AppState,
    port: int | None,
    default_port: int,
    fragment: str,
    *,
    open_browser: bool,
    log: Callable[[str], None],
) -> None:
    """Serve until interrupted. `log` receives the URL, with a secret and `fragment`, once the server responds.

    Without a `port`, the default one is used, or any free one if that is taken.
    """
    listener = bind(LOOPBACK, port, default_port)
    secret = secrets.token_urlsafe(18)
    url = f"http://{LOOPBACK}:{listener.getsockname()[1]}/?{PARAMETER}={secret}{fragment}"
    config = uvicorn.Config(
        create_app(state, secret=secret),
        log_level="warning",
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=2,
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


def has_display() -> bool:
    """Whether a browser opened on this machine would be visible."""
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
