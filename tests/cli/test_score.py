"""`regard score`: files, models, and comparisons."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from regard.score import score_translations
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from regard.task.translation.pipeline import Translator
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
    """A finished run whose recipe has two test sets."""
    folder = tmp_path_factory.mktemp("run")
    write_table(folder / "train.tsv", pairs(40))
    write_table(folder / "first.tsv", pairs(5, seed=2))
    write_table(folder / "second.tsv", pairs(7, seed=3))
    data = {
        "train": [{"path": "train.tsv"}],
        "test": {"first": {"path": "first.tsv"}, "second": {"path": "second.tsv"}},
    }
    recipe = write_recipe_file(folder / "small.toml", data, "train.steps=30", "score.lowercase=true")
    with quick_runs(folder / "cache"):
        train(read_recipe(recipe), folder / "run")
        yield folder / "run"


def test_test_set_of_a_recipe_scores_the_same_as_a_file(run: Path) -> None:
    (expected,) = json_reports(run, "--test", "first")
    options = ("--lowercase", "--no-split")
    (by_data,), (by_pairs,) = (json_reports(run, name, run.parent / "first.tsv", *options) for name in DATA)
    assert by_data == by_pairs == expected | {"test": "given"}


DATA = ("--data", "--pairs")


def json_reports(*args: object) -> list[dict[str, object]]:
    done = command("score", *args, "--json")
    assert (done.code, done.err) == (0, "")
    return [json.loads(line) for line in done.out.splitlines()]


def test_file_of_outputs_against_pairs(outputs: Path, references: Path) -> None:
    expected = score_translations(OUTPUTS, REFERENCES)
    first = command("score", outputs, "--pairs", references).out.splitlines()[0]
    assert first == f"{outputs} on given (4 sentences): BLEU {expected.bleu:.2f}, chrF {expected.chrf:.2f}"


def test_signatures_are_printed(outputs: Path, references: Path) -> None:
    expected = score_translations(OUTPUTS, REFERENCES)
    lines = command("score", outputs, "--pairs", references).out.splitlines()
    assert lines[1:] == [f"  BLEU {expected.bleu_signature}", f"  chrF {expected.chrf_signature}"]


def test_perfect_output_scores_100(tmp_path: Path, references: Path) -> None:
    perfect = write_lines(tmp_path / "perfect.txt", REFERENCES)
    assert "BLEU 100.00, chrF 100.00" in command("score", perfect, "--pairs", references).out


def test_source_and_reference_files(outputs: Path, references: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "test.en", ["x"] * 4)
    reference = write_lines(tmp_path / "test.de", REFERENCES)
    (report,) = json_reports(outputs, "--source", source, "--reference", reference)
    (expected,) = json_reports(outputs, "--pairs", references)
    assert report == expected


def test_json(outputs: Path, references: Path) -> None:
    expected = score_translations(OUTPUTS, REFERENCES)
    assert json_reports(outputs, "--pairs", references) == [
        {
            "model": str(outputs),
            "test": "given",
            "bleu": round(expected.bleu, 2),
            "chrf": round(expected.chrf, 2),
            "sentences": 4,
            "bleu_signature": expected.bleu_signature,
            "chrf_signature": expected.chrf_signature,
        }
    ]


def test_sentences_option(outputs: Path, references: Path) -> None:
    lines = command("score", outputs, "--pairs", references, "--sentences").out.splitlines()[3:]
    cells = [line.split("\t") for line in lines]
    assert [(cell[0], cell[3], cell[4], cell[5]) for cell in cells] == [
        (f"{number + 1}", f"source {number}", reference, output)
        for number, (reference, output) in enumerate(zip(REFERENCES, OUTPUTS, strict=True))
    ]


def test_sentence_scores_in_json(outputs: Path, references: Path, tmp_path: Path) -> None:
    mixed = write_lines(tmp_path / "mixed.txt", [REFERENCES[0], *OUTPUTS[1:]])
    _, *each = json_reports(mixed, "--pairs", references, "--sentences")
    assert [one["sentence"] for one in each] == [1, 2, 3, 4]
    assert [one["bleu"] == 100 for one in each] == [True, False, False, False]


def test_tokenized_option_uses_no_tokenizer(outputs: Path, references: Path) -> None:
    (report,) = json_reports(outputs, "--pairs", references, "--tokenized")
    assert "tok:none" in str(report["bleu_signature"])


def test_tokenized_option_changes_the_score_of_raw_text(tmp_path: Path) -> None:
    pair = write_table(tmp_path / "raw.tsv", [("x", "The cat sat on the mat."), ("y", "We went home, then we slept.")])
    raw = write_lines(tmp_path / "raw.txt", ["The cat sat on the mat", "We went home, then we slept."])
    scores = [json_reports(raw, "--pairs", pair, *args)[0]["bleu"] for args in ((), ("--tokenized",))]
    assert scores[0] != scores[1]


def test_lowercase_option(outputs: Path, references: Path, tmp_path: Path) -> None:
    loud = write_lines(tmp_path / "loud.txt", [one.upper() for one in REFERENCES])
    (report,) = json_reports(loud, "--pairs", references, "--lowercase")
    assert (report["bleu"], "case:lc" in str(report["bleu_signature"])) == (100, True)


def test_equal_outputs_do_not_differ_significantly(outputs: Path, references: Path, tmp_path: Path) -> None:
    same = write_lines(tmp_path / "same.txt", OUTPUTS)
    last = command("score", outputs, "--against", same, "--pairs", references, "--samples", 50).out.splitlines()[-1]
    assert last.endswith("p = 1.000 (50 samples); the difference is not significant.")


def test_comparison_in_json(outputs: Path, references: Path, tmp_path: Path) -> None:
    same = write_lines(tmp_path / "same.txt", OUTPUTS)
    *_, last = json_reports(outputs, "--against", same, "--pairs", references, "--samples", 50)
    keys = {"test", "models", "first", "second", "first_range", "second_range", "p_value", "samples"}
    assert last.keys() == keys
    assert (last["p_value"], last["samples"], last["first"]) == (1.0, 50, last["second"])


def test_different_outputs_differ_significantly(tmp_path: Path) -> None:
    references = [" ".join([one, str(number)]) for number, one in enumerate(REFERENCES * 10)]
    pair = write_table(tmp_path / "test.tsv", [("x", one) for one in references])
    good = write_lines(tmp_path / "good.txt", references)
    bad = write_lines(tmp_path / "bad.txt", ["The cat ."] * 40)
    last = command("score", good, "--against", bad, "--pairs", pair, "--samples", 100).out.splitlines()[-1]
    assert last.endswith("the difference is significant.")


def test_comparison_scores_both_systems(outputs: Path, references: Path, tmp_path: Path) -> None:
    perfect = write_lines(tmp_path / "perfect.txt", REFERENCES)
    report = json_reports(outputs, "--against", perfect, "--pairs", references, "--samples", 50)
    assert [one.get("model") for one in report] == [str(outputs), str(perfect), None]


def test_model_translates_given_sources(tmp_path: Path) -> None:
    model = save_random_model(tmp_path / "model")
    rows = pairs(4)
    report = [best.text for best, *_ in Translator.load(model).translate_sentences([source for source, _ in rows])]
    expected = score_translations(report, [target for _, target in rows])
    (shown,) = json_reports(model, "--pairs", write_table(tmp_path / "own.tsv", rows))
    assert (shown["bleu"], shown["chrf"]) == (round(expected.bleu, 2), round(expected.chrf, 2))


def test_run_reproduces_its_recorded_scores(run: Path) -> None:
    recorded = json.loads((run / "run.json").read_text(encoding="utf-8"))["origin"]["scores"]
    assert {one["test"]: (one["bleu"], one["chrf"]) for one in json_reports(run)} == {
        name: (score["bleu"], score["chrf"]) for name, score in recorded.items()
    }


def test_recipe_sets_the_score_options(run: Path) -> None:
    assert all("case:lc" in str(one["bleu_signature"]) for one in json_reports(run))


def test_test_option(run: Path) -> None:
    assert [(one["test"], one["sentences"]) for one in json_reports(run, "--test", "second")] == [("second", 7)]


def test_unknown_test_set_is_refused_with_the_known(run: Path) -> None:
    done = command("score", run, "--test", "third")
    assert (done.code, "'third'" in done.err, "first, second" in done.err) == (2, True, True)


def test_run_without_test_sets_is_refused(tmp_path: Path) -> None:
    recipe = write_recipe_file(tmp_path / "small.toml", {"train": [{"path": "train.tsv"}]}, "train.steps=1")
    write_table(tmp_path / "train.tsv", pairs(5))
    with quick_runs(tmp_path / "cache"):
        train(read_recipe(recipe), tmp_path / "run")
    done = command("score", tmp_path / "run")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "--pairs" in done.err


def test_run_is_scored_on_held_out_pairs(tmp_path: Path) -> None:
    recipe = write_recipe_file(tmp_path / "small.toml", {"train": [{"path": "train.tsv"}]}, "train.steps=1")
    write_table(tmp_path / "train.tsv", pairs(40))
    with quick_runs(tmp_path / "cache"):
        trained = train(read_recipe(recipe), tmp_path / "run")
    (scored,) = json_reports(tmp_path / "run")
    assert (scored["test"], scored["sentences"]) == ("held-out", 2)
    assert scored["chrf"] == pytest.approx(trained.scores["held-out"].chrf, abs=0.01)


def test_file_of_outputs_without_references_is_refused(outputs: Path) -> None:
    done = command("score", outputs)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "--pairs" in done.err


def test_wrong_number_of_outputs_is_refused(tmp_path: Path, references: Path) -> None:
    short = write_lines(tmp_path / "short.txt", OUTPUTS[:3])
    done = command("score", short, "--pairs", references)
    assert (done.code, f"{short} has 3 lines" in done.err) == (2, True)


@pytest.mark.parametrize("args", [["--test", "test"], ["--source", "a.en"]])
def test_data_named_twice_is_refused(args: list[str], outputs: Path, references: Path) -> None:
    done = command("score", outputs, "--pairs", references, *args)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


def test_sources_without_references_are_refused(outputs: Path) -> None:
    done = command("score", outputs, "--source", outputs)
    assert (done.code, "--source and --reference" in done.err) == (2, True)


def test_unknown_model_is_refused_with_the_known(references: Path) -> None:
    done = command("score", "en-xx", "--pairs", references)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "en-tr" in done.err


def test_unknown_model_without_files_is_refused() -> None:
    done = command("score", "en-xx")
    assert (done.code, "en-xx" in done.err) == (2, True)


TWO_SENTENCES = [("Red cat. Old dog.", "rot Katze. alt Hund."), ("red sun", "rot Sonne")]


@pytest.mark.parametrize("option", [[], ["--split"], ["--no-split"]], ids=str)
def test_score_is_that_of_the_lines_that_translate_prints(option: list[str], run: Path, tmp_path: Path) -> None:
    sources = write_lines(tmp_path / "sources.txt", [source for source, _ in TWO_SENTENCES])
    references = write_lines(tmp_path / "references.txt", [target for _, target in TWO_SENTENCES])
    printed = command("translate", run, "--file", sources, *option).out.splitlines()
    (report,) = json_reports(run, "--source", sources, "--reference", references, *option)
    expected = score_translations(printed, [target for _, target in TWO_SENTENCES])
    assert (report["bleu"], report["chrf"]) == (round(expected.bleu, 2), round(expected.chrf, 2))
    assert report["split"] == (option != ["--no-split"])


def test_test_sets_of_a_recipe_are_scored_line_by_line(run: Path, tmp_path: Path) -> None:
    whole = command("translate", run, "Red cat. Old dog.", "--no-split").out
    assert whole != command("translate", run, "Red cat. Old dog.").out
    reports = json_reports(run)
    assert [report["split"] for report in reports] == [False, False]
    assert reports == json_reports(run, "--no-split")
    assert "as they are" in command("score", run).out
    assert "split into sentences" in command("score", run, "--split").out


# Forced scores


def test_log_probabilities_are_those_that_translate_reports(tmp_path: Path) -> None:
    sources = ["The cat ate the mouse.", "Good morning!", "Where is the old house?", "I am tired."]
    path = write_lines(tmp_path / "sources.txt", sources)
    done = command("translate", "en-tr", "--file", path, "--no-split", "--json", "--device", "cpu")
    found = [json.loads(line)["sentences"][0]["translations"][0] for line in done.out.splitlines()]
    table = write_table(tmp_path / "pairs.tsv", [(one, best["text"]) for one, best in zip(sources, found, strict=True)])
    reports = json_reports("en-tr", "--data", table, "--logprobs")
    assert [one["source"] for one in reports] == sources
    for report, best in zip(reports, found, strict=True):
        assert report["target"] == best["text"]
        assert report["logprob"] == pytest.approx(best["logprob"], abs=1e-3)
        assert [token["text"] for token in report["tokens"]] == [token["text"] for token in best["tokens"]]
        expected = [token["logprob"] for token in best["tokens"]]
        assert [token["logprob"] for token in report["tokens"]] == pytest.approx(expected, abs=1e-3)
    lines = command("score", "en-tr", "--pairs", table, "--logprobs").out.splitlines()
    assert [line.split("\t")[0] for line in lines] == [f"{one['logprob']:.4f}" for one in reports]


def test_log_probabilities_do_not_depend_on_the_chunk(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = (run, "--data", run.parent / "second.tsv", "--logprobs")
    whole = json_reports(*args)
    monkeypatch.setattr("regard.task.forced_scoring.CHUNK_LINES", 2)
    parts = json_reports(*args)
    assert [one["source"] for one in parts] == [one["source"] for one in whole]
    assert [one["logprob"] for one in parts] == pytest.approx([one["logprob"] for one in whole], abs=1e-3)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--logprobs"], "--data"),
        (["--logprobs", "--data", "pairs.tsv", "--sentences"], "--sentences"),
        (["--logprobs", "--data", "pairs.tsv", "--beam-size", 2], "beam_size"),
        (["--logprobs", "--data", "pairs.tsv", "--set", "data.columns=[1,5]"], "pairs.tsv, line 1"),
        (["--logprobs", "--data", "empty.tsv"], "empty.tsv"),
        (["--data", "pairs.tsv", "--pairs", "pairs.tsv"], "--data and --pairs"),
        (["--data", "pairs.tsv", "--set", "data.colums=[1,2]"], "data.colums"),
        (["--set", "data.columns=[1,2]"], "--data"),
    ],
)
def test_wrong_options_for_own_data_are_refused(
    args: list[object], named: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "pairs.tsv", pairs(3))
    write_lines(tmp_path / "empty.tsv", [])
    done = command("score", run, *args)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert named in done.err
