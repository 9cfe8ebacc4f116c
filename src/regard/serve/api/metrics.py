"""`GET /metrics`: what the server does, in the format of Prometheus.

Requests are counted from the same records that the log has, with the template of a route and the name of a model as
labels, never anything that a client chose. What engines and queues do is read when it is asked for.

With several workers, each process writes its values to files of its own in a folder that all of them know
(PROMETHEUS_MULTIPROC_DIR), and the one that is asked adds them up. Then values that are read have to be written down
regularly, which `publish` does.
"""

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

if TYPE_CHECKING:
    from regard.serve.api.service import Service
    from regard.serve.models.engine_thread import EngineThread

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""prometheus_client writes to files, instead of to memory, if this was set when it was imported."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""The buckets of the latency histogram."""


class Metrics:
    """What is counted of a service."""

    def __init__(self, service: "Service") -> None:
        self.service = service
        self.folder = os.environ.get(FOLDER_VARIABLE)
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        live: dict[str, Any] = {"registry": self.registry, "multiprocess_mode": "livesum"}
        self.requests = Counter("regard_requests", "Answered requests.", ("route", "status", "model"), **own)
        self.seconds = Histogram(
            "regard_request_seconds", "Seconds from request to response.", ("route",), buckets=_SECONDS, **own
        )
        self.items = Counter("regard_items", "Texts or images in requests.", ("route", "model"), **own)
        self.tokens = Counter("regard_tokens", "Tokens of outputs.", ("route", "model"), **own)
        self.reloads = Counter("regard_model_reloads", "Models loaded again.", ("model", "result"), **own)
        self.steps = Counter("regard_engine_steps", "Decoding steps.", ("model",), **own)
        self.outputs = Counter(
            "regard_engine_outputs",
            "Outputs in all steps: over the steps, how full batches are.",
            ("model",),
            **own,
        )
        self.in_progress = Gauge("regard_requests_in_progress", "Requests that are being answered.", **live)
        self.waiting = Gauge("regard_requests_waiting", "Requests that wait for their turn.", ("model",), **live)
        self.active = Gauge("regard_engine_active", "Outputs that are being decoded.", ("model",), **live)
        self.cache = Gauge("regard_kv_cache_bytes", "KV cache that is allocated.", ("model",), **live)
        self.processes = Gauge("regard_processes", "Processes that answer requests.", **live)
        self.memory = Gauge("regard_resident_memory_bytes", "Memory of the server's processes.", **live)
        self._counted: dict[tuple[str, ...], int] = {}
        self._engines: weakref.WeakKeyDictionary[EngineThread, tuple[int, int]] = weakref.WeakKeyDictionary()
        """What was counted of each engine so far: after a reload, a model has a new one."""

    def observe(self, record: dict[str, Any]) -> None:
        """Count an answered request."""
        route, model = record["route"], record.get("model", "")
        self.requests.labels(route, str(record["status"]), model).inc()
        self.seconds.labels(route).observe(record["seconds"])
        self.items.labels(route, model).inc(record.get("items", 0))
        self.tokens.labels(route, model).inc(record.get("tokens", 0))

    def before(self, log: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        """Count requests before they are logged."""

        def observe_and_log(record: dict[str, Any]) -> None:
            self.observe(record)
            log(record)

        return observe_and_log

    def publish(self) -> None:
        """Write down for the other workers what this one does now; without others, nothing needs to be done."""
        if self.folder is not None:
            self._read()

    def text(self) -> bytes:
        """Everything, of all workers."""
        self._read()
        if self.folder is None:
            return generate_latest(self.registry)
        everything = CollectorRegistry()
        MultiProcessCollector(everything, self.folder)  # type: ignore[no-untyped-call]
        return generate_latest(everything)

    def _read(self) -> None:
        """Take over what engines, queues and the operating system say now."""
        self.in_progress.set(self.service.in_progress)
        self.processes.set(1)
        self.memory.set(_resident_bytes())
        for model in self.service.models:
            engines = model.engines()
            self.waiting.labels(model.name).set(model.waiting)
            self.active.labels(model.name).set(sum(engine.active for engine in engines))
            self.cache.labels(model.name).set(sum(engine.cache_bytes for engine in engines))
            for engine in engines:
                now = (engine.steps, engine.outputs)
                before = self._engines.get(engine, (0, 0))
                self._engines[engine] = now
                self.steps.labels(model.name).inc(now[0] - before[0])
                self.outputs.labels(model.name).inc(now[1] - before[1])
        for labels, count in list(self.service.models.reloads.items()):
            self.reloads.labels(*labels).inc(count - self._counted.get(labels, 0))
            self._counted[labels] = count


def metrics_routes(service: "Service") -> APIRouter:
    router = APIRouter()

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """What the server does, in the format of Prometheus."""
        assert service.metrics is not None
        return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    return router


def forget_process(process: int, folder: str) -> None:
    """Leave out what a worker that has ended did last. What it has counted stays."""
    mark_process_dead(process, folder)  # type: ignore[no-untyped-call]


def _resident_bytes() -> int:
    """The memory of this process; 0 where the operating system does not tell it in a file."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
