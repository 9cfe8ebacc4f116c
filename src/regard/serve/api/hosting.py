"""Running the public API on a socket until it is told to stop, and stopping without losing a request."""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from regard.serve.api.connections import PatientProtocol
from regard.serve.api.service import Service

DRAIN_SECONDS = 0.5
"""How long a server that shuts down still accepts connections, to refuse their requests in a sentence."""
KEEP_ALIVE_SECONDS = 75
MAX_HEADER_BYTES = 32 << 10
"""Bytes of a request's line and headers."""


def run_service(
    app: FastAPI, service: Service, listener: socket.socket, *, grace: float, on_ready: Callable[[], None]
) -> None:
    """Answer requests until SIGTERM or SIGINT. What has begun then has `grace` seconds to finish. SIGHUP loads the
    models again."""
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=round(grace),
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
    server = ServiceServer(config, service, on_ready)
    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=service.models.reload, daemon=True).start())
    try:
        server.run(sockets=[listener])
    finally:
        service.models.close()


class ServiceServer(uvicorn.Server):
    """A server that drains: it goes on accepting connections for a moment, and refuses their requests."""

    def __init__(self, config: uvicorn.Config, service: Service, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.service, self.on_ready = service, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.draining = True
        if not self.force_exit:
            await asyncio.sleep(DRAIN_SECONDS)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.service.draining = True
        super().handle_exit(sig, frame)
