"""The parsing task: a trained parser outputs one well-formed tree over exactly the input's words."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import regard
from regard import UserError
from regard.data.trees.tree import Tree
from regard.score import score_brackets
from regard.task.parsing.pipeline import Parser
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from tests.task.small import RecordingCallback, command, quick_runs

NOUNS = ("cat", "dog", "mouse", "man")


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def bank(count: int, seed: int) -> list[str]:
    """Small sentences and their trees; the verb determines whether there is an object."""
    rng = random.Random(seed)
    lines = []
    for _ in range(count):
        noun, other = rng.sample(NOUNS, 2)
        phrase = "(VP (VBD slept))" if rng.random() < 0.5 else f"(VP (VBD ate) (NP (DT the) (NN {other})))"
        lines.append(f"(TOP (S (NP (DT the) (NN {noun})) {phrase} (. .)))")
    return lines


def recipe_file(place: Path, **changes: Any) -> Path:
    for name, seed in (("train", 1), ("dev", 2)):
        (place / f"{name}.txt").write_text("\n".join(bank(60 if name == "train" else 12, seed)) + "\n")
    stack = {"layers": 1, "attention": {"heads": 2}, "feed_forward": {"hidden": 32}, "dropout": 0.0}
    values: dict[str, Any] = {
        "description": "A small recipe to test with.",
        "task": "parsing",
        "data": {"train": [{"path": "train.txt"}], "valid": {"path": "dev.txt"}},
        "tokenizer": {"kind": "word"},
        "model": {"width": 32, "encoder": stack, "decoder": stack, "embedding": {"dropout": 0.0}},
        "train": {
            "steps": 6,
            "batch_tokens": 512,
            "length_buckets": 2,
            "log_every": 1,
            "validate_every": 3,
            "save_every": 2,
            "schedule": {"kind": "constant", "lr": 0.01, "warmup_steps": 0},
        },
    }
    for key, value in changes.items():
        values[key] = values[key] | value if isinstance(value, dict) else value
    path = place / "small.toml"
    path.write_text(tomli_w.dumps(values), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("parsing")
    changes = ["train.steps=160", "train.validate_every=160", "train.save_every=160"]
    # With a constant learning rate, one seed in five has not learned by then where brackets close.
    recipe = read_recipe(recipe_file(place), [*changes, "train.schedule.kind=linear"])
    train(recipe, place / "run")
    return place / "run"


def test_small_grammar_is_learned(trained: Path) -> None:
    score = json.loads((trained / "run.json").read_text())["origin"]["scores"]["valid"]
    assert (score["f1"], score["exact"], score["tagging"]) == (100.0, 100.0, 100.0)


def test_score_is_that_of_the_parsed_trees(trained: Path) -> None:
    gold = [Tree.parse(line) for line in bank(12, 2)]
    parser = Parser.load(trained)
    actual = [one.tree for one in parser.parse_words([tree.words() for tree in gold])]
    origin = json.loads((trained / "run.json").read_text())["origin"]["scores"]["valid"]
    assert score_brackets(actual, gold).rounded() == origin


def test_load_opens_a_parser(trained: Path) -> None:
    parser = regard.load(trained)
    assert isinstance(parser, Parser)
    expected = "(TOP (S (NP (DT the) (NN cat)) (VP (VBD ate) (NP (DT the) (NN mouse))) (. .)))"
    assert str(parser.parse("the cat ate the mouse.")) == expected
    assert "regard parse THIS-FOLDER" in (trained / "README.md").read_text()


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("sane", [False, True], ids=["wild weights", "trained"])
def test_every_input_gives_one_tree_over_its_words(sane: bool, beam_size: int, trained: Path) -> None:
    """Unknown words, brackets, other scripts, one word, many words."""
    parser = Parser.load(trained)
    if not sane:
        for parameter in parser.model.parameters():
            parameter.data.normal_()
    rng = random.Random(5)
    odd = ["(", ")", "-LRB-", "(NP", "XX", "<end>", "東京", "a" * 50, "é́", "😀", "the", "ate", "\\", "-NONE-"]
    sentences = [[odd[rng.randrange(len(odd))] for _ in range(count)] for count in (1, 2, 3, 5, 8, 13, 40)]
    for words, parsed in zip(sentences, parser.parse_words(sentences, parser.search(beam_size)), strict=True):
        again = Tree.parse(str(parsed.tree))
        assert list(again.words()) == [word.replace("(", "-LRB-").replace(")", "-RRB-") for word in words]


def test_trees_without_tags_from_several_sources(tmp_path: Path) -> None:
    """Table 4's semi-supervised setting: additional trees, and the good ones with twice the weight."""
    (tmp_path / "silver.txt").write_text("(TOP (FRAG (UH oh) (. .)))\n")
    data = {"train": [{"path": "train.txt", "weight": 2}, {"path": "silver.txt"}], "tags": False}
    callback = RecordingCallback()
    train(read_recipe(recipe_file(tmp_path, data=data)), tmp_path / "run", callback=callback)
    assert "Training on 121 examples" in callback.text
    parser = Parser.load(tmp_path / "run")
    assert set(parser.parse("the cat slept.").tags()) == {"XX"}
    assert "(FRAG" in parser.symbols


