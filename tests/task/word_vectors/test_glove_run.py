"""GloVe from a recipe to vectors by word: trained on the pairs of words of a text, and resumed exactly."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

import regard
from regard.errors import UserError
from regard.task.word_vectors.counts import count_run
from tests.task.small import command, quick_runs

VALUES: dict[str, Any] = {
    "description": "Small vectors.",
    "task": "word-vectors",
    "data": {"train": [{"path": "text.txt"}], "words": {"min_count": 1}, "window": 5, "max_bytes": 1 << 20},
    "model": {"kind": "glove", "width": 8, "x_max": 2.0},
    "train": {
        "epochs": 4,
        "batch_tokens": 1024,
        "log_every": 2,
        "deterministic": True,
        "schedule": {"kind": "constant", "lr": 0.05},
    },
}


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe on random lines of 60 words: some thousand pairs."""
    folder = tmp_path_factory.mktemp("glove")
    words = [f"w{number}" for number in range(60)]
    lines = np.random.default_rng(0).choice(words, size=(100, 12), p=np.linspace(2, 0, 60) / 60)
    (folder / "text.txt").write_text("\n".join(map(" ".join, lines)), encoding="utf-8")
    (folder / "small.toml").write_text(tomli_w.dumps(VALUES), encoding="utf-8")
    return folder / "small.toml"


@pytest.fixture(scope="module")
def run(recipe: Path) -> Path:
    done = command("train", recipe, "--out", recipe.parent / "run")
    assert done.code == 0, done.err
    assert "pairs of words counted in 1,200 words" in done.err
    return recipe.parent / "run"


def test_run_opens_as_vectors_that_are_the_sum_of_both_tables(run: Path) -> None:
    vectors = regard.load(run)
    tables = vectors.model.word_table + vectors.model.context_table
    np.testing.assert_array_equal(vectors.keyed.vectors, tables.detach().numpy())
    assert "pairs, seed" in (run / "README.md").read_text(encoding="utf-8")


def test_run_that_ended_early_is_extended_to_the_same_vectors(run: Path, recipe: Path, tmp_path: Path) -> None:
    assert command("train", recipe, "--out", tmp_path / "short", "--set", "train.steps=5").code == 0
    done = command("train", tmp_path / "short", "--resume", "--set", "train.steps=0")
    assert done.code == 0, done.err
    found, expected = (regard.load(path).model.state_dict() for path in (tmp_path / "short", run))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_lines_of_single_words_are_one_sentence(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("one\ntwo\none\n", encoding="utf-8")
    done = command("train", recipe, "--data", tmp_path / "words.txt", "--out", tmp_path / "run")
    assert done.code == 2
    assert "same line" in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_ratios_of_a_run_are_those_of_its_text(run: Path) -> None:
    text = (run.parent / "text.txt").read_text(encoding="utf-8")
    counts = count_run(run)
    assert counts.vocabulary.counts.sum() == len(text.split())
    assert counts.cooccurrences.window == 5
    (ratio,) = counts.ratios(["w0", "w1", "w2"]).ratios
    near: dict[str, float] = {}
    for line in map(str.split, text.splitlines()):
        for i, word in enumerate(line):
            for j, other in enumerate(line):
                if word == "w0" and 0 < abs(i - j) <= 5:
                    near[other] = near.get(other, 0) + 1 / abs(i - j)
    assert ratio.first.count == pytest.approx(near["w2"], rel=1e-5)
    assert ratio.first.probability == pytest.approx(near["w2"] / sum(near.values()), rel=1e-5)


def test_ratios_of_another_text(run: Path, tmp_path: Path) -> None:
    (tmp_path / "ice.txt").write_text("solid ice\nsteam gas\nice water steam\n", encoding="utf-8")
    table = count_run(run, data=tmp_path / "ice.txt", window=1).ratios(["ice", "steam", "solid", "water"])
    assert [ratio.value for ratio in table.ratios] == [None, 1.0]


def test_ratios_at_the_command_line(run: Path) -> None:
    table = command("vectors", run, "ratios", "w0", "w1", "w2", "w3")
    assert table.code == 0, table.err
    assert table.out == f"{count_run(run).ratios(['w0', 'w1', 'w2', 'w3'])}\n"
    record = json.loads(command("vectors", run, "ratios", "w0", "w1", "w2", "--json", "--window", "2").out)
    assert (record["window"], record["ratios"][0]["word"]) == (2, "w2")
    unknown = command("vectors", run, "ratios", "w0", "w1", "ww2")
    assert (unknown.code, unknown.err.count("\n")) == (2, 1)
    assert "did you mean w2" in unknown.err


def test_what_ratios_need_is_one_sentence(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="two words and those to compare"):
        count_run(run).ratios(["ice", "steam"])
    with pytest.raises(UserError, match="only a run of word vectors"):
        count_run("quick")
