"""Texts get labels and words get tags, from scratch or from an encoder that learnt to fill gaps."""

import json
import math
import os
import random
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard import UserError
from regard.data.tagged import TaggedConfig
from regard.task import Labeller, load_filler, load_labeller, read_recipe, train
from regard.task.labelling import LabellingTask
from regard.task.labelling_recipe import LabellingRecipe
from regard.task.testing import run_tests
from regard.train.surroundings import StoppedError
from regard.train.world import ALONE
from tests.task.encoders import MODEL, long, save_random, tokenizer, write_recipe
from tests.task.small import Heard, quick_runs

GOOD, BAD = ("great", "warm", "clever"), ("dull", "cold", "silly")
NOUNS, VERBS = ("cat", "dog", "bank"), ("slept", "ate", "banked")


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def reviews(count: int, seed: int) -> list[str]:
    """Films and what was thought of them, as a table."""
    dice = random.Random(seed)
    lines = []
    for _ in range(count):
        label, words = dice.choice((("praise", GOOD), ("blame", BAD)))
        lines.append(f"a {dice.choice(words)} film and {dice.choice(words)}{dice.choice(('', ' to the end'))}\t{label}")
    return lines


def tagged(count: int, seed: int) -> list[str]:
    """Sentences with slashes. What `run` is depends on what stands before it."""
    dice = random.Random(seed)
    lines = []
    for _ in range(count):
        noun = dice.choice((*NOUNS, "run"))
        verb = dice.choice((*VERBS, "run"))
        lines.append(f"the/DT {noun}/NN they/PRP {verb}/VB {dice.choice(('.', '!'))}/.")
    return lines


def recipe_file(place: Path, task: str, **changes: Any) -> Path:
    lines, ending = (reviews, "tsv") if task == "classification" else (tagged, "txt")
    more = {} if task == "classification" else {"form": "slashes"}
    for name, count, seed in (("train", 80, 1), ("valid", 16, 2)):
        (place / f"{name}.{ending}").write_text("".join(f"{line}\n" for line in lines(count, seed)), encoding="utf-8")
    data = {"train": [{"path": f"train.{ending}", **more}], "valid": {"path": f"valid.{ending}", **more}}
    return write_recipe(place, task, data, **changes)


