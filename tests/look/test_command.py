"""`regard look` as a person meets it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from regard.cli.look import _split
from regard.look.opening import open_subject
from tests.look.support import TEXT, saved, writer
from tests.task.small import Done, command
from tests.task.small_pictures import pictures


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "small", writer(dtype=torch.float32))


def is_refused(done: Done, *words: str) -> None:
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    for word in words:
        assert word in done.err


def embedded(path: Path) -> dict:
    page = path.read_text(encoding="utf-8")
    (content,) = re.findall(r'id="embedded">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(content)


def test_a_file_is_written_with_the_page_and_the_trace(folder: Path, tmp_path: Path) -> None:
    done = command("look", folder, TEXT, "--html", tmp_path / "out.html")
    assert (done.code, done.out, done.err) == (0, f"{tmp_path / 'out.html'}\n", "")
    content = embedded(tmp_path / "out.html")
    assert content["trace"]["request"]["text"] == TEXT
    assert content["trace"]["output"] == open_subject(folder).translator.translate(TEXT)  # type: ignore[attr-defined]


def test_without_a_text_it_is_an_example(folder: Path, tmp_path: Path) -> None:
    command("look", folder, "--html", tmp_path / "out.html")
    assert embedded(tmp_path / "out.html")["trace"]["request"]["text"] == "The cat ate the mouse."


def test_a_saved_trace_becomes_a_page(folder: Path, tmp_path: Path) -> None:
    path = open_subject(folder).trace(_request()).save(tmp_path / "one.safetensors")
    done = command("look", path, "--html", tmp_path / "out.html")
    assert done.code == 0
    assert embedded(tmp_path / "out.html")["trace"]["request"]["text"] == TEXT
    is_refused(command("look", path, TEXT, "--html", tmp_path / "two.html"), "holds its text already")


def _request():
    from regard.look.wire import RunRequest

    return RunRequest(text=TEXT)


def test_a_picture_is_looked_at_by_its_path(tmp_path: Path) -> None:
    from PIL import Image

    from regard.run import save
    from tests.look.support import classifier

    subject = classifier(channels=1, image=4)
    save(subject.model, tmp_path / "vit")  # type: ignore[arg-type]
    Image.fromarray(pictures(1)[0][0]).save(tmp_path / "one.png")
    done = command("look", tmp_path / "vit", tmp_path / "one.png", "--html", tmp_path / "out.html")
    assert done.code == 0, done.err
    assert embedded(tmp_path / "out.html")["trace"]["grid"]["rows"] == 2
    is_refused(command("look", tmp_path / "vit", "--html", tmp_path / "out.html"), "needs something to look at")


def test_the_extra_is_not_needed_for_a_file(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfor name in ('fastapi', 'uvicorn', 'starlette'): sys.modules[name] = None\n"
        f"sys.argv = ['regard', 'look', {str(folder)!r}, 'a cat', '--html', {str(tmp_path / 'out.html')!r}]\n"
        "from regard.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.html").is_file()


def test_without_the_extra_it_says_how_to_get_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    is_refused(command("look", folder), "pip install 'regard[serve]'", "--html")


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    is_refused(command("look", tmp_path / "none"), "there is no such folder")


def test_a_folder_of_runs_that_is_not_there_is_named(folder: Path, tmp_path: Path) -> None:
    is_refused(command("look", folder, "--runs", tmp_path / "none"), "--runs", "no such folder")


def test_a_file_is_about_one_model(folder: Path, tmp_path: Path) -> None:
    is_refused(command("look", folder, folder, "--html", tmp_path / "out.html"), "a page about one model; 2 were named")


def test_a_damaged_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.safetensors").write_bytes(b"nothing")
    is_refused(command("look", tmp_path / "one.safetensors"), "damaged or cut short")


def test_a_port_that_is_taken_is_refused(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        is_refused(command("look", folder, "--port", port, "--no-browser"), f"Port {port} cannot be had", "--port")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["en-tr"], (["en-tr"], None)),
        (["en-tr", "a text"], (["en-tr"], "a text")),
        (["en-tr", "en-tr"], (["en-tr", "en-tr"], None)),
        (["en-tr", "en-tr", "a text"], (["en-tr", "en-tr"], "a text")),
        (["no model"], (["no model"], None)),
    ],
)
def test_the_last_word_is_a_text_if_it_is_no_model(words: list[str], found: tuple[list[str], str | None]) -> None:
    assert _split(words) == found


@contextmanager
def started(*words: object, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`regard look …` in a process of its own, and the address it says."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("DISPLAY", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", "look", *map(str, words)],
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


def test_the_page_is_served_until_it_is_stopped(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "metrics.jsonl").write_text('{"step": 1}\n')
    with started(folder, TEXT, cwd=tmp_path) as (process, address):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#model=small&text=the%20old%20cat.*", address)
        home = address.split("#")[0]
        models = json.loads(urllib.request.urlopen(f"{home}api/models").read())
        assert [one["id"] for one in models] == ["small"]
        assert len(json.loads(urllib.request.urlopen(f"{home}api/runs").read())) == 1
        assert b"page.js" in urllib.request.urlopen(home).read()
        begun = urllib.request.Request(
            f"{home}api/models/small/worth",
            json.dumps({"how": "zero", "measure": "loss", "lines": ["the old cat\tthe old cat"] * 3000}).encode(),
            {"Content-Type": "application/json"},
        )
        assert json.loads(urllib.request.urlopen(begun).read())["state"] == "running"  # it is stopped in the midst
        process.send_signal(signal.SIGINT)
        end = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert process.returncode == 0
        assert process.stderr is not None
        assert process.stderr.read() == "The page is there until you press Ctrl-C.\n"


def test_a_saved_trace_is_opened_on_the_page(folder: Path, tmp_path: Path) -> None:
    path = open_subject(folder).trace(_request()).save(tmp_path / "one.safetensors")
    with started(folder, path, "--no-browser", cwd=tmp_path) as (_, address):
        home, name = address.split("#trace=")
        header = json.loads(urllib.request.urlopen(f"{home}api/traces/{name}").read())
        assert header["request"]["text"] == TEXT
        asked = urllib.request.Request(f"{home}api/traces/{name}/nodes/0", method="POST")
        assert json.loads(urllib.request.urlopen(asked).read())["node"] == 0  # its model is open too


def test_nobody_else_on_the_network_can_reach_it(folder: Path, tmp_path: Path) -> None:
    with started(folder, cwd=tmp_path) as (_, address):
        port = int(re.findall(r":(\d+)/", address)[0])
        for other in {found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}:
            if not other.startswith("127."):
                with socket.socket() as asking, pytest.raises(OSError, match="refused"):
                    asking.connect((other, port))
