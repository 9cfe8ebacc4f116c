"""Comparisons of parsers: scored by bracket F1, also by the length of sentences."""

import random
from pathlib import Path

import pytest
import torch

from regard.data.trees.tree import Tree, read_trees
from regard.errors import UserError
from regard.lab.compare.ladder import Ladder, read_ladder
from regard.lab.compare.measure import measure
from regard.lab.compare.parsing import f1_by_length
from regard.lab.compare.plan import plan_runs, validate
from regard.lab.compare.report.sections import write_comparison
from regard.task.run import train

RECIPE = """
description = "Small trees."
task = "parsing"
[data]
train = [{ path = "train.mrg" }]
valid = { path = "test.mrg" }
test = { test = { path = "test.mrg" } }
[tokenizer]
kind = "word"
[model]
MODEL
[train]
steps = 6
batch_tokens = 256
length_buckets = 2
precision = "float32"
validate_every = 3
schedule = { kind = "constant", lr = 0.01 }
[decode]
beam_size = 1
"""
TRANSFORMER = """width = 16
encoder = { layers = 1, attention = { heads = 2 }, feed_forward = { hidden = 16 } }
decoder = { layers = 1, attention = { heads = 2 }, feed_forward = { hidden = 16 } }"""
LSTM = 'kind = "recurrent-attention"\nwidth = 16\nhidden = 16'
LADDER = """
description = "Which parser is better?"
base = "transformer.toml"
sizes = [1.0, 0.5]
recall = []
budget = { kind = "steps", value = 6 }
[[rungs]]
name = "lstm"
label = "LSTM with attention"
recipe = "lstm.toml"
[[rungs]]
name = "transformer"
label = "Transformer"
"""


@pytest.fixture
def ladder(tmp_path: Path) -> Ladder:
    generator = random.Random(1)
    for name, count in (("train", 40), ("test", 12)):
        trees = [f"(TOP (S (NP (DT the) (NN {noun})) (VP (VBD {verb}))))" for noun in "abcd" for verb in "wxyz"]
        chosen = [generator.choice(trees) for _ in range(count)]
        (tmp_path / f"{name}.mrg").write_text("\n".join(chosen) + "\n", encoding="utf-8")
    for name, model in (("transformer", TRANSFORMER), ("lstm", LSTM)):
        (tmp_path / f"{name}.toml").write_text(RECIPE.replace("MODEL", model), encoding="utf-8")
    (tmp_path / "parsers.toml").write_text(LADDER, encoding="utf-8")
    return read_ladder(tmp_path / "parsers.toml")[0]


def test_report_on_a_parser_has_f1_and_trees(ladder: Ladder, tmp_path: Path) -> None:
    lstm = next(run for run in plan_runs(ladder, [], tmp_path / "data") if run.size == 1)
    folder = tmp_path / "run"
    trained = train(lstm.recipe, folder)
    found = measure(lstm.recipe, folder, ladder, torch.device("cpu"))
    assert found["scores"]["test"]["f1"] == round(trained.scores["test"].f1, 2)
    assert found["by_length"] == [{"from": 1, "to": 10, "sentences": 12, "f1": found["scores"]["test"]["f1"]}]
    assert [row["step"] for row in found["curve"]] == [3, 6]
    assert all("f1" in row for row in found["curve"])
    assert found["decode"]["state_bytes"] > 0
    assert " ".join(Tree.parse(found["samples"][0]["output"]).words()) == found["samples"][0]["source"]
    result = {"key": lstm.key, "rung": "lstm", "label": "LSTM", "size": 1.0, "seed": 1, "status": "finished", **found}
    html, markdown = write_comparison(ladder, [result], tmp_path)
    assert "By F1 on the test set" in markdown.read_text(encoding="utf-8")
    assert "F1 by length" in html.read_text(encoding="utf-8")


def test_parts_of_a_treebank_are_nested(ladder: Ladder, tmp_path: Path) -> None:
    runs = plan_runs(ladder, [], tmp_path / "data")
    assert [run.key for run in runs] == ["lstm-full-1", "transformer-full-1", "lstm-0.5-1", "transformer-0.5-1"]
    assert len(list(read_trees(tmp_path / "data" / "train-0.5.mrg"))) == 20
    assert {str(source.path) for run in runs[2:] for source in run.recipe.data.train} == {
        str(tmp_path / "data" / "train-0.5.mrg")
    }


def test_f1_by_length_leaves_out_scores_of_few_sentences() -> None:
    short, long = (Tree.parse(f"(TOP (NP {'(NN a) ' * count}))") for count in (2, 15))
    wrong = Tree.parse(f"(TOP (VP {'(NN a) ' * 15}))")
    rows = f1_by_length([short] * 10 + [wrong] * 9, [short] * 10 + [long] * 9)
    assert rows == [
        {"from": 1, "to": 10, "sentences": 10, "f1": 100.0},
        {"from": 11, "to": 20, "sentences": 9, "f1": None},
    ]


def test_only_translations_are_decoded_in_another_way(ladder: Ladder) -> None:
    again = ladder.rungs[0].model_copy(update={"name": "again", "recipe": None, "decodes": "lstm"})
    with pytest.raises(UserError, match="rung 'again': decodes: only translations can be decoded in another way"):
        validate(ladder.model_copy(update={"rungs": (*ladder.rungs, again)}))


def test_tasks_without_measurements_are_refused() -> None:
    ladder = Ladder.read(
        {
            "name": "images",
            "description": "Images.",
            "base": "digits",
            "budget": {"kind": "steps", "value": 1.0},
            "rungs": [{"name": "one", "label": "One"}],
        }
    )
    with pytest.raises(UserError, match=r"images: base: digits is for image-classification; models are compared in"):
        validate(ladder)
