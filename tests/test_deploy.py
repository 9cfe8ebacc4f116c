"""The examples of a deployment fit the command line."""

import json
from pathlib import Path

from tests.test_readme import parse

DEPLOY = Path(__file__).parent.parent / "examples" / "deploy"


def test_command_of_the_systemd_unit_parses() -> None:
    lines = (DEPLOY / "regard.service").read_text(encoding="utf-8").splitlines()
    [command] = [line.partition("=")[2] for line in lines if line.startswith("ExecStart=")]
    parse(command)


def test_command_of_the_container_parses() -> None:
    lines = (DEPLOY / "Containerfile").read_text(encoding="utf-8").splitlines()
    start, model = (json.loads(line.partition(" ")[2]) for line in lines if line.startswith(("ENTRYPOINT", "CMD")))
    parse(" ".join([*start, *model]))
