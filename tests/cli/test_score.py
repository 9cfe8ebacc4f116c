"""`regard score` as a person meets it: of files, of models, one against the other."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from regard.score import score_translations
from regard.task import load_translator, read_recipe, train
from tests.task.small import command, pairs, quick_runs, save_random_model, write_lines, write_recipe_file, write_table

REFERENCES = [
    "The cat sat on the mat .",
    "A dog barked all night long , and nobody slept .",
    "We are going home now .",
    "It rained for three days in a row .",
]
OUTPUTS = [
    "The cat sat on a mat .",
    "A dog barked all night , and nobody slept .",
    "We go home now .",
    "it rained three days in a row .",
]


@pytest.fixture
def references(tmp_path: Path) -> Path:
    return write_table(tmp_path / "test.tsv", [(f"source {number}", one) for number, one in enumerate(REFERENCES)])


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "outputs.txt", OUTPUTS)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished run with two test sets of its own."""
    place = tmp_path_factory.mktemp("run")
    write_table(place / "train.tsv", pairs(40))
    write_table(place / "first.tsv", pairs(5, seed=2))
    write_table(place / "second.tsv", pairs(7, seed=3))
    data = {
        "train": [{"path": "train.tsv"}],
        "test": {"first": {"path": "first.tsv"}, "second": {"path": "second.tsv"}},
    }
    recipe = write_recipe_file(place / "small.toml", data, "train.steps=30", "score.lowercase=true")
    with quick_runs(place / "cache"):
        train(read_recipe(recipe), place / "run")
        yield place / "run"


def facts(*words: object) -> list[dict[str, object]]:
    done = command("score", *words, "--json")
    assert (done.code, done.err) == (0, "")
    return [json.loads(line) for line in done.out.splitlines()]


# A file of outputs.


def test_a_file_of_outputs_is_scored_against_given_pairs(outputs: Path, references: Path) -> None:
    wanted = score_translations(OUTPUTS, REFERENCES)
    first = command("score", outputs, "--pairs", references).out.splitlines()[0]
    assert first == f"{outputs} on given (4 sentences): BLEU {wanted.bleu:.2f}, chrF {wanted.chrf:.2f}"


def test_a_score_comes_with_its_signatures(outputs: Path, references: Path) -> None:
    wanted = score_translations(OUTPUTS, REFERENCES)
    lines = command("score", outputs, "--pairs", references).out.splitlines()
    assert lines[1:] == [f"  BLEU {wanted.bleu_signature}", f"  chrF {wanted.chrf_signature}"]


def test_a_perfect_output_has_a_hundred(tmp_path: Path, references: Path) -> None:
    perfect = write_lines(tmp_path / "perfect.txt", REFERENCES)
    assert "BLEU 100.00, chrF 100.00" in command("score", perfect, "--pairs", references).out


def test_references_may_come_from_two_files(outputs: Path, references: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "test.en", ["x"] * 4)
    reference = write_lines(tmp_path / "test.de", REFERENCES)
    (found,) = facts(outputs, "--source", source, "--reference", reference)
    (wanted,) = facts(outputs, "--pairs", references)
    assert found == wanted


def test_json_has_the_scores_and_all_that_makes_them_comparable(outputs: Path, references: Path) -> None:
    wanted = score_translations(OUTPUTS, REFERENCES)
    assert facts(outputs, "--pairs", references) == [
        {
            "model": str(outputs),
            "test": "given",
            "bleu": round(wanted.bleu, 2),
            "chrf": round(wanted.chrf, 2),
            "sentences": 4,
            "bleu_signature": wanted.bleu_signature,
            "chrf_signature": wanted.chrf_signature,
        }
    ]


