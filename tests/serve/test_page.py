"""The page's files are those that were built; a browser keeps them until they change."""

import hashlib
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from regard.serve.page import Page, static_folder
from tests.look.support import every_task
from tests.serve.support import client


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
def asker(folder: Path) -> TestClient:
    return client(every_task()["labelling"], page=Page(folder))


def test_the_first_page_is_asked_for_each_time(asker: TestClient) -> None:
    first = asker.get("/")
    assert first.headers["content-type"] == "text/html; charset=utf-8"
    assert first.headers["cache-control"] == "no-cache"


def test_a_file_by_its_content_may_be_kept_for_ever(asker: TestClient, folder: Path) -> None:
    digest = hashlib.sha256((folder / "page.js").read_bytes()).hexdigest()[:12]
    answer = asker.get(f"/page.js?{digest}")
    assert answer.text == "let one = 1"
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert asker.get("/page.js").headers["cache-control"] == "no-cache"
    (folder / "page.js").write_text("let one = 2")
    assert asker.get(f"/page.js?{digest}").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/", "/page.css"])
def test_a_file_that_the_browser_has_is_not_sent_again(asker: TestClient, path: str) -> None:
    etag = asker.get(path).headers["etag"]
    again = asker.get(path, headers={"if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")
    assert asker.get(path, headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "path", ["/../secret.js", "/..%2fsecret.js", "/%2e%2e/secret.js", "/none.js", "/page.py", "/.js"]
)
def test_nothing_else_is_given_out(asker: TestClient, path: str) -> None:
    answer = asker.get(path)
    assert answer.status_code == 404
    assert "secret" not in answer.text.replace("secret.js", "")


def test_a_page_that_was_not_built_is_a_sentence(tmp_path: Path) -> None:
    answer = client(every_task()["labelling"], page=Page(tmp_path)).get("/")
    assert (answer.status_code, answer.text) == (404, "The page was not built; run `make page`.")


def test_the_page_that_ships_is_there() -> None:
    asker = client(every_task()["labelling"])
    page = asker.get("/").text
    links = re.findall(r'(?:src|href)="([\w-]+\.(?:js|css)\?[0-9a-f]{12})"', page)
    assert {link.split("?")[0] for link in links} == {"page.js", "page.css"}
    assert all("immutable" in asker.get(f"/{link}").headers["cache-control"] for link in links)
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', page)
    assert (static_folder() / "standalone.html").is_file()
