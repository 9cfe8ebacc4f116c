"""Bad input of any kind gets a sentence: never a traceback, a server error or a hang, and the server goes on.

The server listens on a real port, because much of this never gets as far as a route.
"""

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import parse_headers
from typing import Any, BinaryIO, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.serve import body_limits
from regard.serve.api.access import Access
from regard.serve.api.app import create_service_app
from regard.serve.api.hosting import run_service
from regard.serve.api.service import Service
from regard.serve.listening import bind
from tests.conftest import THOROUGH
from tests.serve.api.small_service import LIMITS, make_client, whole_service

SECONDS = 20
"""No answer takes as long, even on a busy machine."""
EXAMPLES = 2000 if THOROUGH else 100
REQUESTS = 10
"""Requests of an example, to different routes."""
PAGE_PATHS = [
    "/api/traces",
    *(f"/api/models/tagger/{name}" for name in ("traces", "head-importance", "head-roles")),
    "/api/traces/x/cell",
]

OPTIONAL_BODIES = [*PAGE_PATHS, "/v2/languages", "/v2/usage"]
"""Paths where a body may be good for all that these tests know, or is not read."""


class Answer(NamedTuple):
    """What the server has answered."""

    status: int
    text: str


class Server(NamedTuple):
    """A server that listens on a port, and the fields of its routes."""

    port: int
    fields: dict[str, list[str]]

    @contextmanager
    def connect(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS) as connection:
            yield connection

    def send(self, content: bytes, method: str = "POST", answers: int = 1) -> list[Answer]:
        """The answers to bytes on a new connection."""
        with self.connect() as connection:
            with suppress(OSError):  # it may refuse them before they are complete
                connection.sendall(content)
            with connection.makefile("rb") as file:
                return [read_answer(file, method) for _ in range(answers)]

    def post(self, path: str, body: bytes, kind: str = "application/json", headers: str = "") -> Answer:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        return self.send(f"{head}Connection: close\r\n{headers}\r\n".encode() + body)[0]


def read_answer(file: BinaryIO, method: str) -> Answer:
    """The next answer on a connection."""
    line = file.readline()
    assert line, "The connection was closed without an answer."
    headers = parse_headers(file)
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while (size := int(file.readline(), 16)) > 0:
            body += file.read(size + 2)[:-2]
        file.readline()
    elif method != "HEAD":
        body = file.read(int(headers.get("content-length", -1)))
    return Answer(int(line.split()[1]), body.decode())


@pytest.fixture(scope="module")
def server() -> Server:
    service = Service(whole_service().models, LIMITS, Access(local_only=False))
    app = create_service_app(service, log=lambda _: None)
    listener, ready = bind("127.0.0.1", None, 0), threading.Event()
    threading.Thread(
        target=lambda: run_service(app, service, listener, grace=1, on_ready=ready.set), daemon=True
    ).start()
    assert ready.wait(SECONDS)
    fields: dict[str, list[str]] = {path: ["text"] for path in PAGE_PATHS}
    description = make_client().get("/openapi.json").json()
    for path, methods in description["paths"].items():
        if "post" in methods:
            schemas = str(methods["post"].get("requestBody", {}))
            found = re.findall(r"schemas/(\w+)", schemas)
            properties = [name for each in found for name in description["components"]["schemas"][each]["properties"]]
            fields[path] = properties or ["text", "image", "top", "model"]
    return Server(listener.getsockname()[1], fields)


@pytest.fixture(autouse=True)
def still_answers(server: Server) -> Iterator[None]:
    """After each test the server answers as before."""
    yield
    answer = server.post("/v1/tag", b'{"text": "a cat"}')
    assert answer.status == 200, answer


def check(answer: Answer, *, refused: bool = True) -> None:
    """Check that a request was refused in a sentence; unless `refused`, it may have been a good one."""
    if not refused and answer.status < 400:
        return
    assert 400 <= answer.status < 500, answer
    found: Any = answer.text
    if found.startswith("{"):
        found = json.loads(found)
        for key in ("detail", "error", "message"):
            found = found.get(key, found) if isinstance(found, dict) else found
    assert isinstance(found, str), answer
    assert re.fullmatch(r"[^\n]+\.", found), answer
    assert len(found) < 1000
    assert "Traceback" not in found
    assert 'File "' not in found


TEXTS = st.one_of(
    st.text(max_size=20),
    st.text(alphabet="a\0\ud800\udfff\u202e\ufeff\x1b é", max_size=8),
    st.sampled_from(["[MASK]", "a" * 501, "tagger", "data:image/png;base64,", "data:,", "../../etc/passwd", "𝕬" * 300]),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 10**30, -(10**400), 2**63, 1e308, -0.0, 1e-320]),
    st.floats(),
    TEXTS,
)
VALUES = st.recursive(
    SCALARS,
    lambda values: st.lists(values, max_size=4) | st.dictionaries(TEXTS, values, max_size=3),
    max_leaves=8,
)
KINDS = st.sampled_from(
    [
        "application/json",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "*/*",
        ";",
    ]
)


def paths(server: Server) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(list(server.fields)), min_size=REQUESTS, max_size=REQUESTS)


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_wrong_values_are_refused(server: Server, data: st.DataObject) -> None:
    for path in data.draw(paths(server)):
        keys = st.sampled_from([*server.fields[path], "nothing", "\ud800"])
        body = data.draw(st.dictionaries(keys, VALUES, max_size=3) | VALUES)
        check(server.post(path, json.dumps(body).encode()), refused=False)


