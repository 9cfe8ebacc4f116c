"""`regard score --processes`: the test set is shared out, and the score is the same."""

from pathlib import Path

from tests.cli.together import run
from tests.task.small import command, pairs, save_random_model, write_lines, write_table


def test_two_processes_score_as_one_does(tmp_path: Path) -> None:
    model, given = save_random_model(tmp_path / "model"), write_table(tmp_path / "test.tsv", pairs(11, seed=3))
    words = ("score", model, "--pairs", given, "--json", "--sentences", "--device", "cpu")
    alone, together = command(*words), run(*words, "--processes", 2)
    assert (together.code, together.out) == (0, alone.out)


def test_more_processes_than_sentences_are_refused(tmp_path: Path) -> None:
    model, given = save_random_model(tmp_path / "model"), write_table(tmp_path / "test.tsv", pairs(3))
    found = command("score", model, "--pairs", given, "--processes", 4)
    assert (found.code, found.err) == (2, "regard: 4 processes cannot share the 3 sentences of given.\n")


def test_outputs_in_a_file_are_scored_whole(tmp_path: Path) -> None:
    given = write_table(tmp_path / "test.tsv", pairs(4))
    outputs = write_lines(tmp_path / "outputs.txt", [target for _, target in pairs(4)])
    found = run("score", outputs, "--pairs", given, "--processes", 2)
    assert (found.code, found.out.startswith(f"{outputs} on given (4 sentences): BLEU ")) == (0, True)