def test_every_sentence_is_scored_by_itself_where_asked(outputs: Path, references: Path) -> None:
    lines = command("score", outputs, "--pairs", references, "--sentences").out.splitlines()[3:]
    cells = [line.split("\t") for line in lines]
    assert [(cell[0], cell[3], cell[4], cell[5]) for cell in cells] == [
        (f"{number + 1}", f"source {number}", reference, output)
        for number, (reference, output) in enumerate(zip(REFERENCES, OUTPUTS, strict=True))
    ]


def test_sentences_have_their_own_scores_in_json(outputs: Path, references: Path, tmp_path: Path) -> None:
    mixed = write_lines(tmp_path / "mixed.txt", [REFERENCES[0], *OUTPUTS[1:]])
    _, *each = facts(mixed, "--pairs", references, "--sentences")
    assert [one["sentence"] for one in each] == [1, 2, 3, 4]
    assert [one["bleu"] == 100 for one in each] == [True, False, False, False]


def test_text_that_is_tokenised_is_taken_as_it_stands(outputs: Path, references: Path) -> None:
    (found,) = facts(outputs, "--pairs", references, "--tokenised")
    assert "tok:none" in str(found["bleu_signature"])


def test_tokenised_changes_the_score_of_text_that_is_not(tmp_path: Path) -> None:
    pair = write_table(tmp_path / "raw.tsv", [("x", "The cat sat on the mat."), ("y", "We went home, then we slept.")])
    given = write_lines(tmp_path / "given.txt", ["The cat sat on the mat", "We went home, then we slept."])
    scores = [facts(given, "--pairs", pair, *words)[0]["bleu"] for words in ((), ("--tokenised",))]
    assert scores[0] != scores[1]


def test_case_does_not_count_where_asked(outputs: Path, references: Path, tmp_path: Path) -> None:
    loud = write_lines(tmp_path / "loud.txt", [one.upper() for one in REFERENCES])
    (found,) = facts(loud, "--pairs", references, "--lowercase")
    assert (found["bleu"], "case:lc" in str(found["bleu_signature"])) == (100, True)


# One against the other.


def test_equal_outputs_do_not_differ(outputs: Path, references: Path, tmp_path: Path) -> None:
    same = write_lines(tmp_path / "same.txt", OUTPUTS)
    last = command("score", outputs, "--against", same, "--pairs", references, "--samples", 50).out.splitlines()[-1]
    assert last.endswith("p = 1.000 (50 samples), so the two may well be equally good.")


def test_a_comparison_in_json_has_both_scores_and_the_chance(outputs: Path, references: Path, tmp_path: Path) -> None:
    same = write_lines(tmp_path / "same.txt", OUTPUTS)
    *_, last = facts(outputs, "--against", same, "--pairs", references, "--samples", 50)
    keys = {"test", "models", "first", "second", "first_range", "second_range", "p_value", "samples"}
    assert last.keys() == keys
    assert (last["p_value"], last["samples"], last["first"]) == (1.0, 50, last["second"])


def test_outputs_far_apart_differ(tmp_path: Path) -> None:
    references = [" ".join([one, str(number)]) for number, one in enumerate(REFERENCES * 10)]
    pair = write_table(tmp_path / "test.tsv", [("x", one) for one in references])
    good = write_lines(tmp_path / "good.txt", references)
    bad = write_lines(tmp_path / "bad.txt", ["The cat ."] * 40)
    last = command("score", good, "--against", bad, "--pairs", pair, "--samples", 100).out.splitlines()[-1]
    assert last.endswith("so the two differ.")


def test_a_comparison_scores_both_systems(outputs: Path, references: Path, tmp_path: Path) -> None:
    perfect = write_lines(tmp_path / "perfect.txt", REFERENCES)
    found = facts(outputs, "--against", perfect, "--pairs", references, "--samples", 50)
    assert [one.get("model") for one in found] == [str(outputs), str(perfect), None]


# Models.


