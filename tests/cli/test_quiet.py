"""`--quiet` silences standard error except for errors, and changes nothing on standard output."""

import sys
from pathlib import Path

import pytest
import typer

from regard.cli import app
from regard.cli.app import App
from regard.cli.standard_streams import print_error, silenced_messages
from tests.task.small import command, save_random_model


def test_every_command_has_quiet() -> None:
    groups = [app, *(group.typer_instance for group in app.registered_groups)]
    assert all(isinstance(group, App) for group in groups)
    for group in groups:
        for registered in group.registered_commands:
            assert registered.callback is not None
            assert "quiet" in registered.callback.__annotations__, registered.name


def test_messages_are_silenced_and_errors_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with silenced_messages():
        print("a message", file=sys.stderr)
        assert not sys.stderr.isatty()
        print("a result")
        print_error("an error")
    print("another message", file=sys.stderr)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("a result\n", "an error\nanother message\n")


def test_quiet_translation_has_the_same_output_and_no_messages(tmp_path: Path) -> None:
    model = save_random_model(tmp_path / "model")
    (tmp_path / "model" / "run.json").rename(tmp_path / "run.json")
    refused = command("translate", model, "-q", "a")
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert str(model) in refused.err
    (tmp_path / "run.json").rename(tmp_path / "model" / "run.json")
    loud, quiet = command("translate", model, "a", "b"), command("translate", model, "a", "b", "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, loud.out, "")


def test_usage_errors_are_printed(tmp_path: Path) -> None:
    refused = command("train", "-q", "--threads", "0", "quick")
    assert refused.code == 2
    assert "--threads" in refused.err


def test_option_is_added_after_the_options_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    small = App()

    @small.command("one")
    def one(name: str, count: int = 1) -> None:
        print(name * count)
        print("a message", file=sys.stderr)

    @small.command("two")
    def two() -> None: ...

    with pytest.raises(SystemExit) as end:
        small(["one", "ab", "-q", "--count", "2"])
    assert end.value.code == 0
    assert tuple(capsys.readouterr()) == ("abab\n", "")
    one("ab")  # the function itself is unchanged
    assert typer.Typer.command is not App.command
