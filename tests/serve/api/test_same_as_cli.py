"""The server's answers are those of the command line: same model, same options, same seed, alone and under load."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from regard.serve.api.access import Access
from regard.serve.api.app import create_service_app
from regard.serve.api.service import Service
from regard.serve.limits import Limits
from regard.serve.models.registry import ModelRegistry, parse_sources
from regard.serve.models.served_model import LoadOptions
from tests.look.support import TEXT, autoregressive_model, save_run
from tests.model.small_models import language_model
from tests.task.small import command

SENTENCES = [TEXT, "the old man sat by the sea", "a mouse", "red sun, big sea. Old dog!", ""]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    save_run(folder / "translator", autoregressive_model())
    save_run(folder / "generator", autoregressive_model(language_model()))
    return {"translate": folder / "translator", "generate": folder / "generator"}


@pytest.fixture(scope="module")
def client(folders: dict[str, Path]) -> Iterator[TestClient]:
    limits = Limits()
    sources = parse_sources([str(folder) for folder in folders.values()])
    models = ModelRegistry(sources, limits, LoadOptions(fused=False), print)
    app = create_service_app(Service(models, limits, Access()), log=lambda record: None)
    yield TestClient(app, base_url="http://127.0.0.1")
    models.close()


CASES: list[tuple[str, list[str], dict[str, Any]]] = [
    ("translate", [], {}),
    ("translate", ["--beam-size", "1"], {"beam_size": 1}),
    ("translate", ["--beam-size", "4", "--length-penalty", "0"], {"beam_size": 4, "length_penalty": 0}),
    (
        "translate",
        ["--temperature", "1.5", "--top-k", "40", "--seed", "3"],
        {"temperature": 1.5, "top_k": 40, "seed": 3},
    ),
    ("translate", ["--no-split", "--forbid", "a"], {"split": False, "forbid": ["a"]}),
    ("generate", ["--seed", "5", "--max-new-tokens", "9"], {"seed": 5, "max_new_tokens": 9}),
    ("generate", ["--beam-size", "3", "--max-new-tokens", "7"], {"beam_size": 3, "max_new_tokens": 7}),
]


@pytest.mark.parametrize(("task", "options", "fields"), CASES)
def test_answers_equal_those_of_the_command_line(
    client: TestClient, folders: dict[str, Path], task: str, options: list[str], fields: dict[str, Any]
) -> None:
    texts = [text for text in SENTENCES if text]
    done = command(task, folders[task], *texts, *options, "--json")
    assert done.code == 0, done.err
    expected = [json.loads(line) for line in done.out.splitlines()]
    body = {"text" if task == "translate" else "prompt": texts, "details": True, **fields}
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: client.post(f"/v1/{task}", json=body), range(8)))
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert_same(answer.json()["details"], expected)


def assert_same(found: Any, expected: Any) -> None:
    """Equal, but for the last digit of log-probabilities, which a batch of another size may round differently."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, abs=2e-4)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected
