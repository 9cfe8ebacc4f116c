"""Running the public API on a socket until it is told to stop, and stopping without losing a request.

A server that is told to stop goes on accepting connections for a moment and refuses their requests in a sentence, which
also ends connections that clients keep open. Then it lets no client connect anymore, accepts what is left in the queue
of the socket, closes that, and waits until all requests that have begun are finished. A connection is closed only when
nothing has arrived on it.
"""

import asyncio
import contextlib
import gc
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from regard.serve.api.connections import LimitedConnection, connections_with
from regard.serve.api.service import Service
from regard.serve.limits import Limits
from regard.serve.listening import DRAIN_SECONDS, stop_connecting

SWITCH_SECONDS = 5e-4
"""How long an engine may wait for the interpreter while requests are read and answered; Python's default is 5 ms."""
BACKLOG = 2048
"""Connections that wait to be accepted."""
_HANDSHAKE_SECONDS = 0.05
"""How long clients that have begun to connect have to finish it, before the socket is closed."""
_CANCELED_SECONDS = 2.0
"""How long requests may take to be refused that were not finished in time."""
_TICKS_PER_SECOND = 10


def run_service(
    app: FastAPI,
    service: Service,
    listener: socket.socket,
    *,
    grace: float,
    on_ready: Callable[[], None],
    shared: bool = False,
) -> None:
    """Answer requests until SIGTERM or SIGINT. What has begun then has `grace` seconds to finish. SIGHUP loads models
    again that have changed. Whether clients can connect stays as it is if the socket is `shared` with other processes.
    """
    raise_file_limit()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # models and libraries: looking through them again would stop all threads for a fifth of a second
    server = ServiceServer(service_config(app, service.limits), service, grace, on_ready, shared)
    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=service.models.reload, daemon=True).start())
    try:
        server.run(sockets=[listener])
    finally:
        service.models.close()


def service_config(app: FastAPI, limits: Limits) -> uvicorn.Config:
    """The settings of uvicorn."""
    return uvicorn.Config(
        app,
        http=connections_with(limits),  # type: ignore[arg-type]
        ws="none",
        log_config=None,
        log_level="critical",  # the log has what is worth knowing, as JSON
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing depends on the address of a client
        backlog=1,  # one connection is accepted at a time, so that workers which share the socket get as many each
        timeout_keep_alive=round(limits.keep_alive_seconds),
        h11_max_incomplete_event_size=limits.header_bytes,
    )


class ServiceServer(uvicorn.Server):
    """A server that ends connections which break limits, and that drains when it is told to stop."""

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        grace: float,
        on_ready: Callable[[], None],
        shared: bool = False,
    ) -> None:
        super().__init__(config)
        self.service, self.grace, self.on_ready, self.shared = service, grace, on_ready, shared

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)
        if self.started:
            self.on_ready()

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_SECOND == 0:
            self._each_second()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.draining = True
        end = time.monotonic() + self.grace
        await self._wait(min(end, time.monotonic() + DRAIN_SECONDS), lambda: False)
        for listener in sockets or ():
            if not self.shared:
                stop_connecting(listener)
        await asyncio.sleep(_HANDSHAKE_SECONDS)
        await self._stop_listening(sockets or [])
        await self._wait(end, self._is_drained)
        for task in list(self.server_state.tasks):
            task.cancel()  # which answers the request with an error
        await self._wait(time.monotonic() + _CANCELED_SECONDS, self._is_drained)
        for connection in self._connections():
            connection.abort()
        await self.lifespan.shutdown()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.service.draining = True
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on signals. Unlike uvicorn, do not raise them again: having stopped as told is no failure."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _each_second(self) -> None:
        now = time.monotonic()
        for connection in self._connections():
            connection.enforce_limits(now)
        if self.service.metrics is not None:
            self.service.metrics.publish()

    def _connections(self) -> list[LimitedConnection]:
        connections: Any = self.server_state.connections
        return list(connections)

    async def _stop_listening(self, listeners: list[socket.socket]) -> None:
        """Close the socket, and accept the connections that wait before: closing it resets them."""
        accepted: list[socket.socket] = []
        for listener in listeners:
            with contextlib.suppress(OSError):  # BlockingIOError: there are no more
                while True:
                    accepted.append(listener.accept()[0])
        for server in self.servers:
            server.close()
        for one in accepted:
            one.setblocking(False)
            with contextlib.suppress(OSError):  # it has left
                await asyncio.get_running_loop().connect_accepted_socket(self._make_connection, one)

    def _make_connection(self) -> Any:
        make: Any = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def _is_drained(self) -> bool:
        """Close connections that nothing happens on. Whether none is left."""
        idle = [connection for connection in self._connections() if connection.is_idle]
        with selectors.DefaultSelector() as selector:
            for connection in idle:
                if not connection.transport.is_closing():
                    selector.register(connection.transport.get_extra_info("socket"), selectors.EVENT_READ, connection)
            readable = {key.data for key, _ in selector.select(0)} if selector.get_map() else set()
        for connection in idle:
            if connection not in readable:  # else a request has arrived, which is answered first
                connection.close()
        return not self.server_state.connections and not self.server_state.tasks

    async def _wait(self, end: float, is_done: Callable[[], bool]) -> None:
        """Wait until something is done, or a time; not at all when the signal comes a second time."""
        while not is_done() and time.monotonic() < end and not self.force_exit:
            await asyncio.sleep(0.05)
            self._each_second()


def raise_file_limit(wanted: int = 8192) -> None:
    """Let this process have as many open connections as the operating system allows without asking."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
