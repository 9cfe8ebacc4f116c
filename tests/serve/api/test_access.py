"""Who may use the server: keys in all the places where clients put them, hosts and origins of this machine, CORS."""

import base64
from typing import Any

import pytest

from regard.serve.api.access import Access
from tests.serve.api.small_service import check_refused, make_client, make_service

BODY = {"text": "a cat"}
PAGE = "https://example.com"


def client_of(access: Access) -> Any:
    return make_client(make_service("tagger", access=access))


def test_keys_are_found_where_clients_put_them() -> None:
    client = client_of(Access.with_keys(["first", "ıkinci"], local_only=False))
    password = base64.b64encode(b"user:first").decode()
    for value in ("Bearer first", "bearer first", f"Basic {password}", "DeepL-Auth-Key first"):
        assert client.post("/v1/tag", json=BODY, headers={"authorization": value}).status_code == 200, value
    assert client.post("/v1/tag", json=BODY, headers={"x-api-key": "first"}).status_code == 200
    for headers in ({}, {"authorization": "Bearer second"}, {"authorization": "Bearer"}, {"x-api-key": "firs"}):
        refused = client.post("/v1/tag", json=BODY, headers=headers)
        check_refused(refused, 401, "API key")
    assert client.get("/health").status_code == 200
    check_refused(client.get("/metrics"), 401, "API key")
    check_refused(client.get("/openapi.json"), 401, "API key")


def test_without_keys_only_this_machine_is_answered() -> None:
    client = client_of(Access())
    check_refused(client.post("/v1/tag", json=BODY, headers={"host": "evil.example"}), 403, "evil.example")
    check_refused(client.post("/v1/tag", json=BODY, headers={"origin": PAGE}), 403, "own page")
    own = {"origin": "http://127.0.0.1:8000", "host": "127.0.0.1:8000"}
    assert client.post("/v1/tag", json=BODY, headers=own).status_code == 200


@pytest.mark.parametrize("local_only", [True, False])
def test_other_pages_may_read_answers_only_if_they_are_named(local_only: bool) -> None:
    access = Access.with_keys([] if local_only else ["key"], local_only=local_only, origins=[PAGE])
    client = client_of(access)
    asking = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    allowed = client.options("/v1/tag", headers=asking)
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, PAGE)
    key = {"authorization": "Bearer key"}
    answer = client.post("/v1/tag", json=BODY, headers={"origin": PAGE, **key})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
    other = client.options("/v1/tag", headers={**asking, "origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers
    silent = client_of(Access.with_keys(["key"], local_only=False)).post(
        "/v1/tag", json=BODY, headers={"origin": PAGE, **key}
    )
    assert "access-control-allow-origin" not in silent.headers
