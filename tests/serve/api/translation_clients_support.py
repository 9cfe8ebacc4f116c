"""A server with two small translators, in this process and on a port."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.testclient import TestClient

from regard.serve.api.access import Access
from regard.serve.api.app import create_service_app
from regard.serve.api.service import Service
from regard.serve.limits import Limits
from regard.serve.models.registry import ModelRegistry, parse_sources
from regard.serve.models.served_model import LoadOptions
from tests.look.support import autoregressive_model, save_run

HOME = "http://127.0.0.1:8000"
LIMITS = Limits(items=20, characters=500, beam_size=4)


@contextmanager
def translation_service(
    folder: Path, pairs: Sequence[str] = ("en-tr", "tr-de"), key: str | None = None
) -> Iterator[Service]:
    """A service with a translator for each pair of languages. All have the same random weights."""
    save_run(folder / "model", autoregressive_model())
    sources = parse_sources([f"{pair}={folder / 'model'}" for pair in pairs])
    access = Access.with_keys([] if key is None else [key], local_only=key is None)
    service = Service(ModelRegistry(sources, LIMITS, LoadOptions(fused=False), print), LIMITS, access)
    try:
        yield service
    finally:
        service.models.close()


def make_client(service: Service) -> TestClient:
    app = create_service_app(service, log=lambda record: None)
    return TestClient(app, base_url=HOME, raise_server_exceptions=False)


@contextmanager
def listening(service: Service) -> Iterator[str]:
    """The address of a server on a free port, with a slash at its end."""
    app = create_service_app(service, log=lambda record: None)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline, "The server did not start."
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(10)
