"""The command `regard look`."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.cli.commands.look import _split
from regard.errors import how_to_install
from regard.look.models.auto import load_traced_model
from tests.look.support import TEXT, autoregressive_model, embedded, save_run
from tests.task.small import Result, command
from tests.task.small_images import small_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("models") / "small", autoregressive_model(dtype=torch.float32))


def check_refused(done: Result, *args: str) -> None:
    """Exit code 2 and one line on stderr."""
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    for word in args:
        assert word in done.err


def written(folder: Path) -> dict[str, Any]:
    """The data in the page that the command wrote."""
    return embedded((folder / "out.html").read_text(encoding="utf-8"))


def test_html_writes_the_page_with_the_trace(folder: Path, tmp_path: Path) -> None:
    done = command("look", folder, TEXT, "--html", tmp_path / "out.html")
    assert (done.code, done.out, done.err) == (0, f"{tmp_path / 'out.html'}\n", "")
    content = written(tmp_path)
    assert content["trace"]["request"]["text"] == TEXT
    assert content["trace"]["output"] == load_traced_model(folder).pipeline.translate(TEXT)  # type: ignore[attr-defined]


def test_default_text_is_the_example(folder: Path, tmp_path: Path) -> None:
    command("look", folder, "--html", tmp_path / "out.html")
    assert written(tmp_path)["trace"]["request"]["text"] == "The cat ate the mouse."


def test_html_of_a_saved_trace(folder: Path, tmp_path: Path) -> None:
    path = load_traced_model(folder).trace(_request()).save(tmp_path / "one.safetensors")
    done = command("look", path, "--html", tmp_path / "out.html")
    assert done.code == 0
    assert written(tmp_path)["trace"]["request"]["text"] == TEXT
    check_refused(command("look", path, TEXT, "--html", tmp_path / "two.html"), "saved trace")


def _request():
    from regard.look.schema import RunRequest

    return RunRequest(text=TEXT)


def test_image_is_given_by_its_path(tmp_path: Path) -> None:
    from PIL import Image

    from regard.run import save_model
    from tests.look.support import classifier

    traced_model = classifier(channels=1, image_size=4)
    save_model(traced_model.model, tmp_path / "vit")  # type: ignore[arg-type]
    Image.fromarray(small_images(1)[0][0]).save(tmp_path / "one.png")
    done = command("look", tmp_path / "vit", tmp_path / "one.png", "--html", tmp_path / "out.html")
    assert done.code == 0, done.err
    assert written(tmp_path)["trace"]["grid"]["rows"] == 2
    check_refused(command("look", tmp_path / "vit", "--html", tmp_path / "out.html"), "needs an input")


def test_html_works_without_the_extra(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfor name in ('fastapi', 'uvicorn', 'starlette'): sys.modules[name] = None\n"
        f"sys.argv = ['regard', 'look', {str(folder)!r}, 'a cat', '--html', {str(tmp_path / 'out.html')!r}]\n"
        "from regard.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.html").is_file()


def test_missing_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_refused(command("look", folder), how_to_install("serve"), "--html")


def test_missing_model_is_refused(tmp_path: Path) -> None:
    check_refused(command("look", tmp_path / "none"), "there is no such folder")


def test_missing_runs_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    check_refused(command("look", folder, "--runs", tmp_path / "none"), "--runs", "none")


def test_html_takes_one_model(folder: Path, tmp_path: Path) -> None:
    check_refused(command("look", folder, folder, "--html", tmp_path / "out.html"), "--html", "2")


def test_damaged_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.safetensors").write_bytes(b"nothing")
    check_refused(command("look", tmp_path / "one.safetensors"), "damaged or truncated")


def test_taken_port_is_refused(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        check_refused(command("look", folder, "--port", port, "--no-browser"), f"Port {port} cannot be used", "--port")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["en-tr"], (["en-tr"], None)),
        (["en-tr", "a text"], (["en-tr"], "a text")),
        (["en-tr", "en-tr"], (["en-tr", "en-tr"], None)),
        (["en-tr", "en-tr", "a text"], (["en-tr", "en-tr"], "a text")),
        (["no model"], (["no model"], None)),
    ],
)
def test_last_argument_is_a_text_unless_it_is_a_model(args: list[str], expected: tuple[list[str], str | None]) -> None:
    assert _split(args) == expected


@contextmanager
def started(*args: object, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`regard look …` as a subprocess, with the URL that it prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("DISPLAY", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", "look", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment,
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def browser() -> urllib.request.OpenerDirector:
    """A client that keeps cookies."""
    return urllib.request.build_opener(urllib.request.HTTPCookieProcessor())


def test_page_is_served_until_interrupted(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "metrics.jsonl").write_text('{"step": 1}\n')
    with started(folder, TEXT, cwd=tmp_path) as (process, address):
        pattern = r"http://127\.0\.0\.1:\d+/\?token=[\w-]{20,}#model=small&text=the%20old%20cat.*"
        assert re.fullmatch(pattern, address)
        home, opened = address.split("?")[0], browser()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            opened.open(f"{home}api/models")
        assert b"page.js" in opened.open(address.split("#")[0]).read()  # it keeps the cookie
        models = json.loads(opened.open(f"{home}api/models").read())
        assert [one["id"] for one in models] == ["small"]
        assert len(json.loads(opened.open(f"{home}api/runs").read())) == 1
        begun = urllib.request.Request(
            f"{home}api/models/small/head-importance",
            json.dumps({"ablation": "zero", "metric": "loss", "lines": ["the old cat\tthe old cat"] * 3000}).encode(),
            {"Content-Type": "application/json"},
        )
        assert json.loads(opened.open(begun).read())["state"] == "running"  # the interrupt stops it
        process.send_signal(signal.SIGINT)
        end = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert process.returncode == 0
        assert process.stderr is not None
        assert process.stderr.read() == "Press Ctrl-C to stop the server.\n"


def test_saved_trace_is_opened_with_its_model(folder: Path, tmp_path: Path) -> None:
    path = load_traced_model(folder).trace(_request()).save(tmp_path / "one.safetensors")
    with started(folder, path, "--no-browser", cwd=tmp_path) as (_, address):
        start, name = address.split("#trace=")
        home, opened = start.split("?")[0], browser()
        opened.open(start)
        header = json.loads(opened.open(f"{home}api/traces/{name}").read())
        assert header["request"]["text"] == TEXT
        request = urllib.request.Request(f"{home}api/traces/{name}/nodes/0", method="POST")
        assert json.loads(opened.open(request).read())["node"] == 0


def test_server_is_not_reachable_from_other_machines(folder: Path, tmp_path: Path) -> None:
    with started(folder, cwd=tmp_path) as (_, address):
        port = int(re.findall(r":(\d+)/", address)[0])
        for other in {expected[4][0] for expected in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}:
            if not other.startswith("127."):
                with socket.socket() as asking, pytest.raises(OSError, match="refused"):
                    asking.connect((other, port))
