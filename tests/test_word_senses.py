"""Word senses: static vectors are the same for both senses of "bank"; a masked language model's vectors differ."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from benchmarks.quality.word_senses import compare_senses
from torch.nn import functional

from regard.task.masked_lm.pipeline import FillMask
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from tests.task.encoders import evaluate_once, write_recipe
from tests.task.small import quick_runs

RIVER, MONEY = ("water", "boat", "fish", "mud"), ("cash", "loan", "coin", "vault")


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def about(subjects: tuple[str, ...], places: tuple[str, ...], count: int, seed: int) -> list[str]:
    """Sentences in which only the other words determine the sense of "bank"."""
    rng = random.Random(seed)
    pairs = [rng.sample(subjects, 2) for _ in range(count)]
    return [f"the {first} by the {rng.choice(places)} has {second}" for first, second in pairs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("senses")
    lines = about(RIVER, ("bank", "shore"), 200, 1) + about(MONEY, ("bank", "office"), 200, 2)
    random.Random(3).shuffle(lines)
    (base / "text.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    data = {"train": [{"path": "text.txt", "unit": "line"}], "context_length": 16, "packing": "packed"}
    path = write_recipe(base, "masked-lm", data)
    changes = ["model.width=32", "model.encoder.layers=2", "model.position.kind=rotary", "masking.probability=0.25"]
    changes += ["train.batch_tokens=512", "train.schedule.kind=linear", *evaluate_once(300)]
    train(read_recipe(path, changes), base / "run")
    return base / "run"


def test_contextual_vectors_separate_senses(folder: Path) -> None:
    fill_mask = FillMask.load(folder)
    similarity = compare_senses(fill_mask, "bank", about(RIVER, ("bank",), 6, 11), about(MONEY, ("bank",), 6, 12))
    assert similarity.first > similarity.across + 0.1
    assert similarity.second > similarity.across + 0.1
    assert similarity.static == pytest.approx(1)


def test_static_vectors_do_not_separate_senses(folder: Path) -> None:
    """The input of the first layer is the word's vector and its position."""
    river, money = about(RIVER, ("bank",), 4, 11), about(MONEY, ("bank",), 4, 12)
    similarity = compare_senses(FillMask.load(folder), "bank", river, money, layer=0)
    assert similarity.first == pytest.approx(similarity.across) == pytest.approx(similarity.second)


def test_similarities_are_means_over_pairs(folder: Path) -> None:
    fill_mask = FillMask.load(folder)
    first, second = about(RIVER, ("bank",), 2, 4), about(MONEY, ("bank",), 3, 5)
    similarity = compare_senses(fill_mask, "bank", first, second, layer=1)

    def vector(text: str) -> torch.Tensor:
        words = fill_mask.vectors(text, layer=1)
        return words.vectors[words.words.index("bank")]

    def cosine(one: str, other: str) -> float:
        return float(functional.cosine_similarity(vector(one), vector(other), dim=0))

    assert similarity.first == pytest.approx(cosine(first[0], first[1]), abs=1e-6)
    across = [cosine(one, other) for one in first for other in second]
    assert similarity.across == pytest.approx(sum(across) / len(across), abs=1e-6)
    assert similarity.rounded()["apart"] == pytest.approx(
        (similarity.first + similarity.second) / 2 - similarity.across, abs=1e-4
    )