def test_symbols_that_only_the_validation_set_has_count_as_errors(tmp_path: Path) -> None:
    path = recipe_file(tmp_path)
    before = train(read_recipe(path), tmp_path / "before").scores["valid"]
    with (tmp_path / "dev.txt").open("a") as file:
        file.write("(TOP (FRAG (UH oh) (NN cat)))\n")
    callback = RecordingCallback()
    scored = train(read_recipe(path), tmp_path / "run", callback=callback).scores["valid"]
    (line,) = [message for message in callback.messages if "'(FRAG'" in message]
    assert line.startswith("valid: ")
    assert "'UH'" in line
    assert (scored.gold, scored.matched) == (before.gold + 1, before.matched)


def test_init_from_starts_from_its_weights(trained: Path, tmp_path: Path) -> None:
    callback = RecordingCallback()
    train(
        read_recipe(recipe_file(tmp_path), [f"init_from={trained}", "train.steps=1"]),
        tmp_path / "run",
        callback=callback,
    )
    assert "Starting from the weights, tokenizer and symbols of" in callback.text


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("(TOP (S (NP (DT the) (NN cat))", r"train.txt.*line 1"),
        ("(TOP (S (NP (DT the) (NN cat)))))", r"train.txt.*line 1, column"),
        ("", "no tree"),
    ],
)  # fmt: skip
def test_invalid_treebank_names_file_and_line(line: str, sentence: str, tmp_path: Path) -> None:
    path = recipe_file(tmp_path)
    (tmp_path / "train.txt").write_text(line + "\n")
    with pytest.raises(UserError, match=sentence):
        train(read_recipe(path), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# The command


def test_parse_prints_one_tree_per_line(trained: Path) -> None:
    done = command("parse", trained, stdin=b"the cat slept.\n\nthe dog ate the man .\n")
    assert done.code == 0
    assert done.out.splitlines() == [
        "(TOP (S (NP (DT the) (NN cat)) (VP (VBD slept)) (. .)))",
        "",
        "(TOP (S (NP (DT the) (NN dog)) (VP (VBD ate) (NP (DT the) (NN man))) (. .)))",
    ]


def test_trees_are_drawn(trained: Path, tmp_path: Path) -> None:
    done = command("parse", trained, "the cat slept.", "--draw", "--svg", tmp_path / "trees")
    assert "┌" in done.out
    assert (tmp_path / "trees" / "1.svg").read_text().startswith("<svg")


def test_json_has_words_tags_and_tree(trained: Path) -> None:
    facts = json.loads(command("parse", trained, "the cat slept.", "--json").out)
    assert (facts["words"], facts["tags"]) == (["the", "cat", "slept", "."], ["DT", "NN", "VBD", "."])
    assert facts["logprob"] < 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["en-tr", "x"], "not a parser"),
        (["nowhere", "x"], "nowhere"),
        (["RUN", "x", "--draw", "--json"], "one of the two"),
    ],
)
def test_invalid_input_is_one_line_of_error(words: list[str], sentence: str, trained: Path) -> None:
    done = command("parse", *(str(trained) if word == "RUN" else word for word in words))
    assert (done.code, done.out, sentence in done.err, done.err.count("\n")) == (2, "", True, 1)
