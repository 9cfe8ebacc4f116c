"""A service with small untrained models of every task, and clients of it in this process."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from starlette.testclient import TestClient

from regard.serve.api.access import Access
from regard.serve.api.app import create_service_app
from regard.serve.api.service import Service
from regard.serve.limits import Limits
from regard.serve.models.registry import ModelRegistry, parse_sources
from regard.serve.models.served_model import LoadOptions, ServedModel
from regard.task.parsing.pipeline import Parser
from regard.task.parsing.recipe import SYMBOLS
from tests.look.support import save_run, task_models

HOME = "http://127.0.0.1:8000"
LIMITS = Limits(
    body_bytes=100_000,
    image_body_bytes=400_000,
    items=8,
    characters=500,
    total_characters=1200,
    new_tokens=16,
    beam_size=4,
    seconds=30,
)
NAMES = {
    "translator": "translation",
    "generator": "language-modeling",
    "parser": "parsing",
    "filler": "masked-lm",
    "classifier": "text-classification",
    "tagger": "token-classification",
    "images": "image-classification",
}
"""The models' names, and their tasks."""


@cache
def run_folder(name: str) -> Path:
    """A run folder of a small model."""
    traced = task_models()[NAMES[name]]
    folder = save_run(Path(mkdtemp()) / name, traced)
    pipeline = traced.pipeline  # type: ignore[attr-defined]
    if isinstance(pipeline, Parser):
        pipeline.symbols.save(folder / SYMBOLS)
    return folder


def make_service(*names: str, access: Access | None = None, limits: Limits = LIMITS) -> Service:
    """A service with some of the models, or with all."""
    sources = parse_sources([str(run_folder(name)) for name in names or NAMES], [])
    models = ModelRegistry(sources, limits, LoadOptions(fused=False), lambda _: None)
    return Service(models, limits, access or Access())


@cache
def whole_service() -> Service:
    """A service with all models, which all tests of this process share."""
    return make_service()


def make_client(service: Service | None = None, **options: Any) -> TestClient:
    """A client of a service; by default of the one with all models."""
    app = create_service_app(service or whole_service(), log=lambda _: None, **options)
    return TestClient(app, base_url=HOME, raise_server_exceptions=False)


def served(name: str) -> ServedModel:
    """A model of the shared service."""
    return next(model for model in whole_service().models if model.name == name)


def check_refused(response: Any, status: int, *parts: str) -> None:
    """Check the status, and that the message is one sentence that contains these parts."""
    assert response.status_code == status, response.text
    assert list(response.json()) == ["detail"]
    detail = response.json()["detail"]
    assert detail.endswith("."), detail
    assert "\n" not in detail
    for part in parts:
        assert part in detail, detail
