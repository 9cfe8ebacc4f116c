"""What a command writes: nothing that the user had is lost, and what cannot be written is refused before the work."""

import contextlib
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from regard import UserError
from regard.cli import main
from regard.cli.standard_streams import standard_streams
from regard.files import check_output, growing_file, new_folder, write_text
from tests.cli.refusal import assert_refused
from tests.task.small import command, save_random_model, write_lines


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("models") / "small")


@contextlib.contextmanager
def read_fifo(path: Path) -> Iterator[list[str]]:
    """Create a FIFO and read it in a thread; the list has its content when the block is left."""
    os.mkfifo(path)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(path.read_text(encoding="utf-8")), daemon=True)
    reader.start()
    yield received
    reader.join(20)


# What is not a plain file


def test_fifo_is_written_and_stays_a_fifo(model: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    with read_fifo(fifo) as received:
        done = command("translate", model, "red cat", "sun", "--output", fifo)
    assert (done.code, done.err) == (0, "")
    assert received == [command("translate", model, "red cat", "sun").out]
    assert fifo.is_fifo()
    assert list(tmp_path.iterdir()) == [fifo]


def test_whole_files_go_through_a_fifo_too(model: Path, tmp_path: Path) -> None:
    with read_fifo(tmp_path / "fifo") as received:
        done = command("look", model, "red", "--html", tmp_path / "fifo")
    assert (done.code, done.err) == (0, "")
    assert received[0].startswith("<!doctype html>")
    assert (tmp_path / "fifo").is_fifo()


def test_device_is_written_and_stays_a_device(model: Path, tmp_path: Path) -> None:
    """A node like /dev/null, but in a folder where replacing it would break nothing."""
    node = tmp_path / "null"
    try:
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        node.write_text("", encoding="utf-8")
    except OSError:
        pytest.skip("only an administrator can create a device")
    assert command("translate", model, "red cat", "--output", node).code == 0
    write_text(node, "a page")
    assert node.is_char_device()
    assert list(tmp_path.iterdir()) == [node]


@pytest.mark.parametrize("existing", [True, False])
def test_link_is_followed_and_stays_a_link(existing: bool, model: Path, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    target, link = tmp_path / "deep" / "real.txt", tmp_path / "out.txt"
    if existing:
        target.write_text("old\n", encoding="utf-8")
    link.symlink_to(Path("deep") / "real.txt")
    expected = command("translate", model, "red cat").out
    assert command("translate", model, "red cat", "--output", link).code == 0
    assert (link.is_symlink(), target.read_text(encoding="utf-8")) == (True, expected)
    write_text(link, "a page")
    assert (link.is_symlink(), target.read_text(encoding="utf-8")) == (True, "a page")
    assert sorted(tmp_path.rglob("*")) == sorted([target.parent, target, link])


# Refusals before the work: the model does not exist, which would be the next complaint

COMMANDS: dict[str, tuple[str, ...]] = {
    "translate": ("--output",),
    "generate": ("--output",),
    "parse": ("--output",),
    "fill": ("--output",),
    "tag": ("--output",),
    "classify": ("--output",),
    "look": ("text", "--html"),
}


@pytest.mark.parametrize(("name", "option"), COMMANDS.items(), ids=COMMANDS.keys())
@pytest.mark.parametrize("output", ["a folder", "missing/out.txt", "a file/out.txt", "link to itself", ""])
def test_unwritable_output_is_refused_before_the_work(
    name: str, option: tuple[str, ...], output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a folder").mkdir()
    Path("a file").touch()
    Path("link to itself").symlink_to("link to itself")
    before = sorted(tmp_path.rglob("*"))
    assert_refused(command(name, "no/such/model", *option, output), f"{output or '.'} could not be written")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("protected", ["out.txt", ""])
def test_write_protected_output_is_refused(protected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator may write everywhere, so permissions alone would not show it."""
    out = write_lines(tmp_path / "out.txt", ["mine"])
    monkeypatch.setattr("os.access", lambda path, mode: mode == os.R_OK or Path(path) != tmp_path / protected)
    assert_refused(command("translate", "no/such/model", "red", "--output", out), str(out), "Permission denied")


def same_path(given: Path, folder: Path) -> Path:
    return given.parent / "." / given.name


def hard_link(given: Path, folder: Path) -> Path:
    os.link(given, folder / "out.txt")
    return folder / "out.txt"


def symbolic_link(given: Path, folder: Path) -> Path:
    (folder / "out.txt").symlink_to(given)
    return folder / "out.txt"


def name_whose_partial_it_is(given: Path, folder: Path) -> Path:
    os.link(given, folder / "out.txt.partial")
    return folder / "out.txt"


@pytest.mark.parametrize("output", [same_path, hard_link, symbolic_link, name_whose_partial_it_is])
def test_output_that_is_the_input_is_refused(output: Callable[[Path, Path], Path], model: Path, tmp_path: Path) -> None:
    given = write_lines(tmp_path / "in.txt", ["red cat"])
    out = output(given, tmp_path)
    for args in (
        ("translate", model, "--file", given, "--output", out),
        ("translate", model, "sun", "--shortlist-file", given, "--output", out),
        ("classify", model, given, "--output", out),
        ("look", model, given, "--html", out),
        ("shortlist", model, "--source", given, "--target", given, "--out", out),
    ):
        assert_refused(command(*args), str(out), str(given))
    assert given.read_text(encoding="utf-8") == "red cat\n"


def test_output_that_is_standard_input_is_refused(model: Path, tmp_path: Path) -> None:
    given = write_lines(tmp_path / "in.txt", ["red cat"])
    with given.open(encoding="utf-8") as stdin, pytest.raises(UserError, match="standard input"):
        check_output(given, [stdin.fileno()])


def test_fifo_that_is_the_input_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    args = ("--file", tmp_path / "fifo", "--output", tmp_path / "fifo")
    assert_refused(command("translate", "no/such/model", *args), str(tmp_path / "fifo"))


def test_drawing_over_the_input_is_refused(tmp_path: Path) -> None:
    given = write_lines(tmp_path / "1.svg", ["red cat"])
    assert_refused(command("parse", "no/such/model", "--file", given, "--svg", tmp_path), str(given))


@pytest.mark.parametrize(
    "args", [("import", "{model}"), ("export", "{model}", "hf"), ("export", "{model}", "ctranslate2")]
)
@pytest.mark.parametrize("out", ["a file/out", "a file"])
def test_unwritable_folder_is_refused_before_the_work(args: tuple[str, ...], out: str, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("mine", encoding="utf-8")
    given = [part.format(model="no/such/model") for part in args]
    assert_refused(command(*given, tmp_path / out), str(tmp_path / out))
    assert (tmp_path / "a file").read_text(encoding="utf-8") == "mine"


# Two writers, and what a killed one leaves


def test_second_writer_is_refused_while_the_first_is_alive(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    with growing_file(out) as first:
        first.write("first\n")
        assert_refused(command("translate", "no/such/model", "sun", "--output", out), f"{out}.partial")
        with pytest.raises(UserError, match="another command"), growing_file(out):
            pass
    assert out.read_text(encoding="utf-8") == "first\n"
    assert command("translate", model, "sun", "--output", out).code == 0
    assert list(tmp_path.iterdir()) == [out]


def test_partial_output_of_a_killed_command_is_overwritten(model: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "out.txt.partial", ["one", "two", "three"])
    assert command("translate", model, "sun", "--output", tmp_path / "out.txt").code == 0
    assert list(tmp_path.iterdir()) == [tmp_path / "out.txt"]


def test_link_in_place_of_the_partial_output_is_refused(tmp_path: Path) -> None:
    mine = write_lines(tmp_path / "mine.txt", ["mine"])
    (tmp_path / "out.txt.partial").symlink_to(mine)
    done = command("translate", "no/such/model", "sun", "--output", tmp_path / "out.txt")
    assert_refused(done, "out.txt.partial")
    assert mine.read_text(encoding="utf-8") == "mine\n"


def test_export_deletes_what_a_killed_export_left(model: Path, tmp_path: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from regard.files import new_folder\n"
        f"with new_folder(Path({str(tmp_path / 'out')!r})) as unfinished:\n"
        "    (unfinished / 'model.safetensors').touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code])
    (leftover,) = tmp_path.iterdir()
    (tmp_path / ".other.unfinished-1").mkdir()
    assert command("export", model, "ctranslate2", tmp_path / "out").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.unfinished-1", "out"]
    assert not leftover.exists()


def test_folder_that_is_being_written_is_not_taken_for_a_leftover(tmp_path: Path) -> None:
    with new_folder(tmp_path / "slow", replace=True) as slow:
        (slow / "file").write_text("slow", encoding="utf-8")
        with new_folder(tmp_path / "slow") as fast:
            (fast / "file").write_text("fast", encoding="utf-8")
        assert (slow / "file").read_text(encoding="utf-8") == "slow"
    assert (tmp_path / "slow" / "file").read_text(encoding="utf-8") == "slow"


def test_long_file_name_can_be_written(tmp_path: Path) -> None:
    write_text(tmp_path / ("ğ" * 127), "text")
    assert (tmp_path / ("ğ" * 127)).read_text(encoding="utf-8") == "text"


LONG_NAME = "red cat " * 40


@pytest.mark.parametrize(
    "args",
    [
        ("translate", LONG_NAME),
        ("translate", "en-tr", "--file", LONG_NAME),
        ("translate", "en-tr", "red", "--output", LONG_NAME),
        ("translate", "en-tr", "red", "--output", "b" * 250),
        ("look", "en-tr", "red", "--html", LONG_NAME),
        ("export", "en-tr", "hf", LONG_NAME),
        ("import", LONG_NAME, "out"),
        ("shortlist", "en-tr", "--pairs", LONG_NAME, "--out", "out"),
        ("cost", LONG_NAME),
    ],
    ids=str,
)
def test_name_that_is_too_long_is_refused(
    args: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(command(*args), "File name too long")
    assert list(tmp_path.iterdir()) == []


def test_text_that_is_too_long_for_a_name_is_a_text(model: Path, tmp_path: Path) -> None:
    assert command("look", model, LONG_NAME, "--html", tmp_path / "page.html").code == 0


# Standard output


def run_with(stdout: object, *args: object) -> tuple[int, str]:
    """The exit code and standard error of a command with this standard output."""
    with (
        mock.patch.object(sys, "stdout", stdout),
        mock.patch.object(sys, "argv", ["regard", *map(str, args)]),
        mock.patch.object(sys, "stderr", mock.Mock(wraps=sys.stderr)) as stderr,
        pytest.raises(SystemExit) as ended,
    ):
        main()
    written = "".join(call.args[0] for call in stderr.write.call_args_list)
    assert isinstance(ended.value.code, int)
    return ended.value.code, written


COMMANDS_THAT_PRINT = [("translate", "{model}", "red"), ("recipes",), ("--help",)]


@pytest.mark.parametrize("args", COMMANDS_THAT_PRINT, ids=str)
def test_full_standard_output_is_reported(args: tuple[str, ...], model: Path) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        code, err = run_with(full, *(part.format(model=model) for part in args))
    assert (code, err.count("\n"), "No space left on device" in err) == (2, 1, True), err


@pytest.mark.parametrize("args", COMMANDS_THAT_PRINT, ids=str)
def test_reader_that_has_gone_ends_a_command_quietly(args: tuple[str, ...], model: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="utf-8") as pipe:
        assert run_with(pipe, *(part.format(model=model) for part in args)) == (141, "")


def test_closed_standard_output_is_refused_before_the_work() -> None:
    code, err = run_with(None, "translate", "no/such/model", "red")
    assert (code, err.count("\n"), "Standard output is closed" in err) == (2, 1, True), err


def test_closed_standard_output_does_not_matter_with_an_output_file(model: Path, tmp_path: Path) -> None:
    with (
        mock.patch.object(sys, "stdout", None),
        mock.patch.object(
            sys, "argv", ["regard", "translate", str(model), "red", "--output", str(tmp_path / "out.txt")]
        ),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    assert not ended.value.code
    assert (tmp_path / "out.txt").exists()


def test_full_standard_error_does_not_stop_the_work() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full, mock.patch.object(sys, "stderr", full), standard_streams():
        print("a message", file=sys.stderr, flush=True)


def test_shell_redirections_end_with_sentences() -> None:
    script = """
    "$0" -m regard --version > /dev/full; echo $?
    "$0" -m regard --version >&-; echo $?
    "$0" -m regard translate no/such/model <&-; echo $?
    "$0" -m regard --help | true; echo ${PIPESTATUS[0]}
    """
    done = subprocess.run(["bash", "-c", script, sys.executable], capture_output=True, text=True, encoding="utf-8")
    assert done.stdout.split() == ["2", "2", "2", "141"]
    errors = done.stderr.splitlines()
    assert [line.startswith("regard: Standard") for line in errors] == [True] * 3, done.stderr
