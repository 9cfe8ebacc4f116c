"""Loading models again while they are served."""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.run import save_trained_model
from regard.run.folder import load_model, model_metadata
from regard.serve.limits import Limits
from regard.serve.models.registry import ModelRegistry, ModelSource
from regard.serve.models.served_model import LoadOptions
from regard.task.language_modeling.pipeline import TextGenerator
from regard.train.checkpoint import Checkpoint, CheckpointManager
from tests.serve.service import save_task, wait_until

GENERATE = "generate"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_task(tmp_path / "writer", "language-modeling")


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def make(messages: list[str]) -> Iterator[Callable[[str], ModelRegistry]]:
    """Makes registries, which are closed at the end."""
    made = []

    def make(path: str) -> ModelRegistry:
        source = ModelSource("writer", path)
        made.append(ModelRegistry([source], Limits(), LoadOptions(fused=False), messages.append))
        return made[-1]

    yield make
    for registry in made:
        registry.close()


def change(folder: Path, factor: float = -1.0) -> None:
    """Train the model a bit."""
    loaded = load_model(folder)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.mul_(factor)
    save_trained_model(loaded.model, folder, origin=loaded.origin)


def weight(registry: ModelRegistry) -> float:
    model: Any = registry.find("writer", GENERATE).pipeline.model
    return next(model.parameters()).flatten()[0].item()


def test_changed_model_is_loaded_once_when_its_files_have_settled(
    folder: Path, make: Callable[[str], ModelRegistry], messages: list[str]
) -> None:
    registry = make(str(folder))
    before = weight(registry)
    registry.look()
    change(folder)
    registry.look()
    assert weight(registry) == before, "it could still be being written"
    registry.look()
    assert weight(registry) == -before
    registry.look()
    registry.reload()
    assert messages == ["writer was loaded again.", "No model has changed."]
    assert registry.reloads == {("writer", "ok"): 1}


def test_damaged_model_is_refused_and_the_old_one_goes_on(
    folder: Path, make: Callable[[str], ModelRegistry], messages: list[str]
) -> None:
    registry = make(str(folder))
    old, good = registry.find("writer", GENERATE), (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(good[:-100])
    for _ in range(4):
        registry.look()
    [message] = messages
    assert message.startswith("writer was not loaded again, and the old model goes on: ")
    assert "model.safetensors" in message
    assert registry.find("writer", GENERATE) is old
    assert old.pipeline.generate("the", max_new_tokens=2) is not None
    registry.reload()
    assert registry.reloads == {("writer", "failed"): 2}
    (folder / "model.safetensors").write_bytes(good)
    registry.reload()
    assert registry.find("writer", GENERATE) is not old


def test_run_is_not_loaded_while_it_is_written(folder: Path, make: Callable[[str], ModelRegistry]) -> None:
    """Without run.json the folder of a run means its newest checkpoint, but the next model is about to come."""
    registry = make(str(folder))
    old = registry.find("writer", GENERATE)
    (folder / "recipe.toml").write_text("")
    (folder / "checkpoints").mkdir()
    run_json = (folder / "run.json").read_text()
    (folder / "run.json").unlink()
    for _ in range(3):
        registry.look()
    registry.reload()
    assert registry.find("writer", GENERATE) is old
    assert not registry.reloads
    (folder / "run.json").write_text(run_json)
    registry.look()
    registry.look()
    assert registry.reloads == {("writer", "ok"): 1}


def test_replaced_model_finishes_its_requests_and_is_freed(folder: Path, make: Callable[[str], ModelRegistry]) -> None:
    others = engine_threads()
    registry = make(str(folder))
    old = registry.find("writer", GENERATE)
    weights = weakref.ref(old.pipeline.model)
    started, texts = threading.Event(), list[str]()

    def write(pipeline: TextGenerator) -> None:
        for piece in pipeline.stream("the old", max_new_tokens=300):
            started.set()
            time.sleep(0.001)
            texts.append(piece)

    request = old.requests.submit(partial(write, old.pipeline))
    del old
    assert started.wait(10)
    change(folder)
    registry.reload()
    assert weights() is not None
    request.result(30)
    del request
    wait_until(lambda: weights() is None, seconds=10, what="the end of the old model")
    assert len(engine_threads() - others) == 1


def engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "regard-engine"}


def test_best_checkpoint_is_followed_while_the_run_goes_on(
    folder: Path, tmp_path: Path, make: Callable[[str], ModelRegistry]
) -> None:
    run, loaded = tmp_path / "run", load_model(folder)
    run.mkdir()
    (folder / "tokenizer.json").rename(run / "tokenizer.json")
    checkpoints = CheckpointManager(run / "checkpoints")
    checkpoints.run = model_metadata(loaded.model, loaded.origin, run, ["tokenizer.json"])

    def save(step: int, best: bool) -> None:
        checkpoints.save(Checkpoint(step, loaded.model.state_dict(), {}, {"cpu": torch.get_rng_state()}), best=best)

    save(4, best=True)
    registry = make(f"{run}@best")
    for step, best, expected in ((8, False, 4), (12, True, 12)):
        save(step, best)
        registry.look()
        registry.look()
        assert registry.find("writer", GENERATE).pipeline.loaded.checkpoint == expected
    assert registry.reloads == {("writer", "ok"): 1}
