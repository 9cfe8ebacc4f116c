"""Sentences in capitals are translated like the same sentences in sentence case, and come out in capitals."""

import json
from pathlib import Path

import pytest

from regard import UserError
from regard.data.text.augment import uppercase
from regard.look.models.tasks import TracedTranslator
from regard.look.schema import RunRequest
from regard.task.run import train
from regard.task.translation.capitals import Capitals, in_capitals
from regard.task.translation.pipeline import Translator
from tests.task.small import pairs, quick_runs, small_recipe, write_table


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator.load("en-tr")


@pytest.mark.parametrize("text", ["THE CAT ATE THE MOUSE.", "WHO IS IT?"])
def test_capitals_are_translated_in_sentence_case(text: str, translator: Translator) -> None:
    translator.capitals = None
    plain = translator.translate(text.capitalize())
    assert translator.translate(text) != uppercase(plain, "tr")
    translator.capitals = Capitals(target_language="tr")
    assert translator.translate(text) == uppercase(plain, "tr")
    as_it_is = translator.translate(text, forbid=["kedi"])
    translator.capitals = None
    assert translator.translate(text, forbid=["kedi"]) == as_it_is


def test_each_sentence_counts_by_itself(translator: Translator) -> None:
    sentences = ["I am here.", "WHO IS IT?", "Tom is old."]
    translator.capitals = Capitals()
    (found,) = translator.translate_batch([" ".join(sentences)])
    alone = [translator.translate(each) for each in sentences]
    assert [each for each, _ in found.sentences] == sentences
    assert [best.text for _, (best, *_) in found.sentences] == alone
    translator.capitals = None
    assert [translator.translate(each) for each in sentences][::2] == alone[::2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("THE CAT", True), ("OK!", True), ("I", False), ("I.", False), ("I am", False), ("2 + 2", False), ("漢字", False)],
)
def test_in_capitals(text: str, expected: bool) -> None:
    assert in_capitals(text) == expected


def test_languages_decide_which_letters_correspond() -> None:
    assert Capitals(source_language="tr").sentence_case(["1. ISI!", "i"]) == ["1. Isı!", "i"]
    assert Capitals(source_language="en").sentence_case(["1. ISI!", "I"]) == ["1. Isi!", "I"]


def test_traced_model_gets_the_same_tokens(translator: Translator) -> None:
    translator.capitals = Capitals()
    traced = TracedTranslator(translator, "en-tr")
    capital, plain = (traced.encode_request(RunRequest(text=text)) for text in ("WHO IS IT?", "Who is it?"))
    assert capital.ids == plain.ids


def test_run_folder_records_it(tmp_path: Path) -> None:
    table = write_table(tmp_path / "train.tsv", pairs(40))
    changes = "lowercase_capitals=true", "data.augment.target_language=tr", "train.steps=1"
    with quick_runs(tmp_path / "cache"):
        train(small_recipe(table, *changes), tmp_path / "run")
    assert Translator.load(tmp_path / "run").capitals == Capitals(target_language="tr")
    path = tmp_path / "run" / "run.json"
    metadata = json.loads(path.read_text(encoding="utf-8"))
    metadata["origin"]["capitals"] = {"language": "tr"}
    path.write_text(json.dumps(metadata), encoding="utf-8")
    with pytest.raises(UserError, match=r"run\.json: origin\.capitals: language"):
        Translator.load(tmp_path / "run")
