"""A server with small models, listening on a port in a thread."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn

from regard.run import save_model
from regard.serve.api.access import Access
from regard.serve.api.app import create_service_app
from regard.serve.api.service import Service
from regard.serve.limits import Limits
from regard.serve.models.registry import ModelRegistry, ModelSource
from regard.serve.models.served_model import LoadOptions
from regard.task.pipeline import Pipeline


class ServiceUrl(str):
    """The address of a server, without a slash at its end, and what runs there."""

    service: Service
    log: list[dict[str, Any]]
    """What is known about each answered request."""


@contextmanager
def serving_models(
    models: Mapping[str, Path | Pipeline], *, limits: Limits | None = None, keys: Sequence[str] = ()
) -> Iterator[ServiceUrl]:
    """Serve run folders, or pipelines, by their names."""
    limits = limits or Limits()
    with TemporaryDirectory() as scratch:
        folders = {name: save_pipeline(Path(scratch) / name, model) for name, model in models.items()}
        sources = [ModelSource(name, str(folder)) for name, folder in folders.items()]
        registry = ModelRegistry(sources, limits, LoadOptions(fused=False), lambda message: None)
        service = Service(registry, limits, Access.with_keys(keys, local_only=True))
        with listening(service) as url:
            yield url


@contextmanager
def listening(service: Service) -> Iterator[ServiceUrl]:
    """Serve on a free port, until the block ends."""
    log: list[dict[str, Any]] = []
    app = create_service_app(service, log=log.append)
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="error", ws="none", timeout_graceful_shutdown=1, lifespan="off"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < deadline, "The server did not start."
            time.sleep(0.01)
        url = ServiceUrl(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
        url.service, url.log = service, log
        yield url
    finally:
        server.should_exit = True
        thread.join(10)
        service.models.close()


def save_pipeline(folder: Path, model: Path | Pipeline, **changes: Any) -> Path:
    """A run folder of a pipeline; a folder is one already."""
    if isinstance(model, Path):
        return model
    loaded = model.loaded
    decode = getattr(model, "decode", None)
    origin = {**loaded.origin, **({} if decode is None else {"decode": decode.plain()}), **changes.pop("origin", {})}
    return save_model(loaded.model, folder, tokenizer=loaded.tokenizer, origin=origin, **changes)