KINDS = ("classification", "tagging")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A trained model of each kind."""
    made = {}
    for kind in KINDS:
        place = tmp_path_factory.mktemp(kind)
        train(read_recipe(recipe_file(place, kind), long(60)), place / "run")
        made[kind] = place / "run"
    return made


def opened(path: Path, folder: Path, *changes: str) -> LabellingTask:
    recipe = read_recipe(path, changes)
    assert isinstance(recipe, LabellingRecipe)
    folder.mkdir(exist_ok=True)
    return LabellingTask.begin(recipe, folder, lambda sentence: None, ALONE)


def told(folder: Path) -> dict[str, Any]:
    scores: dict[str, Any] = json.loads((folder / "run.json").read_text())["origin"]["scores"]["valid"]
    return scores


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_language_is_learnt_without_a_mistake(kind: str, runs: dict[str, Path]) -> None:
    assert told(runs[kind])["accuracy"] == 100
    card = (runs[kind] / "README.md").read_text()
    assert f"regard {'classify' if kind == 'classification' else 'tag'} THIS-FOLDER" in card


def test_texts_are_labelled_with_probabilities(runs: dict[str, Path]) -> None:
    model = regard.load(runs["classification"])
    assert isinstance(model, Labeller)
    assert model.labels == ("blame", "praise")
    first, second = model.label(["a warm film and clever", "a cold film and dull to the end"])
    assert (first[0][0], second[0][0]) == ("praise", "blame")
    assert sum(chance for _, chance in first) == pytest.approx(1)
    ((best,),) = model.label(["a warm film and clever"], top=1)
    assert best == pytest.approx(first[0])


def test_words_are_tagged_in_the_light_of_the_others(runs: dict[str, Path]) -> None:
    model = regard.load(runs["tagging"])
    assert isinstance(model, Labeller)
    (found,) = model.tag(["the run they run."])
    assert str(found) == "the/DT run/NN they/PRP run/VB ./."
    assert all(0.5 < chance <= 1 for chance in found.probabilities)


def test_the_score_of_labels_is_worked_out_again_text_by_text(tmp_path: Path) -> None:
    train(read_recipe(recipe_file(tmp_path, "classification")), tmp_path / "run")
    model, score = load_labeller(tmp_path / "run"), told(tmp_path / "run")
    nats, right = 0.0, 0
    for line in reviews(16, 2):
        text, label = line.split("\t")
        (found,) = model.label([text])
        nats -= math.log(dict(found)[label])
        right += found[0][0] == label
    assert (score["items"], score["correct"]) == (16, right)
    assert score["nats"] == pytest.approx(nats, abs=1e-3)


def test_the_score_of_tags_is_worked_out_again_word_by_word(tmp_path: Path) -> None:
    train(
        read_recipe(recipe_file(tmp_path, "tagging"), ["train.steps=4", "tokenizer.kind=character"]), tmp_path / "run"
    )
    model, score = load_labeller(tmp_path / "run"), told(tmp_path / "run")
    nats, right, items = 0.0, 0, 0
    for line in tagged(16, 2):
        pairs = [item.rpartition("/") for item in line.split()]
        ids, firsts = [model.text.classify], []
        for place, (word, _, _) in enumerate(pairs):
            firsts.append(len(ids))
            ids += model.text.encode(word if place == 0 else f" {word}")
        with torch.no_grad():
            scores = model.encoder(torch.tensor([[*ids, model.text.separator]])).log_softmax(-1)[0]
        for first, (_, _, tag) in zip(firsts, pairs, strict=True):
            nats -= float(scores[first, model.labels.index(tag)])
            right += int(scores[first].argmax()) == model.labels.index(tag)
            items += 1
    assert (score["items"], score["correct"]) == (items, right)
    assert score["nats"] == pytest.approx(nats, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_do_not_depend_on_company(kind: str, runs: dict[str, Path]) -> None:
    model = load_labeller(runs[kind])
    model.model.double()
    texts = ["the cat they ate .", "a warm film", "the run they run . the dog they slept ! the cat they ate ."]
    answer = model.label if kind == "classification" else model.tag
    together = answer(texts)
    for text, found in zip(texts, together, strict=True):
        (alone,) = answer([text])
        assert [one if isinstance(one, str) else pytest.approx(one) for one in _flat(alone)] == _flat(found)


def _flat(values: Any) -> list[Any]:
    if isinstance(values, list | tuple):
        return [one for value in values for one in _flat(value)]
    return [values]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_stopped_and_resumed_ends_bit_for_bit_as_one_that_was_not(kind: str, tmp_path: Path) -> None:
    class Stopping(Heard):
        def stepped(self, step: int, values: Mapping[str, float]) -> None:
            if step == 5:
                os.kill(os.getpid(), signal.SIGTERM)

    recipe = read_recipe(recipe_file(tmp_path, kind))
    train(recipe, tmp_path / "straight")
    with pytest.raises(StoppedError):
        train(recipe, tmp_path / "run", listener=Stopping())
    train(recipe, tmp_path / "run", resume=True)
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("straight", "run"))
    assert one == other


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_run_knows_its_scores_and_can_be_scored_again(kind: str, runs: dict[str, Path]) -> None:
    again = train(read_recipe(runs[kind]), runs[kind], resume=True)
    assert again.scores["valid"].rounded() == told(runs[kind])
    assert run_tests(runs[kind])["valid"].rounded() == told(runs[kind])


# Fine-tuning.


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder with a head that fills gaps, as wide as no recipe here is."""
    lines = [*reviews(20, 1), *tagged(20, 1)]
    text = tokenizer("word", [line.replace("/", " ") for line in lines])
    return save_random(tmp_path_factory.mktemp("filler") / "run", text, {"kind": "fill"}, width=24)


@pytest.mark.parametrize("kind", KINDS)
def test_fine_tuning_starts_from_the_encoder_of_another_run_with_a_new_head(
    kind: str, filler: Path, tmp_path: Path
) -> None:
    path = recipe_file(tmp_path, kind, model=None)
    task = opened(path, tmp_path / "opened", f"init_from={filler}")
    first = load_filler(filler)
    assert task.tokenizer.fingerprint == first.text.fingerprint
    ours, theirs = task.model.state_dict(), first.encoder.state_dict()
    shared = {key for key in ours if not key.startswith("head.")}
    assert shared == {key for key in theirs if not key.startswith("head.")}
    for key in shared:
        assert torch.equal(ours[key], theirs[key]), key
    assert {key for key in ours if key.startswith("head.")} == {"head.output.weight", "head.output.bias"}
    heard = Heard()
    trained = train(read_recipe(path, [f"init_from={filler}", *long(40)]), tmp_path / "run", listener=heard)
    assert f"Starting from the weights and the tokenizer of {filler}, with a new head." in heard.text
    assert trained.scores["valid"].accuracy > 90
    assert run_tests(tmp_path / "run")["valid"].rounded() == trained.scores["valid"].rounded()


def test_settings_given_beside_those_of_the_other_run_count(filler: Path, tmp_path: Path) -> None:
    path = recipe_file(tmp_path, "tagging", model=None)
    task = opened(
        path, tmp_path / "run", f"init_from={filler}", "model.embedding.dropout=0.3", "model.head.dropout=0.4"
    )
    assert task.model.config.width == 24
    assert task.model.config.embedding.dropout == 0.3
    assert task.model.config.head.dropout == 0.4  # type: ignore[union-attr]


