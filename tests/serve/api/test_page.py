"""The page on the API's server: on modules of its own, with its own headers, and only for its own requests."""

import json
import os
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from regard.look.analysis.head_ablation import ablate_heads
from regard.look.schema import AblatedHead
from regard.serve.api.access import Access
from regard.serve.api.middleware import SECURITY_HEADERS
from regard.serve.api.page import ServedAppState, pipeline_for_page
from regard.serve.inspector.guard import CONTENT_SECURITY_POLICY
from tests.look.support import TEXT, request
from tests.serve.api.small_service import (
    NAMES,
    check_refused,
    make_client,
    make_service,
    run_folder,
    served,
    whole_service,
)

POLICY = "content-security-policy"


@pytest.fixture(scope="module")
def client() -> TestClient:
    return make_client()


def test_the_page_has_its_own_policy_and_the_api_another(client: TestClient) -> None:
    for path in ("/", "/page.js", "/page.css"):
        response = client.get(path)
        assert response.status_code == 200
        assert response.headers[POLICY] == CONTENT_SECURITY_POLICY
    for path in ("/api/models", "/health", "/openapi.json"):
        response = client.get(path)
        assert response.status_code == 200
        assert response.headers[POLICY] == SECURITY_HEADERS[POLICY]


def test_without_the_page_there_are_no_routes_of_it() -> None:
    client = make_client(page=False)
    for path in ("/", "/page.js", "/api/models"):
        check_refused(client.get(path), 404, "nothing at this address")


def test_the_page_hides_no_route(client: TestClient) -> None:
    check_refused(client.get("/v1/translate"), 405, "that kind of request")
    check_refused(client.get("/v1/nothing"), 404, "nothing at this address")


@pytest.mark.parametrize("name", list(NAMES))
def test_every_model_can_be_traced(client: TestClient, name: str) -> None:
    summaries = {each["id"]: each for each in client.get("/api/models").json()}
    assert list(summaries) == list(NAMES)
    traced_model = ServedAppState(whole_service()).traced_model(name)
    body = request(traced_model).to_dict()
    events = [json.loads(line) for line in client.post(f"/api/models/{name}/traces", json=body).text.splitlines()]
    assert events[-1]["event"] == "done", events[-1]
    header = client.get(f"/api/traces/{events[-1]['trace']}").json()
    assert header["model"]["id"] == name
    assert header["model"]["attention"]


def test_modules_of_the_page_share_tensors_and_no_hooks() -> None:
    pipeline = served("translator").pipeline
    copied = pipeline_for_page(pipeline)
    pointers = [{each.data_ptr() for each in one.model.parameters()} for one in (pipeline, copied)]
    assert pointers[0] == pointers[1]
    assert not {id(module) for module in copied.model.modules()} & {id(module) for module in pipeline.model.modules()}
    tokens = torch.tensor([[4, 5, 6]])
    expected = pipeline.logits(tokens, tokens)
    torch.testing.assert_close(copied.logits(tokens, tokens), expected, rtol=0, atol=0)
    head = AblatedHead(attention_type="encoder", layer=0, head=0, ablation="zero")
    with ablate_heads(copied.model, [head]):
        torch.testing.assert_close(pipeline.logits(tokens, tokens), expected, rtol=0, atol=0)
        assert not torch.equal(copied.logits(tokens, tokens), expected)


def test_the_page_follows_a_reload() -> None:
    service = make_service("translator")
    client = make_client(service)
    state = ServedAppState(service)
    old = state.traced_model("translator")
    assert state.traced_model("translator") is old
    os.utime(run_folder("translator") / "run.json")
    service.models.reload()
    new = state.traced_model("translator")
    assert new is not old
    assert new.id == old.id
    answer = client.post("/api/models/translator/traces", json={"text": TEXT, "decoding": {"max_new_tokens": 4}})
    assert '"done"' in answer.text
    service.models.close()


def test_other_sites_are_refused(client: TestClient) -> None:
    check_refused(client.get("/api/models", headers={"sec-fetch-site": "cross-site"}), 403, "another site")
    assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200
    check_refused(client.get("/", headers={"host": "example.com"}), 403, "example.com")


def test_a_browser_is_asked_for_the_key() -> None:
    service: Any = make_service("tagger", access=Access.with_keys(["secret"], local_only=False))
    client = make_client(service)
    for path in ("/", "/api/models"):
        refused = client.get(path)
        check_refused(refused, 401, "API key")
        assert refused.headers["www-authenticate"].startswith("Basic ")
        assert client.get(path, auth=("", "secret")).status_code == 200
        assert client.get(path, auth=("", "wrong")).status_code == 401
