"""The service under faults: models that fail, clients that leave, that are slow or too many, and lack of memory."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.decode.engine import BatchGroup
from regard.serve.limits import Limits
from tests.serve.service import LocalService, get, local_service, post, save_task, wait_until

TRANSLATE = "/v1/translate"
ENDLESS = {"prompt": "the old", "max_new_tokens": 2000, "min_length": 1999}
LIMITS = Limits(threads=4, waiting=2, connections=12, header_seconds=0.5, send_seconds=1.5, new_tokens=2000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a translator and a language model."""
    path = tmp_path_factory.mktemp("models")
    save_task(path / "small")
    save_task(path / "writer", "language-modeling")
    return path


@pytest.fixture(scope="module")
def local(folder: Path) -> Iterator[LocalService]:
    with local_service(folder / "small", folder / "writer", limits=LIMITS) as local:
        yield local


def raw_request(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def read_all(client: socket.socket) -> bytes:
    """What arrives until the connection ends, however it does."""
    received = bytearray()
    with suppress(ConnectionError):
        while part := client.recv(1 << 16):
            received += part
    return bytes(received)


def active(local: LocalService) -> int:
    return sum(engine.active for model in local.service.models for engine in model.engines())


def is_quiet(local: LocalService) -> bool:
    return active(local) == 0 and all(model.idle for model in local.service.models)


@pytest.fixture(autouse=True)
def _quiet(local: LocalService) -> Iterator[None]:
    yield
    wait_until(lambda: is_quiet(local), what="the end of all requests")


def fail_steps(monkeypatch: pytest.MonkeyPatch, error: Exception, fails: Callable[[BatchGroup[Any]], bool]) -> None:
    """Make decoding steps of some groups raise an error."""
    step = BatchGroup._decode_token

    def decode(group: BatchGroup[Any]) -> Any:
        if fails(group):
            raise error
        return step(group)

    monkeypatch.setattr(BatchGroup, "_decode_token", decode)


def test_model_that_fails_ends_its_request_and_no_other(local: LocalService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The greedy group fails while one with beams is being decoded."""
    expected = local.post(TRANSLATE, text="the cat", beam_size=2)
    in_steps, answers = threading.Event(), []

    def fails(group: BatchGroup[Any]) -> bool:
        if group.beam_size == 2:
            in_steps.set()
            time.sleep(0.05)
        return group.beam_size == 1

    fail_steps(monkeypatch, RuntimeError("the secret text"), fails)
    other = threading.Thread(target=lambda: answers.append(local.post(TRANSLATE, text="the cat", beam_size=2)))
    other.start()
    assert in_steps.wait(10)
    status, answer = local.post(TRANSLATE, text="a mouse", beam_size=1)
    other.join(20)
    assert status == 500
    record = next(each for each in local.records if each["status"] == 500)
    assert record["id"] in answer["detail"]
    assert "secret" not in answer["detail"]
    assert answers == [expected]
    monkeypatch.undo()
    assert local.post(TRANSLATE, text="a mouse", beam_size=1)[0] == 200


def test_lack_of_memory_fails_one_batch(local: LocalService, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[int] = []

    def fails(group: BatchGroup[Any]) -> bool:
        failed.append(1)
        return len(failed) == 1

    fail_steps(monkeypatch, torch.OutOfMemoryError("CUDA out of memory."), fails)
    status, answer = local.post(TRANSLATE, text="the cat")
    assert (status, "memory" in answer["detail"]) == (503, True)
    assert local.post(TRANSLATE, text="the cat")[0] == 200


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_leaves_frees_its_slot(local: LocalService, stream: bool) -> None:
    with socket.create_connection(("127.0.0.1", local.port)) as client:
        client.sendall(raw_request("/v1/generate", ENDLESS | {"stream": stream}))
        wait_until(lambda: active(local) == 1)
        if stream:
            assert client.recv(10)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it is reset, not closed
    wait_until(lambda: active(local) == 0, seconds=1, what="a free slot")


def test_slow_reader_does_not_hold_up_others_and_is_disconnected(local: LocalService) -> None:
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        slow.connect(("127.0.0.1", local.port))
        for _ in range(400):  # their responses fill all buffers on the way
            slow.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert post(local.port, TRANSLATE, text="the cat")[0] == 200
        wait_until(lambda: local.connections() == 0, what="the end of the connection")
        slow.settimeout(10)
        assert read_all(slow).count(b"HTTP/1.1 200 ") < 400


def test_full_queue_is_refused_with_the_time_to_try_again(local: LocalService) -> None:
    clients = [socket.create_connection(("127.0.0.1", local.port)) for _ in range(LIMITS.threads + LIMITS.waiting)]
    model = local.service.models.find("writer", "generate")
    try:
        for client in clients:
            client.sendall(raw_request("/v1/generate", ENDLESS))
        wait_until(lambda: model.requests.waiting == LIMITS.waiting)
        connection = local.connect()
        connection.request("POST", "/v1/generate", json.dumps(ENDLESS), {"content-type": "application/json"})
        response = connection.getresponse()
        assert response.status == 429
        assert int(response.headers["retry-after"]) > 0
        assert "busy" in json.loads(response.read())["detail"]
        assert local.post(TRANSLATE, text="the cat")[0] == 200  # another model has a queue of its own
        connection.close()
    finally:
        for client in clients:
            client.close()


def test_request_that_takes_too_long_is_refused(folder: Path) -> None:
    with local_service(folder / "writer", limits=Limits(seconds=0.2, new_tokens=2000)) as local:
        status, answer = local.post("/v1/generate", **ENDLESS)
        assert (status, "0.2 seconds" in answer["detail"]) == (503, True)
        wait_until(lambda: is_quiet(local), seconds=2)


@pytest.mark.parametrize("sent", [b"", b"GET / HTT", b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: "])
def test_connection_without_a_request_is_closed(local: LocalService, sent: bytes) -> None:
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", local.port), timeout=10) as client:
        answer = b""
        if sent:
            for byte in sent + b"a" * 100:
                client.send(bytes([byte]))
                time.sleep(0.02)
                if time.monotonic() - start > LIMITS.header_seconds:
                    break
        answer = client.recv(1000)
    assert time.monotonic() - start < LIMITS.header_seconds + 3
    assert answer.startswith(b"HTTP/1.1 408 ") if sent else answer == b""


def test_body_that_dribbles_in_after_its_response_is_cut_off(local: LocalService) -> None:
    with socket.create_connection(("127.0.0.1", local.port), timeout=10) as client:
        client.sendall(b"POST /nothing HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n\r\n")
        assert b" 404 " in client.recv(4000)
        start = time.monotonic()
        while local.connections():
            with suppress(ConnectionError):
                client.sendall(b"x")
            assert time.monotonic() - start < LIMITS.header_seconds + 3
            time.sleep(0.05)


def test_too_many_connections_are_refused_in_a_sentence(local: LocalService) -> None:
    idle = [socket.create_connection(("127.0.0.1", local.port)) for _ in range(LIMITS.connections)]
    try:
        time.sleep(0.1)
        status, text = get(local.port, "/health")
        assert (status, "connections" in text) == (503, True)
    finally:
        for client in idle:
            client.close()
    wait_until(lambda: get(local.port, "/health")[0] == 200)


def test_refusal_reaches_a_client_that_is_still_sending(folder: Path) -> None:
    """A connection that is closed before the body was read is reset, and the client cannot read why."""
    with local_service(folder / "small", keys=["key"]) as local:
        connection = local.connect()
        connection.putrequest("POST", TRANSLATE)
        connection.putheader("content-length", "800000")
        connection.putheader("connection", "close")
        connection.endheaders()
        for _ in range(8):
            time.sleep(0.02)
            connection.send(b" " * 100_000)
        assert connection.getresponse().status == 401
        connection.close()
