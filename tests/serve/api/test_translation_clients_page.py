"""The code and the requests of the guide do what it says, on a server with a small model."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.api.translation_clients_support import listening, translation_service

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "translation-clients.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
REQUESTS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() if line.startswith("curl ")]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with translation_service(tmp_path_factory.mktemp("served"), ["en-tr"]) as service, listening(service) as url:
        yield url.rstrip("/")


@pytest.mark.parametrize("code", [text for kind, text in BLOCKS if kind == "py"])
def test_code_runs(code: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code.replace("http://localhost:5000", url), "page", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize("line", REQUESTS)
def test_requests_are_answered(line: str, url: str) -> None:
    command = shlex.split(line.replace("http://localhost:5000", url))
    done = subprocess.run([*command, "--fail", "--silent"], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith((b"[{", b'{"trans'))
