"""Only the page itself is answered, only in bounds, and it may load nothing from elsewhere."""

import pytest
from starlette.testclient import TestClient

from regard.serve.app import LARGEST_PICTURE
from regard.serve.guard import LARGEST_BODY
from tests.look.support import every_task
from tests.serve.support import HOME, client, refused


@pytest.fixture(scope="module")
def asker() -> TestClient:
    return client(every_task()["labelling"])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8765", "localhost:1", "LOCALHOST", "[::1]", "[::1]:80"])
def test_this_machine_is_answered(asker: TestClient, host: str) -> None:
    assert asker.get("/api/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost.evil", "", "0.0.0.0", "evil@127.0.0.1"],
)
def test_a_name_that_was_pointed_here_is_refused(asker: TestClient, host: str) -> None:
    """DNS rebinding: the browser thinks it talks to evil.example."""
    for path in ("/api/models", "/"):
        refused(asker.get(path, headers={"host": host}), 403, "This server answers to 127.0.0.1 and localhost only")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8765", "http://127.0.0.1:9999"])
def test_a_page_of_somebody_else_is_refused(asker: TestClient, origin: str) -> None:
    answer = asker.post("/api/models/classify/traces", json={"text": "a"}, headers={"origin": origin})
    refused(answer, 403, "answers its own page only")


def test_the_page_itself_is_answered(asker: TestClient) -> None:
    headers = {"origin": HOME, "sec-fetch-site": "same-origin"}
    assert asker.post("/api/models/classify/traces", json={"text": "a"}, headers=headers).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_a_browser_says_comes_from_elsewhere_is_refused(asker: TestClient, site: str) -> None:
    refused(asker.get("/api/models", headers={"sec-fetch-site": site}), 403)


def test_a_link_to_the_page_may_stand_anywhere(asker: TestClient) -> None:
    assert asker.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/models", "/api/none", "/page.js", "/nothing.js"])
def test_every_answer_carries_the_policy(asker: TestClient, path: str) -> None:
    headers = asker.get(path).headers
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


def test_so_does_a_refusal(asker: TestClient) -> None:
    assert "default-src 'none'" in asker.get("/", headers={"host": "evil"}).headers["content-security-policy"]


def test_a_body_that_is_too_large_is_refused(asker: TestClient) -> None:
    body = b"x" * (LARGEST_BODY + 1)
    refused(asker.post("/api/traces/none/cell", content=body), 413, "The request is too large")


def test_so_is_one_that_does_not_say_how_large_it_is(asker: TestClient) -> None:
    def chunks():
        for _ in range(40):
            yield b"x" * (LARGEST_BODY // 32)

    refused(asker.post("/api/traces/none/cell", content=chunks()), 413, "The request is too large")


def test_a_length_that_is_no_number_is_refused(asker: TestClient) -> None:
    refused(asker.post("/api/traces/none/cell", content=b"{}", headers={"content-length": "-5"}), 413)


def test_pictures_and_traces_may_be_larger(asker: TestClient) -> None:
    picture = "data:image/png;base64," + "A" * (2 * LARGEST_BODY)
    answer = asker.post("/api/models/classify/traces", json={"text": "a", "picture": picture})
    assert answer.status_code == 200
    refused(asker.post("/api/traces", content=b"x" * (LARGEST_PICTURE + 1)), 400, "no trace at all")
    refused(asker.post("/api/models/classify/traces", content=b"x" * (LARGEST_PICTURE + 1)), 413)
