"""Workers that die, that never start, and whose supervisor dies."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.serve.workers import supervisor as module
from regard.serve.workers.devices import worker_devices
from regard.serve.workers.supervisor import Plan, Supervisor
from tests.serve.load import Clients
from tests.serve.service import ServiceProcess, metric_samples, post, save_task, wait_until

SUPERVISE = """
import socket, sys
from regard.serve.workers.supervisor import Plan, Supervisor
worker = "import time; from regard.serve.workers.member import join_supervisor as join; "
worker += "join().report_ready(); time.sleep(60)"
plan = Plan([sys.executable, "-c", worker], ["cpu", "cpu"], {}, 1.0)
listener = socket.create_server(("127.0.0.1", 0))
sys.exit(Supervisor(plan, listener, lambda: print("ready", flush=True), lambda _: None, lambda _: None).run())
"""

pytestmark = pytest.mark.start_early(5)  # it starts three processes, which load a model each


def test_workers_are_replaced_count_together_and_stop_under_load(tmp_path: Path) -> None:
    with ServiceProcess(save_task(tmp_path / "small"), "--workers", "2") as server:
        port = server.wait_ready()
        wait_until(lambda: processes(port) == 2, 60)
        first = server.children()[0]
        os.kill(first, signal.SIGKILL)
        assert all(post(port, "/v1/translate", text="a cat")[0] == 200 for _ in range(10))
        wait_until(lambda: first not in server.children() and processes(port) == 2, 60)
        assert server.messages() == ["Worker 0 was killed by SIGKILL; it is started again at once."]
        before = translations(port)
        assert before >= 10
        assert all(post(port, "/v1/translate", text="a cat")[0] == 200 for _ in range(20))
        wait_until(lambda: translations(port) == before + 20)  # they are counted once they have been answered
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.messages().count("No model has changed.") == 2)

        clients, children = Clients(port), server.children()
        time.sleep(0.5)
        assert server.stop() == 0
        clients.stop()
    assert not clients.lost
    assert set(clients.outcomes) == {"200", "503", "refused"}
    assert not any(map(is_running, children))


def test_workers_end_when_their_supervisor_is_killed() -> None:
    command = [sys.executable, "-c", SUPERVISE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_until(lambda: len(children_of(process.pid)) == 2)
        children = children_of(process.pid)
        process.kill()
        process.wait(10)
        wait_until(lambda: not any(map(is_running, children)))


@pytest.mark.parametrize(
    ("exit_code", "result", "starts", "message"),
    [
        (2, 2, 1, None),  # the worker has told what is wrong
        (1, 1, 3, "No worker could be started: the first ended with exit code 1 before it was ready, 3 times."),
    ],
)
def test_workers_that_cannot_start_are_given_up(
    monkeypatch: pytest.MonkeyPatch, exit_code: int, result: int, starts: int, message: str | None
) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.01)
    ended, messages = list[int](), list[str]()
    plan = Plan([sys.executable, "-S", "-c", f"raise SystemExit({exit_code})"], ["cpu", "cpu"], {}, 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert Supervisor(plan, listener, lambda: None, ended.append, messages.append).run() == result
    assert len(ended) == starts
    assert (messages[-1] if messages else None) == message


def test_workers_have_the_cpu_or_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert worker_devices(3, "cpu") == ["cpu"] * 3
    assert worker_devices(2, "cuda") == ["cuda:0", "cuda:1"]
    with pytest.raises(UserError, match="3 workers need as many GPUs, but this machine has 2"):
        worker_devices(3, "cuda")
    with pytest.raises(UserError, match="use --device cuda or cpu instead of cuda:1"):
        worker_devices(2, "cuda:1")


def processes(port: int) -> float:
    return metric_samples(port)["regard_processes", ()]


def translations(port: int) -> float:
    name = "regard_requests_total"
    labels = (("model", "small"), ("route", "/v1/translate"), ("status", "200"))
    return metric_samples(port)[name, labels]


def children_of(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def is_running(process: int) -> bool:
    """Whether a process exists and has not ended; one without a parent may wait to be collected."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