@settings(max_examples=EXAMPLES)
@given(
    data=st.data(),
    body=st.binary(max_size=60) | TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")),
    kind=KINDS,
)
def test_what_is_no_json_is_refused(server: Server, data: st.DataObject, body: bytes, kind: str) -> None:
    for path in data.draw(paths(server)):
        needs_nothing = path == "/v2/languages" and kind != "application/json"  # not even a field of a form
        check(server.post(path, b"{" + body, kind), refused=not needs_nothing)


DEEP = {
    "deep lists": b"[" * 40_000,
    "deep objects": b'{"text":' * 10_000,
    "deep text": b'{"text": ' + b"[" * 40_000 + b"]" * 40_000 + b"}",
    "a long number": b'{"text": ' + b"9" * 90_000 + b"}",
    "not a number": b'{"text": "a", "top": NaN, "beam_size": Infinity, "layer": -Infinity, "temperature": NaN}',
    "many fields": b"{" + b",".join(b'"%d":0' % number for number in range(9000)) + b"}",
    "the same field": b"{" + b'"text":1,' * 9000 + b'"text":2}',
    "many texts": b'{"text": [' + b'"a",' * 20_000 + b'"a"]}',
    "a long text": b'{"text": "' + b"a" * 90_000 + b'"}',
    "a long name": b'{"' + b"a" * 90_000 + b'": 1}',
    "a long model": b'{"text": "a [MASK]", "prompt": "a", "input": "a", "q": "a", "model": "' + b"m" * 90_000 + b'"}',
    "too large": b" " * 500_000,
    "other encodings": '{"text": "a"'.encode("utf-16"),
    "not UTF-8": b'{"text": "\xff\xfe"',
    "nothing": b"",
}


@pytest.mark.parametrize("case", DEEP)
def test_extreme_bodies_are_refused(server: Server, case: str) -> None:
    for path in server.fields:
        check(server.post(path, DEEP[case]), refused=path not in OPTIONAL_BODIES)


PIECES = st.sampled_from(
    [
        *(
            "/",
            "//",
            "..",
            ".",
            "%2e%2e",
            "%2e",
            "%2f",
            "%5c",
            "\\",
            "%00",
            "%0a",
            "%0d%0a",
            "%ff",
            "%",
            "~",
            ";",
            "?",
            "#",
        ),
        *("v1", "api", "traces", "models", "tagger", "page.js", "index.html", "etc/passwd", "openapi.json", "a" * 3000),
    ]
)


@settings(max_examples=3 * EXAMPLES)
@given(pieces=st.lists(PIECES, max_size=7), method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "X"]))
def test_path_tricks_lead_nowhere(server: Server, pieces: list[str], method: str) -> None:
    request = f"{method} /{''.join(pieces)} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    (answer,) = server.send(request, method)
    assert "root:" not in answer.text
    check(answer, refused=False)


GOOD = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
RAW = {
    "binary": (bytes(range(256)), 1),
    "a TLS greeting": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 50, 1),
    "no version": (b"GET /health\r\n\r\n", 1),
    "no number": (b"GET /health HTTP/one\r\nHost: x\r\n\r\n", 1),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", 1),
    "two hosts": (b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 1),
    "a long header": (b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 200_000 + b"\r\n\r\n", 1),
    "many headers": (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X-Many: a\r\n" * 20_000 + b"\r\n", 1),
    "a long path": (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 1),
    "a header without a colon": (b"GET /health HTTP/1.1\r\nHost x\r\n\r\n", 1),
    "a NUL in a header": (b"GET /health HTTP/1.1\r\nHost: x\r\nX: \0\r\n\r\n", 1),
    "two lengths": (b"POST /v1/tag HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 1),
    "a negative length": (b"POST /v1/tag HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{}", 1),
    "a huge length": (b"POST /v1/tag HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\n{}", 1),
    "broken chunks": (b"POST /v1/tag HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", 1),
    "an unknown encoding": (b"POST /v1/tag HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 1),
    "garbage behind a request": (GOOD + b"\0garbage\r\n\r\n", 2),
    "garbage behind several": (GOOD * 5 + b"GET\r\n\r\n", 6),
}


@pytest.mark.parametrize("case", RAW)
def test_broken_http_is_refused(server: Server, case: str) -> None:
    content, answers = RAW[case]
    *good, bad = server.send(content, "GET", answers)
    assert [answer.status for answer in good] == [200] * len(good)
    check(bad)


@pytest.mark.parametrize("name", ["Authorization", "Origin", "Content-Type", "X-API-Key", "Accept", "Cookie"])
def test_strange_headers_break_nothing(server: Server, name: str) -> None:
    for value in ("", "Basic", "Basic ////", "Bearer " + "k" * 9000, "\xff", "a, b", "DeepL-Auth-Key", "=;=;"):
        answer = server.post("/v1/tag", b'{"text": "a"}', headers=f"{name}: {value}\r\n{name}: {value}\r\n")
        check(answer, refused=False)


def test_half_a_request_is_not_waited_for_forever(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(LIMITS), "header_seconds", 0.2)
    monkeypatch.setattr(body_limits, "BODY_SECONDS", 0.2)
    head = b"POST /v1/tag HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n"
    (without_headers,) = server.send(head)
    check(without_headers)
    assert "not complete" in without_headers.text
    (without_body,) = server.send(head + b"\r\n{")
    check(without_body)
    assert without_body.status == 408
    with server.connect() as connection:
        assert connection.recv(1) == b""  # it is closed


def test_clients_that_leave_midway_break_nothing(server: Server) -> None:
    body = b'{"text": "a cat"}'
    head = b"POST /v1/tag HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    request = head + body
    for end in range(0, len(request) + 1, 5):
        with server.connect() as connection:
            connection.sendall(request[:end])
