"""`regard classify` with a model that labels texts."""

import json
from pathlib import Path

import pytest

from regard.task import load_labeller
from tests.cli.test_fill import is_refused
from tests.task.encoders import save_random, tokenizer
from tests.task.small import command

TEXTS = ["a warm film", "dull"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    head = {"kind": "classify", "labels": ["blame", "praise", "neither"], "pooling": "mean"}
    return save_random(tmp_path_factory.mktemp("models") / "labels", tokenizer("character", TEXTS), head)


def test_each_text_has_a_line_with_its_label_and_probability(model: Path) -> None:
    found = load_labeller(model).label(TEXTS, top=1)
    done = command("classify", model, *TEXTS)
    assert (done.code, done.err) == (0, "")
    assert done.out == "".join(f"{label}\t{chance:.4f}\n" for ((label, chance),) in found)
    assert command("classify", model, stdin=b"a warm film\n\ndull\n").out == done.out.replace("\n", "\n\n", 1)


def test_json_has_the_text_and_as_many_labels_as_are_asked_for(model: Path) -> None:
    (found,) = load_labeller(model).label(TEXTS[:1], top=2)
    facts = json.loads(command("classify", model, TEXTS[0], "--json", "--top", 2).out)
    assert facts["text"] == TEXTS[0]
    assert [(one["label"], pytest.approx(one["probability"], abs=1e-6)) for one in facts["classes"]] == found


def test_a_model_that_tags_words_says_so(tmp_path: Path) -> None:
    save_random(tmp_path / "run", tokenizer("character", TEXTS), {"kind": "tag", "labels": ["a", "b"]})
    is_refused(command("classify", tmp_path / "run", "dull"), "tags words", "use `regard tag`")
