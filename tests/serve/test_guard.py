"""The server responds to its own page only, limits bodies, and forbids the page to load from other sites."""

import pytest
from starlette.testclient import TestClient

from regard.serve.inspector.app import MAX_RUN_BODY
from regard.serve.inspector.guard import MAX_BODY
from tests.look.support import task_models
from tests.serve.support import HOME, check_refused, make_client


@pytest.fixture(scope="module")
def client() -> TestClient:
    return make_client(task_models()["text-classification"])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8765", "localhost:1", "LOCALHOST", "[::1]", "[::1]:80"])
def test_loopback_host_is_allowed(client: TestClient, host: str) -> None:
    assert client.get("/api/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8765",
        "127.0.0.1.evil.example",
        "localhost.evil",
        "",
        "0.0.0.0",
        "evil@127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:x",
        "localhost:80:80",
    ],
)
def test_other_host_is_refused(client: TestClient, host: str) -> None:
    """DNS rebinding: the browser believes it talks to evil.example."""
    for path in ("/api/models", "/"):
        check_refused(
            client.get(path, headers={"host": host}), 403, "This server responds to 127.0.0.1 and localhost only"
        )


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8765", "http://127.0.0.1:9999"])
def test_other_origin_is_refused(client: TestClient, origin: str) -> None:
    response = client.post("/api/models/classification/traces", json={"text": "a"}, headers={"origin": origin})
    check_refused(response, 403, "responds to its own page only")


def test_own_page_is_allowed(client: TestClient) -> None:
    headers = {"origin": HOME, "sec-fetch-site": "same-origin"}
    assert client.post("/api/models/classification/traces", json={"text": "a"}, headers=headers).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_cross_site_request_is_refused(client: TestClient, site: str) -> None:
    check_refused(client.get("/api/models", headers={"sec-fetch-site": site}), 403)


def test_cross_site_link_to_the_page_is_allowed(client: TestClient) -> None:
    assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/models", "/api/none", "/page.js", "/nothing.js"])
def test_every_response_has_security_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data: blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers


def test_refusal_has_security_headers(client: TestClient) -> None:
    assert "default-src 'none'" in client.get("/", headers={"host": "evil"}).headers["content-security-policy"]


def test_body_over_the_limit_is_refused(client: TestClient) -> None:
    body = b"x" * (MAX_BODY + 1)
    check_refused(client.post("/api/traces/none/cell", content=body), 413, "The request is too large")


def test_chunked_body_over_the_limit_is_refused(client: TestClient) -> None:
    def chunks():
        for _ in range(40):
            yield b"x" * (MAX_BODY // 32)

    check_refused(client.post("/api/traces/none/cell", content=chunks()), 413, "The request is too large")


def test_invalid_content_length_is_refused(client: TestClient) -> None:
    check_refused(client.post("/api/traces/none/cell", content=b"{}", headers={"content-length": "-5"}), 413)


def test_images_and_traces_have_higher_limits(client: TestClient) -> None:
    image = "data:image/png;base64," + "A" * (2 * MAX_BODY)
    response = client.post("/api/models/classification/traces", json={"text": "a", "image": image})
    assert response.status_code == 200
    check_refused(client.post("/api/traces", content=b"x" * (MAX_RUN_BODY + 1)), 400, "not a trace")
    check_refused(client.post("/api/models/classification/traces", content=b"x" * (MAX_RUN_BODY + 1)), 413)
