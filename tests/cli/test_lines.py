"""Lines processed by several processes give the output of one process."""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from regard.cli.lines import LineProcessor, process_lines
from regard.kernels.cpu.threads import Monitor
from regard.train.distributed.process_group import ProcessGroup
from tests.cli.multi_process import run, torchrun, wait
from tests.task.language_modeling.test_pipeline import save_random_writer
from tests.task.small import command, save_random_model, sentences, write_lines


class ThreadGroup(ProcessGroup):
    """A member of a process group of threads."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, values: list[Any]) -> None:
        self.rank, self.size, self.barrier, self.values = rank, size, barrier, values

    def all_gather_object(self, value: Any) -> list[Any]:
        self.values[self.rank] = value
        self.barrier.wait(20)
        gathered = list(self.values)
        self.barrier.wait(20)
        return gathered


def process_in_group(
    size: int, process: LineProcessor, text: list[str] | None = None, files: list[Path] | None = None
) -> None:
    """Process lines in a group of this size. Only rank 0 is given them."""
    barrier, values = threading.Barrier(size), [None] * size

    def work(rank: int) -> None:
        source = (text, files) if rank == 0 else (["must not be read"], None)
        process_lines(
            *source, None, "lines", process, items_in=len, process_group=ThreadGroup(rank, size, barrier, values)
        )

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_line_is_processed_once_and_written_in_order(size: int, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["a", "bb", "", "ccc", "d"]
    shards: list[list[str]] = []

    def process(shard: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
        shards.append(shard)
        return [f"{number} {line}" for number, line in zip(numbers, shard, strict=True)]

    process_in_group(size, process, lines)
    assert capsys.readouterr().out == "0 a\n1 bb\n3 \n3 ccc\n6 d\n"
    assert sorted(line for shard in shards for line in shard) == sorted(lines)
    assert len(shards) == min(size, len(lines))


def test_chunks_of_a_file_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("regard.cli.lines.CHUNK_LINES", 2)
    file = write_lines(tmp_path / "in.txt", [f"line {number}" for number in range(9)])

    def process(shard: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
        return [f"{line} begins at {number}" for line, number in zip(shard, numbers, strict=True)]

    process_in_group(2, process, files=[file])
    assert capsys.readouterr().out == "".join(f"line {number} begins at {6 * number}\n" for number in range(9))


def test_busy_cores_are_reported_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = Monitor(dict)
    monkeypatch.setattr("regard.kernels.cpu.threads._monitor", lambda: monitor)
    monkeypatch.setattr(monitor, "_set_idle_threads", lambda wanted: None)

    def process(lines: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
        for _ in range(20):
            monitor.observe(0.5)
        return lines

    process_in_group(2, process, ["one", "two"])
    out, err = capsys.readouterr()
    assert out.split() == ["one", "two"]
    assert err.count("Other processes") == 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("translator") / "model")


def test_two_processes_translate_as_one(model: Path, tmp_path: Path) -> None:
    lines = sentences(9)
    file = write_lines(tmp_path / "in.txt", [*lines[:4], "", f"{lines[4]}. {lines[5]}.", *lines[6:]])
    args = ("translate", model, "--file", file, "--nbest", 2, "--device", "cpu")
    parallel = run(*args, "--output", tmp_path / "out.txt", "--processes", 2)
    assert (parallel.code, parallel.out, "Traceback" in parallel.err) == (0, "", False)
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == command(*args).out


def test_two_processes_sample_as_one(model: Path) -> None:
    lines = "".join(f"{line}. {line}.\n" for line in sentences(5))
    args = ("translate", model, "--temperature", 1.0, "--seed", 7, "--device", "cpu")
    single = command(*args, stdin=lines.encode())
    parallel = run(*args, "--processes", 2, stdin=lines)
    assert (parallel.code, parallel.out) == (0, single.out)
    assert len(set(single.out.splitlines())) > 1


def test_torchrun_generates_as_one_process(tmp_path: Path) -> None:
    model = save_random_writer(tmp_path / "model")
    args = ("generate", model, "red", "old cat", "sun", "--nbest", 2, "--max-new-tokens", 6, "--device", "cpu")
    parallel = wait(torchrun("-m", "regard", *args))
    assert (parallel.code, parallel.out) == (0, command(*args).out)


def test_invalid_utf8_ends_all_processes_with_one_line(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.txt"
    file.write_bytes(b"red cat\n\xff\xfe\n")
    out = tmp_path / "out.txt"
    done = run("translate", model, "--file", file, "--output", out, "--device", "cpu", "--processes", 2)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith(f"regard: {file}")
    assert not out.exists()


def test_missing_processes_end_the_rendezvous(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.train.distributed.multi_process._RENDEZVOUS_SECONDS", 1.0)
    variables = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": 0}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    done = command("translate", model, "red cat", "--device", "cpu")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "did not find each other within 1 second" in done.err
    assert "unset RANK" in done.err


def test_ctranslate2_in_several_processes_is_refused(model: Path) -> None:
    done = command("translate", model, "red", "--engine", "ctranslate2", "--processes", 2)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "leave out --processes" in done.err
