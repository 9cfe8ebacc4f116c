"""Messages and pages agree on how regard is installed: from a checkout, with the extras of pyproject.toml."""

import re
import tomllib
from pathlib import Path

from regard.errors import how_to_install, how_to_upgrade, install_command

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FILES = [
    ROOT / "README.md",
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("src/regard/**/*.py"),
    *ROOT.glob("examples/**/*.py"),
    *ROOT.glob("benchmarks/**/*.py"),
    *ROOT.glob("tests/**/*.py"),
]
OWN = rf"(?<![\w/.-])(?:'?\.(?:\[[\w,]*\])?'?(?=[\s`.;,]|$)|['\"]?{PROJECT['name']}\b\S*)"
"""What stands for this package among the arguments of pip: the current folder, or its name."""


def own_installs(text: str) -> list[str]:
    """All pip commands in a text that install this package, up to the name of the package."""
    flat = " ".join(text.split())
    return [found[0] for found in re.finditer(rf"pip install (?:-\S+ (?:constraints\.txt )?)*{OWN}", flat)]


def test_own_installs_are_found() -> None:
    text = (
        "pip install\n'regard[fast]' or `pip install -c constraints.txt '.[serve]'`, pip install torch; pip install ."
    )
    assert own_installs(text) == [
        "pip install 'regard[fast]'",
        "pip install -c constraints.txt '.[serve]'",
        "pip install .",
    ]


def test_install_commands_are_those_of_a_checkout() -> None:
    allowed = {install_command(), *map(install_command, PROJECT["optional-dependencies"])}
    for path in FILES:
        if path != Path(__file__):
            assert set(own_installs(path.read_text(encoding="utf-8"))) <= allowed, path


def test_messages_name_extras_that_exist() -> None:
    used = set()
    for path in ROOT.glob("src/regard/**/*.py"):
        used |= set(re.findall(r"how_to_install\(['\"](\w+)['\"]\)", path.read_text(encoding="utf-8")))
    assert {"fast", "interop", "serve"} <= used <= PROJECT["optional-dependencies"].keys()


def test_messages_contain_the_command() -> None:
    assert install_command("serve") == "pip install -c constraints.txt '.[serve]'"
    assert install_command("serve") in how_to_install("serve")
    assert install_command() in how_to_upgrade()
