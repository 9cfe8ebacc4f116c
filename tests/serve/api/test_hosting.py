"""A server that is stopped under load."""

import socket
import threading
import time
from pathlib import Path

from regard.serve.limits import Limits
from tests.serve.load import Clients
from tests.serve.service import ServiceProcess, local_service, post, save_task, wait_until

ENDLESS = {"prompt": "the old", "max_new_tokens": 2000, "min_length": 1999}


def test_stopping_under_load_loses_no_request(tmp_path: Path) -> None:
    with ServiceProcess(save_task(tmp_path / "small"), "--grace", "10") as server:
        clients = Clients(server.wait_ready())
        time.sleep(0.5)
        start = time.monotonic()
        code = server.stop()
        seconds = time.monotonic() - start
        clients.stop()
    assert not clients.lost
    assert set(clients.outcomes) == {"200", "503", "refused"}
    assert clients.outcomes["refused"] == 8
    assert (code, seconds < 10) == (0, True)


def test_requests_that_take_longer_than_the_grace_time_are_refused(tmp_path: Path) -> None:
    answers: list[tuple[int, dict[str, str]]] = []
    folder = save_task(tmp_path / "writer", "language-modeling")
    with local_service(folder, limits=Limits(new_tokens=2000), grace=0.3) as local:
        client = threading.Thread(target=lambda: answers.append(post(local.port, "/v1/generate", **ENDLESS)))
        client.start()
        idle = socket.create_connection(("127.0.0.1", local.port))
        wait_until(lambda: local.service.in_progress == 1)
    client.join(10)
    idle.close()
    [(status, answer)] = answers
    assert (status, "shutting down" in answer["detail"]) == (503, True)
