"""Banks: a table of words has one vector for both meanings, and a model that learnt to fill gaps tells them apart."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from regard.task import load_filler, read_recipe, train
from regard.task.senses import compare_senses
from tests.task.encoders import long, write_recipe
from tests.task.small import quick_runs

RIVER, MONEY = ("water", "boat", "fish", "mud"), ("cash", "loan", "coin", "vault")


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def about(subjects: tuple[str, ...], places: tuple[str, ...], count: int, seed: int) -> list[str]:
    """Sentences in which nothing but their other words says which bank is meant."""
    dice = random.Random(seed)
    pairs = [dice.sample(subjects, 2) for _ in range(count)]
    return [f"the {first} by the {dice.choice(places)} has {second}" for first, second in pairs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("banks")
    lines = about(RIVER, ("bank", "shore"), 200, 1) + about(MONEY, ("bank", "office"), 200, 2)
    random.Random(3).shuffle(lines)
    (place / "text.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    data = {"train": [{"path": "text.txt", "unit": "line"}], "context": 16, "rows": "packed"}
    path = write_recipe(place, "filling", data)
    changes = ["model.width=32", "model.encoder.layers=2", "model.position.kind=rotary", "gaps.share=0.25"]
    changes += ["train.tokens=512", "train.schedule.kind=linear", *long(300)]
    train(read_recipe(path, changes), place / "run")
    return place / "run"


def test_in_context_a_meaning_is_nearer_to_itself_than_to_the_other(folder: Path) -> None:
    filler = load_filler(folder)
    found = compare_senses(filler, "bank", about(RIVER, ("bank",), 6, 11), about(MONEY, ("bank",), 6, 12))
    assert found.first > found.across + 0.1
    assert found.second > found.across + 0.1
    assert found.static == pytest.approx(1)


def test_before_the_first_layer_nothing_tells_them_apart(folder: Path) -> None:
    """There a bank is its one vector and its place in the sentence."""
    river, money = about(RIVER, ("bank",), 4, 11), about(MONEY, ("bank",), 4, 12)
    found = compare_senses(load_filler(folder), "bank", river, money, layer=0)
    assert found.first == pytest.approx(found.across) == pytest.approx(found.second)


def test_the_cosines_are_means_over_pairs(folder: Path) -> None:
    filler = load_filler(folder)
    first, second = about(RIVER, ("bank",), 2, 4), about(MONEY, ("bank",), 3, 5)
    found = compare_senses(filler, "bank", first, second, layer=1)

    def vector(text: str) -> torch.Tensor:
        words = filler.vectors(text, layer=1)
        return words.vectors[words.words.index("bank")]

    def cosine(one: str, other: str) -> float:
        return float(functional.cosine_similarity(vector(one), vector(other), dim=0))

    assert found.first == pytest.approx(cosine(first[0], first[1]), abs=1e-6)
    across = [cosine(one, other) for one in first for other in second]
    assert found.across == pytest.approx(sum(across) / len(across), abs=1e-6)
    assert found.rounded()["apart"] == pytest.approx((found.first + found.second) / 2 - found.across, abs=1e-4)