def test_the_head_stays_where_the_labels_do(runs: dict[str, Path], tmp_path: Path) -> None:
    task = opened(recipe_file(tmp_path, "tagging", model=None), tmp_path / "run", f"init_from={runs['tagging']}")
    first = load_labeller(runs["tagging"]).encoder.state_dict()
    for key, value in task.model.state_dict().items():
        assert torch.equal(value, first[key]), key


@pytest.mark.parametrize(
    ("kind", "change", "sentence"),
    [
        ("tagging", ["data.train.0.form=trees"], "train.txt, line 1, column 1"),
        ("tagging", ["data.train.0.form=tres"], "expected 'trees', 'slashes' or 'columns'"),
        ("tagging", ["model.head.labels=['a']"], "model.head.labels: this follows from the data"),
        ("tagging", ["model.head.kind=classify"], "model.head.kind: found 'classify'; for tagging it must be 'tag'"),
        ("tagging", ["model.head=3"], "model.head: found 3; expected a table"),
        ("tagging", ["model.head.pooling=mean"], "model.head.pooling: unknown key"),
        ("classification", ["model.head.pooling=pooler"], "model.pooler: the head takes what the pooler gives"),
        ("classification", ["data.longest=3", "train.tokens=2"], "Raise data.longest"),
        ("classification", ["init_from=en-tr"], "holds no encoder"),
        ("classification", ["init_from=nowhere"], "nowhere: there is no such folder"),
        ("classification", ["data.train.0.columns=[2, 3]"], "train.tsv, line 1"),
        ("classification", ["task=clasification"], "did you mean 'classification'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence_and_nothing_is_left(
    kind: str, change: list[str], sentence: str, tmp_path: Path
) -> None:
    path = recipe_file(tmp_path, kind)
    with pytest.raises(UserError, match=sentence):
        train(read_recipe(path, change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_label_that_training_never_saw_is_refused_with_its_line(tmp_path: Path) -> None:
    path = recipe_file(tmp_path, "classification")
    (tmp_path / "valid.tsv").write_text("a film\tpraise\na film\tprays\n", encoding="utf-8")
    with pytest.raises(
        UserError, match=r"valid\.tsv, line 2: the label 'prays' is unknown; known are 'blame', 'praise'"
    ):
        train(read_recipe(path), tmp_path / "run")


def test_sentences_of_ones_own_are_read_as_the_recipes_are(tmp_path: Path) -> None:
    recipe = read_recipe(recipe_file(tmp_path, "tagging"), own=tmp_path / "mine.txt")
    assert isinstance(recipe, LabellingRecipe)
    (part,) = recipe.parts.train
    assert part.plain() == TaggedConfig(path=str(tmp_path / "mine.txt"), form="slashes").plain()


def test_one_label_alone_is_nothing_to_learn(tmp_path: Path) -> None:
    path = recipe_file(tmp_path, "classification")
    (tmp_path / "train.tsv").write_text("a film\tpraise\n", encoding="utf-8")
    with pytest.raises(UserError, match="at least two labels"):
        train(read_recipe(path), tmp_path / "run")


def test_weights_that_do_not_fit_are_refused(filler: Path, tmp_path: Path) -> None:
    path = recipe_file(tmp_path, "tagging", model=MODEL)
    with pytest.raises(UserError, match=r"does not fit the recipe's model.* Leave \[model\] out to take its settings"):
        opened(path, tmp_path / "run", f"init_from={filler}")


def test_a_model_says_what_it_is_for_where_it_is_asked_for_something_else(runs: dict[str, Path], filler: Path) -> None:
    with pytest.raises(UserError, match="tags words and does not label whole texts; use `regard tag`"):
        load_labeller(runs["tagging"]).label(["a film"])
    with pytest.raises(UserError, match="labels whole texts and does not tag words; use `regard classify`"):
        load_labeller(runs["classification"]).tag(["a film"])
    with pytest.raises(UserError, match="knows no labels: it was trained with the head 'fill'"):
        load_labeller(filler)


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_costs_is_of_batches_of_mean_size(kind: str, tmp_path: Path) -> None:
    task = opened(recipe_file(tmp_path, kind), tmp_path / "run")
    batches = list(task.batches.epoch())
    work = task.work()
    assert work.rows == round(80 / len(batches))
    cells = sum(batch.tokens.numel() for batch in batches)
    assert work.rows * work.target * len(batches) == pytest.approx(cells, rel=0.1)
    assert (work.source, work.asked, work.tokens) == (0, None, task.recipe.train.tokens)
