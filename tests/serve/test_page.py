"""The built page's files, and how browsers cache them."""

import hashlib
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from regard.serve.page import StaticPage, static_folder
from tests.look.support import task_models
from tests.serve.support import make_client


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    built = tmp_path / "static"
    built.mkdir()
    (built / "index.html").write_text('<link rel="stylesheet" href="page.css"><script type="module" src="page.js">')
    (built / "page.js").write_text("let one = 1")
    (built / "page.css").write_text("a {}")
    (tmp_path / "secret.js").write_text("secret")
    return built


@pytest.fixture
def client(folder: Path) -> TestClient:
    return make_client(task_models()["text-classification"], page=StaticPage(folder))


def test_index_is_revalidated_each_time(client: TestClient) -> None:
    first = client.get("/")
    assert first.headers["content-type"] == "text/html; charset=utf-8"
    assert first.headers["cache-control"] == "no-cache"


def test_hashed_file_is_cached_forever(client: TestClient, folder: Path) -> None:
    digest = hashlib.sha256((folder / "page.js").read_bytes()).hexdigest()[:12]
    response = client.get(f"/page.js?{digest}")
    assert response.text == "let one = 1"
    assert response.headers["content-type"] == "text/javascript; charset=utf-8"
    assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert client.get("/page.js").headers["cache-control"] == "no-cache"
    (folder / "page.js").write_text("let one = 2")
    assert client.get(f"/page.js?{digest}").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/", "/page.css"])
def test_unchanged_file_is_not_sent_again(client: TestClient, path: str) -> None:
    etag = client.get(path).headers["etag"]
    again = client.get(path, headers={"if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get(path, headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "path", ["/../secret.js", "/..%2fsecret.js", "/%2e%2e/secret.js", "/none.js", "/page.py", "/.js"]
)
def test_files_outside_the_folder_are_not_served(client: TestClient, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 404
    assert "secret" not in response.text.replace("secret.js", "")


def test_missing_page_says_how_to_build_it(tmp_path: Path) -> None:
    response = make_client(task_models()["text-classification"], page=StaticPage(tmp_path)).get("/")
    assert (response.status_code, response.text) == (404, "The page is not built; run `make page`.")


def test_shipped_page_is_served() -> None:
    client = make_client(task_models()["text-classification"])
    page = client.get("/").text
    links = re.findall(r'(?:src|href)="([\w-]+\.(?:js|css)\?[0-9a-f]{12})"', page)
    assert {link.split("?")[0] for link in links} == {"page.js", "page.css"}
    assert all("immutable" in client.get(f"/{link}").headers["cache-control"] for link in links)
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', page)
    assert (static_folder() / "standalone.html").is_file()
