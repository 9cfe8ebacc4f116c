"""A recipe of word vectors from the command line to vectors by word."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

import regard
from regard.data.text.vocabulary import Vocabulary
from regard.errors import UserError
from regard.task.word_vectors.pipeline import WordVectors
from tests.task.small import command, quick_runs

TEXT = """The cat ate the mouse. The dog chased the cat.
A mouse ran from the cat, and the dog ran from the house.

The old house had a cat, a dog and a mouse.
"""
VALUES: dict[str, Any] = {
    "description": "Small vectors.",
    "task": "word-vectors",
    "data": {"train": [{"path": "text.txt"}], "words": {"min_count": 2}, "window": 2, "subsample": 0.0},
    "model": {"kind": "skip-gram", "width": 8},
    "train": {"epochs": 3, "batch_tokens": 10, "log_every": 2},
}


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def write(folder: Path, changes: dict[str, Any] | None = None) -> Path:
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    values = VALUES | {key: {**VALUES[key], **given} for key, given in (changes or {}).items()}
    (folder / "small.toml").write_text(tomli_w.dumps(values), encoding="utf-8")
    return folder / "small.toml"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    done = command("train", write(folder), "--out", folder / "run")
    assert (done.code, done.out) == (0, f"{folder / 'run'}\n"), done.err
    return folder / "run"


def test_train_writes_a_run_that_opens_as_word_vectors(run: Path) -> None:
    vectors = regard.load(run)
    assert isinstance(vectors, WordVectors)
    assert list(vectors.keyed.words)[:4] == ["the", "a", "cat", "dog"]
    assert vectors.keyed.counts is not None
    assert vectors.keyed.counts.tolist()[:2] == [8, 4]
    np.testing.assert_array_equal(vectors["cat"], vectors.model.input_vectors[2].detach().numpy())
    assert vectors["cat"].shape == (8,)


def test_the_card_says_what_the_vectors_were_trained_on(run: Path) -> None:
    card = (run / "README.md").read_text(encoding="utf-8")
    assert "words, seed 1" in card
    assert "Scores" not in card


def test_an_unknown_word_is_refused_with_near_spellings(run: Path) -> None:
    with pytest.raises(UserError, match="there is no vector for 'hous'; did you mean house"):
        regard.load(run)["hous"]


def test_a_run_that_ended_early_is_extended_to_the_same_vectors(run: Path, tmp_path: Path) -> None:
    recipe = write(tmp_path, {"train": {"deterministic": True, "epochs": 3, "batch_tokens": 10}})
    assert command("train", recipe, "--out", tmp_path / "whole").code == 0
    assert command("train", recipe, "--out", tmp_path / "short", "--set", "train.steps=4").code == 0
    done = command("train", tmp_path / "short", "--resume", "--set", "train.steps=0")
    assert done.code == 0, done.err
    found, expected = (regard.load(tmp_path / name).model.state_dict() for name in ("short", "whole"))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_text_of_ones_own_takes_the_place_of_the_recipes(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "own.txt").write_text("red blue red blue\nblue red\n" * 3, encoding="utf-8")
    done = command("train", tmp_path / "small.toml", "--data", tmp_path / "own.txt", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert list(regard.load(tmp_path / "run").keyed.words) == ["blue", "red"]


def test_subwords_give_unknown_words_a_vector(tmp_path: Path) -> None:
    model = {"subwords": {"buckets": 100}, "loss": {"kind": "hierarchical-softmax"}}
    assert command("train", write(tmp_path, {"model": model}), "--out", tmp_path / "run").code == 0
    assert np.isfinite(regard.load(tmp_path / "run")["housecat"]).all()


@pytest.mark.parametrize("kind", ["skip-gram", "cbow"])
def test_the_softmax_over_the_vocabulary_trains(kind: str, tmp_path: Path) -> None:
    model = {"kind": kind, "loss": {"kind": "softmax"}}
    done = command("train", write(tmp_path, {"model": model}), "--out", tmp_path / "run")
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("data.words.min_count=99", "No word of the text occurs 99 times, the most frequent one 8 times"),
        ("model.kind=skipgram", "model.kind: found 'skipgram'; did you mean 'skip-gram'?"),
        ("model.vocab_size=3", "model.vocab_size: this follows from the data"),
        ("train.optimizer.kind=adam", "train.optimizer: unknown key"),
        ("init_from=other", "init_from: unknown key"),
    ],
)
def test_bad_settings_are_one_sentence(override: str, problem: str, tmp_path: Path) -> None:
    done = command("train", write(tmp_path), "--out", tmp_path / "run", "--set", override)
    assert done.code == 2
    assert problem in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_vocabulary_that_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    assert command("train", write(tmp_path), "--out", tmp_path / "run").code == 0
    vocabulary = Vocabulary.load(tmp_path / "run" / "vocabulary.tsv")
    Vocabulary(vocabulary.words[:-1], vocabulary.counts[:-1]).save(tmp_path / "run" / "vocabulary.tsv")
    with pytest.raises(UserError, match=r"vocabulary\.tsv is missing or damaged"):
        regard.load(tmp_path / "run")


def test_run_answers_questions_and_is_scored_on_word_pairs(run: Path, tmp_path: Path) -> None:
    keyed = regard.load(run).keyed
    one, two, three, four = keyed.words[:4]
    assert command("vectors", run, "similarity", one, two).out == f"{one}\t{two}\t{keyed.similarity(one, two):.4f}\n"
    (tmp_path / "pairs.tsv").write_text(f"{one}\t{two}\t3\n{two}\t{three}\t2\n{three}\t{four}\t1\nno-such\tword\t4\n")
    done = command("score", run, "--data", tmp_path / "pairs.tsv")
    assert (done.code, done.err) == (0, "")
    assert "on 3 of 4 pairs (75.0% known)" in done.out
