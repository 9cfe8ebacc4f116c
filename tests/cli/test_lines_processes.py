"""Text that several processes share out: what is written is what one process writes."""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from regard.cli.lines import Work, work_through
from regard.train.world import World
from tests.cli.together import done, run, torchrun
from tests.task.small import command, save_random_model, sentences, write_lines
from tests.task.test_generator import save_random_writer


class Neighbour(World):
    """One of several threads that answer each other as processes do."""

    def __init__(self, rank: int, size: int, meeting: threading.Barrier, said: list[Any]) -> None:
        self.rank, self.size, self.meeting, self.said = rank, size, meeting, said

    def gather(self, plain: Any) -> list[Any]:
        self.said[self.rank] = plain
        self.meeting.wait(20)
        found = list(self.said)
        self.meeting.wait(20)
        return found


def in_company(size: int, work: Work, text: list[str] | None = None, files: list[Path] | None = None) -> None:
    """Let so many workers go through some lines together. Only the first of them knows which."""
    meeting, said = threading.Barrier(size), [None] * size

    def one(rank: int) -> None:
        given = (text, files) if rank == 0 else (["not asked"], None)
        work_through(*given, None, "lines", work, things=len, world=Neighbour(rank, size, meeting, said))

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_line_is_worked_on_once_with_its_own_number_and_written_in_order(
    size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["a", "bb", "", "ccc", "d"]
    shares: list[list[str]] = []

    def work(some: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
        shares.append(some)
        return [f"{number} {line}" for number, line in zip(numbers, some, strict=True)]

    in_company(size, work, lines)
    assert capsys.readouterr().out == "0 a\n1 bb\n3 \n3 ccc\n6 d\n"
    assert sorted(line for share in shares for line in share) == sorted(lines)
    assert len(shares) == min(size, len(lines))


def test_a_file_longer_than_is_taken_at_once_keeps_its_order_and_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("regard.cli.lines.CHUNK", 2)
    file = write_lines(tmp_path / "in.txt", [f"line {number}" for number in range(9)])

    def work(some: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
        return [f"{line} begins at {number}" for line, number in zip(some, numbers, strict=True)]

    in_company(2, work, files=[file])
    assert capsys.readouterr().out == "".join(f"line {number} begins at {6 * number}\n" for number in range(9))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("translator") / "model")


def test_two_processes_translate_as_one_does(model: Path, tmp_path: Path) -> None:
    lines = sentences(9)
    file = write_lines(tmp_path / "in.txt", [*lines[:4], "", f"{lines[4]}. {lines[5]}.", *lines[6:]])
    words = ("translate", model, "--file", file, "--nbest", 2, "--device", "cpu")
    together = run(*words, "--output", tmp_path / "out.txt", "--processes", 2)
    assert (together.code, together.out, "Traceback" in together.err) == (0, "", False)
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == command(*words).out


def test_two_processes_draw_the_words_that_one_draws_from_standard_input(model: Path) -> None:
    lines = "".join(f"{line}. {line}.\n" for line in sentences(5))
    words = ("translate", model, "--temperature", 1.0, "--seed", 7, "--device", "cpu")
    alone = command(*words, stdin=lines.encode())
    together = run(*words, "--processes", 2, given=lines)
    assert (together.code, together.out) == (0, alone.out)
    assert len(set(alone.out.splitlines())) > 1


def test_processes_of_torchrun_go_on_with_prompts_as_one_does(tmp_path: Path) -> None:
    model = save_random_writer(tmp_path / "model")
    words = ("generate", model, "red", "old cat", "sun", "--count", 2, "--length", 6, "--device", "cpu")
    together = done(torchrun("-m", "regard", *words))
    assert (together.code, together.out) == (0, command(*words).out)


def test_text_that_is_no_text_ends_all_processes_with_one_line(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.txt"
    file.write_bytes(b"red cat\n\xff\xfe\n")
    out = tmp_path / "out.txt"
    found = run("translate", model, "--file", file, "--output", out, "--device", "cpu", "--processes", 2)
    assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)
    assert found.err.startswith(f"regard: {file}")
    assert not out.exists()


def test_a_process_that_nobody_joins_does_not_wait_for_as_long_as_a_translation_may_take(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.train.together._MEETING", 1.0)
    variables = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": 0}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    found = command("translate", model, "red cat", "--device", "cpu")
    assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)
    assert "did not find each other within 1 second" in found.err
    assert "unset RANK" in found.err


def test_ctranslate2_is_not_shared_out(model: Path) -> None:
    found = command("translate", model, "red", "--engine", "ctranslate2", "--processes", 2)
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "leave out --processes" in found.err
