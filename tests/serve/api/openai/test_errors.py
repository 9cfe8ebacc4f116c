"""Errors become the client's exceptions."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from regard.serve.limits import Limits
from regard.task.pipeline import Pipeline
from tests.serve.api.support import ServiceUrl, serving_models


@pytest.fixture
def guarded(small_language_model: Pipeline) -> Iterator[ServiceUrl]:
    """A server with a key that takes one request at a time and lets none wait."""
    limits = Limits(threads=1, waiting=1, new_tokens=50, items=4)
    with serving_models({"lm": small_language_model}, limits=limits, keys=["right"]) as url:
        yield url


def make_client(url: str, key: str = "right") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["lm", "chat", "translator", "encoder"]
    assert client.models.retrieve("lm").owned_by == "regard"


def test_unknown_model(client: openai.OpenAI) -> None:
    chat: Any = [{"role": "user", "content": "a"}]
    for ask in (
        lambda: client.completions.create(model="gpt-9", prompt="a"),
        lambda: client.chat.completions.create(model="gpt-9", messages=chat),
        lambda: client.embeddings.create(model="gpt-9", input="a"),
        lambda: client.models.retrieve("gpt-9"),
        lambda: client.completions.create(model="encoder", prompt="a"),
    ):
        with pytest.raises(openai.NotFoundError) as refused:
            ask()
        assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


def test_wrong_key_full_queue_and_limits(guarded: ServiceUrl) -> None:
    with make_client(guarded, "wrong") as client, pytest.raises(openai.AuthenticationError) as refused:
        client.models.list()
    assert refused.value.type == "authentication_error"
    with make_client(guarded) as client:
        (model,) = guarded.service.models
        release = threading.Event()
        blocking = [model.requests.submit(release.wait) for _ in range(2)]  # one runs, one waits
        with pytest.raises(openai.RateLimitError) as busy:
            client.completions.create(model="lm", prompt="a")
        assert busy.value.type == "rate_limit_error"
        assert busy.value.response.headers["retry-after"]
        release.set()
        assert all(future.result(10) for future in blocking)
        for body in ({"max_tokens": 51}, {"n": 5}, {"n": 3, "prompt": ["a", "b"]}):
            with pytest.raises(openai.APIStatusError) as refused_limit:
                client.completions.create(model="lm", prompt="a", extra_body=body)
            assert refused_limit.value.status_code == 413
        assert client.completions.create(model="lm", prompt="a").choices


def test_error_of_the_model_at_once_and_within_a_stream(
    client: openai.OpenAI, url: ServiceUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = url.service.models.find("lm", "generate")
    step, steps, text_arrived = model.pipeline.model.step, 0, threading.Event()

    def failing(*given: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps > after:
            assert text_arrived.wait(10)
            raise RuntimeError("a defect")
        return step(*given)

    monkeypatch.setattr(model.pipeline.model, "step", failing)
    after = 4
    chunks = iter(client.completions.create(model="lm", prompt="the old cat", stream=True, temperature=0))
    next(chunks)
    text_arrived.set()
    with pytest.raises(openai.APIError, match="the log under") as failed:
        list(chunks)
    assert failed.value.type == "server_error"
    after = 0
    with pytest.raises(openai.InternalServerError, match="the log under"):
        client.completions.create(model="lm", prompt="a")
    monkeypatch.undo()
    assert client.completions.create(model="lm", prompt="a").choices
    assert [record["status"] for record in url.log if isinstance(record.get("error"), RuntimeError)] == [200, 500]


def test_slots_of_a_client_that_leaves_are_free(client: openai.OpenAI, url: ServiceUrl) -> None:
    model = url.service.models.find("lm", "generate")
    with client.completions.create(model="lm", prompt="a", stream=True, n=4, max_tokens=2000, seed=1) as stream:
        next(iter(stream))
        assert not model.idle
    deadline = threading.Event()
    for _ in range(100):
        if model.idle and not any(engine.active for engine in model.engines()):
            return
        deadline.wait(0.05)
    raise AssertionError("the outputs are still being decoded")


HALF = json.dumps("half \ud800").encode()
"""A text that no client's own encoder would send."""


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *[("completions", body) for body in (b"", b"{", b"[]", b'"x"', b"\xff")],
        ("completions", b'{"model": "lm", "prompt": %s}' % HALF),
        ("completions", b'{"model": "lm", "prompt": "a", "echo": true, "model": %s}' % HALF),
        ("chat/completions", b'{"model": "chat", "messages": [{"role": "user", "content": %s}]}' % HALF),
        ("chat/completions", b'{"model": "chat", "messages": [{"role": %s, "content": "a"}]}' % HALF),
        ("chat/completions", b'{"model": "translator", "messages": [{"role": "user", "content": %s}]}' % HALF),
        ("embeddings", b'{"model": "encoder", "input": %s}' % HALF),
    ],
)
def test_what_is_no_text_is_refused_in_a_sentence(url: ServiceUrl, path: str, body: bytes) -> None:
    answer = httpx2.post(f"{url}/v1/{path}", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["message"].endswith(".")
