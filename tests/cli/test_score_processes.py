"""`regard score --processes`: the test set is sharded, and the score is the same."""

from pathlib import Path

import pytest

from tests.cli.multi_process import run
from tests.task.small import command, pairs, save_random_model, write_lines, write_table

pytestmark = pytest.mark.start_early(6)


def test_two_processes_score_as_one(tmp_path: Path) -> None:
    model, table = save_random_model(tmp_path / "model"), write_table(tmp_path / "test.tsv", pairs(11, seed=3))
    args = ("score", model, "--pairs", table, "--json", "--sentences", "--device", "cpu")
    single, parallel = command(*args), run(*args, "--processes", 2)
    assert (parallel.code, parallel.out) == (0, single.out)


def test_more_processes_than_sentences_are_refused(tmp_path: Path) -> None:
    model, table = save_random_model(tmp_path / "model"), write_table(tmp_path / "test.tsv", pairs(3))
    done = command("score", model, "--pairs", table, "--processes", 4)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert all(part in done.err for part in ("given", "3 sentences", "4 processes"))


def test_file_of_outputs_is_not_sharded(tmp_path: Path) -> None:
    table = write_table(tmp_path / "test.tsv", pairs(4))
    outputs = write_lines(tmp_path / "outputs.txt", [target for _, target in pairs(4)])
    done = run("score", outputs, "--pairs", table, "--processes", 2)
    assert (done.code, done.out.startswith(f"{outputs} on given (4 sentences): BLEU ")) == (0, True)
