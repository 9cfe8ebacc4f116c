"""A service with small models: in this process, in a thread that listens on a port, and as a process of its own."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from regard.serve.api.access import Access
from regard.serve.api.app import create_service_app
from regard.serve.api.hosting import ServiceServer, service_config
from regard.serve.api.service import Service
from regard.serve.limits import Limits
from regard.serve.listening import bind
from regard.serve.models.registry import ModelRegistry, ModelSource
from regard.serve.models.served_model import LoadOptions
from tests.look.support import save_run, task_models

PLAIN = LoadOptions(fused=False)


@cache
def _saved(task: str) -> Any:
    return task_models()[task]


def save_task(folder: Path, task: str = "translation") -> Path:
    """The small model of a task as a run folder."""
    return save_run(folder, _saved(task))


@dataclass
class LocalService:
    """A service in this process, with what it has logged."""

    service: Service
    port: int
    server: ServiceServer
    messages: list[str]
    records: list[dict[str, Any]]

    def connect(self, timeout: float = 20) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def connections(self) -> int:
        """How many are open."""
        return len(self.server.server_state.connections)

    def post(self, path: str, **body: Any) -> tuple[int, Any]:
        return post(self.port, path, **body)


@contextmanager
def local_service(
    *folders: Path, limits: Limits | None = None, keys: Sequence[str] = (), grace: float = 5
) -> Iterator[LocalService]:
    """Models that are served in a thread of this process, on a free port."""
    limits, messages = limits or Limits(), list[str]()
    sources = [ModelSource(folder.name.replace("/", "-"), str(folder)) for folder in folders]
    models = ModelRegistry(sources, limits, PLAIN, messages.append)
    service = Service(models, limits, Access.with_keys(keys, local_only=not keys))
    listener = bind("127.0.0.1", None, 0)
    ready, records = threading.Event(), list[dict[str, Any]]()
    app = create_service_app(service, records.append)
    server = ServiceServer(service_config(app, limits), service, grace, ready.set)
    local = LocalService(service, listener.getsockname()[1], server, messages, records)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield local
    finally:
        server.should_exit = True
        thread.join(20)
        models.close()
        assert not thread.is_alive()


def post(port: int, path: str, **body: Any) -> tuple[int, Any]:
    """The status and the JSON of a response."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def get(port: int, path: str, **headers: str) -> tuple[int, str]:
    """The status and the text of a response."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def metric_samples(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The values at /metrics, by their names and labels, as Prometheus' own parser reads them."""
    status, text = get(port, "/metrics")
    assert status == 200
    families: Any = text_string_to_metric_families(text)
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


class ServiceProcess:
    """`regard serve` as a process."""

    def __init__(self, *arguments: str | Path) -> None:
        command = [sys.executable, "-m", "regard", "serve", *map(str, arguments), "--no-fused", "--device", "cpu"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def wait_ready(self) -> int:
        """Wait for its URL; the port."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.fullmatch(r"http://127\.0\.0\.1:([0-9]+)/\n", line)
        assert found, f"The server did not start: {line!r} {self.log}"
        return int(found[1])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and wait for the end; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(30)

    def messages(self) -> list[str]:
        """The messages of its log so far."""
        lines = [json.loads(line) for line in list(self.log) if line.startswith("{")]
        return [line["message"] for line in lines if "message" in line]

    def children(self) -> list[int]:
        """The process ids of its workers."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(each) for each in path.read_text().split()]

    def __enter__(self) -> "ServiceProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self._reader.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(iter(self.process.stderr.readline, ""))


def wait_until(condition: Callable[[], Any], seconds: float = 15, what: str = "it") -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} seconds"
        time.sleep(0.02)
