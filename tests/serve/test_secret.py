"""Nobody is served without the secret of the printed address, which is exchanged for a cookie."""

import pytest
from starlette.testclient import TestClient

from regard.serve.inspector.app import AppState, create_app
from regard.serve.inspector.secret import REFUSAL
from tests.look.support import task_models
from tests.serve.support import HOME


@pytest.fixture
def client() -> TestClient:
    state = AppState([task_models()["text-classification"]])
    return TestClient(create_app(state, secret="open-sesame"), base_url=HOME, follow_redirects=False)


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=open-sesam", "?token=%FF", "?x=open-sesame"])
def test_nothing_is_served_without_it(client: TestClient, query: str) -> None:
    for path in ("/", "/page.js", "/api/models"):
        refused = client.get(path + query)
        assert refused.status_code == 403
        assert REFUSAL in refused.text
        assert "set-cookie" not in refused.headers
    assert client.post(f"/api/models/classification/traces{query}", json={"text": "a"}).status_code == 403


def test_the_address_gives_a_cookie_that_opens_everything(client: TestClient) -> None:
    first = client.get("/?token=open-sesame")
    assert (first.status_code, first.headers["location"]) == (303, "/")
    assert {"HttpOnly", "SameSite=strict"} <= set(first.headers["set-cookie"].split("; "))
    assert [client.get(path).status_code for path in ("/", "/page.js", "/api/models")] == [200] * 3
    client.cookies.clear()
    assert client.get("/api/models").status_code == 403


def test_a_program_may_send_it_with_every_request(client: TestClient) -> None:
    assert client.get("/api/models?token=open-sesame").status_code == 200


@pytest.mark.parametrize("cookie", ["regard-8765=wrong", "regard-8765", "=;=;", "regard-8766=open-sesame", "\u00e9=1"])
def test_other_cookies_open_nothing(client: TestClient, cookie: str) -> None:
    assert client.get("/api/models", headers={"cookie": cookie.encode("latin-1")}).status_code == 403