def test_a_model_translates_the_sources_it_is_given(tmp_path: Path) -> None:
    model = save_random_model(tmp_path / "model")
    rows = pairs(4)
    found = [best.text for best, *_ in load_translator(model).translate_sentences([source for source, _ in rows])]
    wanted = score_translations(found, [target for _, target in rows])
    (shown,) = facts(model, "--pairs", write_table(tmp_path / "own.tsv", rows))
    assert (shown["bleu"], shown["chrf"]) == (round(wanted.bleu, 2), round(wanted.chrf, 2))


def test_a_runs_own_test_sets_give_the_scores_on_its_card(run: Path) -> None:
    noted = json.loads((run / "run.json").read_text(encoding="utf-8"))["origin"]["scores"]
    assert {one["test"]: (one["bleu"], one["chrf"]) for one in facts(run)} == {
        name: (score["bleu"], score["chrf"]) for name, score in noted.items()
    }


def test_a_runs_own_test_sets_are_compared_as_its_recipe_says(run: Path) -> None:
    assert all("case:lc" in str(one["bleu_signature"]) for one in facts(run))


def test_one_of_a_runs_own_test_sets_can_be_chosen(run: Path) -> None:
    assert [(one["test"], one["sentences"]) for one in facts(run, "--test", "second")] == [("second", 7)]


def test_a_test_set_that_a_run_does_not_have_is_answered_with_those_it_has(run: Path) -> None:
    done = command("score", run, "--test", "third")
    assert (done.code, done.err) == (2, f"regard: {run} has no test set 'third'; it has first, second, held-out.\n")


def test_a_run_without_test_sets_of_its_own_says_what_to_give(tmp_path: Path) -> None:
    recipe = write_recipe_file(tmp_path / "small.toml", {"train": [{"path": "train.tsv"}]}, "train.steps=1")
    write_table(tmp_path / "train.tsv", pairs(5))
    with quick_runs(tmp_path / "cache"):
        train(read_recipe(recipe), tmp_path / "run")
    done = command("score", tmp_path / "run")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "--pairs" in done.err


def test_a_run_that_held_pairs_out_is_scored_on_them(tmp_path: Path) -> None:
    recipe = write_recipe_file(tmp_path / "small.toml", {"train": [{"path": "train.tsv"}]}, "train.steps=1")
    write_table(tmp_path / "train.tsv", pairs(40))
    with quick_runs(tmp_path / "cache"):
        trained = train(read_recipe(recipe), tmp_path / "run")
    (scored,) = facts(tmp_path / "run")
    assert (scored["test"], scored["sentences"]) == ("held-out", 2)
    assert scored["chrf"] == pytest.approx(trained.scores["held-out"].chrf, abs=0.01)


# What a person got wrong.


def test_a_file_of_outputs_alone_has_nothing_to_be_compared_with(outputs: Path) -> None:
    done = command("score", outputs)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "give --source and --reference, or --pairs" in done.err


def test_outputs_of_another_number_than_the_references_are_refused_with_both_counts(
    tmp_path: Path, references: Path
) -> None:
    short = write_lines(tmp_path / "short.txt", OUTPUTS[:3])
    done = command("score", short, "--pairs", references)
    assert (done.code, done.err) == (2, f"regard: {short} has 3 lines, the test set 4; give one for each.\n")


@pytest.mark.parametrize("words", [["--test", "test"], ["--source", "a.en"]])
def test_data_named_twice_is_refused(words: list[str], outputs: Path, references: Path) -> None:
    done = command("score", outputs, "--pairs", references, *words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


def test_sources_without_references_are_refused(outputs: Path) -> None:
    done = command("score", outputs, "--source", outputs)
    assert (done.code, "--source and --reference belong together" in done.err) == (2, True)


def test_an_unknown_model_is_answered_with_those_that_ship(references: Path) -> None:
    done = command("score", "en-xx", "--pairs", references)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "en-tr" in done.err


def test_an_unknown_model_is_said_to_be_unknown_also_where_its_own_test_sets_are_asked_for() -> None:
    done = command("score", "en-xx")
    assert (done.code, "there is no such folder" in done.err) == (2, True)
