"""Text and token classification, from scratch or fine-tuned from a masked language model."""

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard import UserError
from regard.data.labels.tagged_sentences import TaggedConfig
from regard.task.classification.pipeline import TextLabeler
from regard.task.classification.recipe import ClassificationRecipe
from regard.task.classification.task import ClassificationTask
from regard.task.evaluate import evaluate
from regard.task.masked_lm.pipeline import FillMask
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from regard.train.distributed.process_group import SINGLE_PROCESS
from tests.task.encoders import MODEL, evaluate_once, save_random_encoder, tokenizer, write_recipe
from tests.task.small import RecordingCallback, quick_runs

GOOD, BAD = ("great", "warm", "clever"), ("dull", "cold", "silly")
NOUNS, VERBS = ("cat", "dog", "bank"), ("slept", "ate", "banked")


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def reviews(count: int, seed: int) -> list[str]:
    """Film reviews and their labels, as a table."""
    rng = random.Random(seed)
    lines = []
    for _ in range(count):
        label, words = rng.choice((("praise", GOOD), ("blame", BAD)))
        lines.append(f"a {rng.choice(words)} film and {rng.choice(words)}{rng.choice(('', ' to the end'))}\t{label}")
    return lines


def tagged(count: int, seed: int) -> list[str]:
    """Sentences of word/tag pairs. The tag of `run` depends on the preceding word."""
    rng = random.Random(seed)
    lines = []
    for _ in range(count):
        noun = rng.choice((*NOUNS, "run"))
        verb = rng.choice((*VERBS, "run"))
        lines.append(f"the/DT {noun}/NN they/PRP {verb}/VB {rng.choice(('.', '!'))}/.")
    return lines


def recipe_file(place: Path, task: str, **changes: Any) -> Path:
    lines, ending = (reviews, "tsv") if task == "text-classification" else (tagged, "txt")
    more = {} if task == "text-classification" else {"format": "slashes"}
    for name, count, seed in (("train", 80, 1), ("valid", 16, 2)):
        (place / f"{name}.{ending}").write_text("".join(f"{line}\n" for line in lines(count, seed)), encoding="utf-8")
    data = {"train": [{"path": f"train.{ending}", **more}], "valid": {"path": f"valid.{ending}", **more}}
    return write_recipe(place, task, data, **changes)


KINDS = ("text-classification", "token-classification")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A trained model for each task."""
    made = {}
    for kind in KINDS:
        place = tmp_path_factory.mktemp(kind)
        train(read_recipe(recipe_file(place, kind), evaluate_once(60)), place / "run")
        made[kind] = place / "run"
    return made


def opened(path: Path, folder: Path, *changes: str) -> ClassificationTask:
    recipe = read_recipe(path, changes)
    assert isinstance(recipe, ClassificationRecipe)
    folder.mkdir(exist_ok=True)
    return ClassificationTask.prepare(recipe, folder, lambda sentence: None, SINGLE_PROCESS)


def told(folder: Path) -> dict[str, Any]:
    scores: dict[str, Any] = json.loads((folder / "run.json").read_text())["origin"]["scores"]["valid"]
    return scores


@pytest.mark.parametrize("kind", KINDS)
def test_small_language_is_learned(kind: str, runs: dict[str, Path]) -> None:
    assert told(runs[kind])["accuracy"] == 100
    card = (runs[kind] / "README.md").read_text()
    assert f"regard {'classify' if kind == 'text-classification' else 'tag'} THIS-FOLDER" in card


def test_texts_are_labeled_with_probabilities(runs: dict[str, Path]) -> None:
    model = regard.load(runs["text-classification"])
    assert isinstance(model, TextLabeler)
    assert model.labels == ("blame", "praise")
    first, second = model.classify(["a warm film and clever", "a cold film and dull to the end"])
    assert (first[0][0], second[0][0]) == ("praise", "blame")
    assert sum(probability for _, probability in first) == pytest.approx(1)
    ((best,),) = model.classify(["a warm film and clever"], top=1)
    assert best == pytest.approx(first[0])


def test_tags_depend_on_the_context(runs: dict[str, Path]) -> None:
    model = regard.load(runs["token-classification"])
    assert isinstance(model, TextLabeler)
    (result,) = model.tag(["the run they run."])
    assert str(result) == "the/DT run/NN they/PRP run/VB ./."
    assert all(0.5 < probability <= 1 for probability in result.probabilities)


def test_score_of_labels_equals_text_by_text_computation(tmp_path: Path) -> None:
    train(read_recipe(recipe_file(tmp_path, "text-classification")), tmp_path / "run")
    model, score = TextLabeler.load(tmp_path / "run"), told(tmp_path / "run")
    nats, right = 0.0, 0
    for line in reviews(16, 2):
        text, label = line.split("\t")
        (result,) = model.classify([text])
        nats -= math.log(dict(result)[label])
        right += result[0][0] == label
    assert (score["items"], score["correct"]) == (16, right)
    assert score["nats"] == pytest.approx(nats, abs=1e-3)


def test_score_of_tags_equals_word_by_word_computation(tmp_path: Path) -> None:
    train(
        read_recipe(recipe_file(tmp_path, "token-classification"), ["train.steps=4", "tokenizer.kind=character"]),
        tmp_path / "run",
    )
    model, score = TextLabeler.load(tmp_path / "run"), told(tmp_path / "run")
    nats, right, items = 0.0, 0, 0
    for line in tagged(16, 2):
        pairs = [item.rpartition("/") for item in line.split()]
        ids, firsts = [model.tokenizer.cls], []
        for place, (word, _, _) in enumerate(pairs):
            firsts.append(len(ids))
            ids += model.tokenizer.encode(word if place == 0 else f" {word}")
        with torch.no_grad():
            scores = model.encoder(torch.tensor([[*ids, model.tokenizer.sep]])).log_softmax(-1)[0]
        for first, (_, _, tag) in zip(firsts, pairs, strict=True):
            nats -= float(scores[first, model.labels.index(tag)])
            right += int(scores[first].argmax()) == model.labels.index(tag)
            items += 1
    assert (score["items"], score["correct"]) == (items, right)
    assert score["nats"] == pytest.approx(nats, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_results_do_not_depend_on_the_batch(kind: str, runs: dict[str, Path]) -> None:
    model = TextLabeler.load(runs[kind])
    model.model.double()
    texts = ["the cat they ate .", "a warm film", "the run they run . the dog they slept ! the cat they ate ."]
    answer = model.classify if kind == "text-classification" else model.tag
    together = answer(texts)
    for text, result in zip(texts, together, strict=True):
        (alone,) = answer([text])
        assert [one if isinstance(one, str) else pytest.approx(one) for one in _flat(alone)] == _flat(result)


def _flat(values: Any) -> list[Any]:
    if isinstance(values, list | tuple):
        return [one for value in values for one in _flat(value)]
    return [values]


@pytest.mark.parametrize("kind", KINDS)
def test_finished_run_is_scored_again(kind: str, runs: dict[str, Path]) -> None:
    again = train(read_recipe(runs[kind]), runs[kind], resume=True)
    assert again.scores["valid"].rounded() == told(runs[kind])
    assert evaluate(runs[kind])["valid"].rounded() == told(runs[kind])


# Fine-tuning


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked language model with a width that no recipe here has."""
    lines = [*reviews(20, 1), *tagged(20, 1)]
    text = tokenizer("word", [line.replace("/", " ") for line in lines])
    return save_random_encoder(tmp_path_factory.mktemp("filler") / "run", text, {"kind": "masked_lm"}, width=24)


@pytest.mark.parametrize("kind", KINDS)
def test_fine_tuning_uses_the_encoder_with_a_new_head(kind: str, filler: Path, tmp_path: Path) -> None:
    path = recipe_file(tmp_path, kind, model=None, tokenizer=None)
    task = opened(path, tmp_path / "opened", f"init_from={filler}")
    first = FillMask.load(filler)
    assert task.tokenizer.fingerprint == first.tokenizer.fingerprint
    ours, theirs = task.model.state_dict(), first.encoder.state_dict()
    shared = {key for key in ours if not key.startswith("head.")}
    assert shared == {key for key in theirs if not key.startswith("head.")}
    for key in shared:
        assert torch.equal(ours[key], theirs[key]), key
    assert {key for key in ours if key.startswith("head.")} == {"head.classifier.weight", "head.classifier.bias"}
    callback = RecordingCallback()
    trained = train(read_recipe(path, [f"init_from={filler}", *evaluate_once(40)]), tmp_path / "run", callback=callback)
    assert f"Starting from the weights and the tokenizer of {filler}, with a new head." in callback.text
    assert trained.scores["valid"].accuracy > 90
    assert evaluate(tmp_path / "run")["valid"].rounded() == trained.scores["valid"].rounded()


def test_settings_override_those_of_init_from(filler: Path, tmp_path: Path) -> None:
    path = recipe_file(tmp_path, "token-classification", model=None, tokenizer=None)
    task = opened(
        path, tmp_path / "run", f"init_from={filler}", "model.embedding.dropout=0.3", "model.head.dropout=0.4"
    )
    assert task.model.config.width == 24
    assert task.model.config.embedding.dropout == 0.3
    assert task.model.config.head.dropout == 0.4  # type: ignore[union-attr]


def test_head_is_kept_if_the_labels_are_the_same(runs: dict[str, Path], tmp_path: Path) -> None:
    task = opened(
        recipe_file(tmp_path, "token-classification", model=None),
        tmp_path / "run",
        f"init_from={runs['token-classification']}",
    )
    first = TextLabeler.load(runs["token-classification"]).encoder.state_dict()
    for key, value in task.model.state_dict().items():
        assert torch.equal(value, first[key]), key


@pytest.mark.parametrize(
    ("kind", "change", "sentence"),
    [
        ("token-classification", ["data.train.0.format=trees"], "train.txt, line 1, column 1"),
        ("token-classification", ["data.train.0.format=tres"], "expected 'auto', 'trees', 'slashes' or 'columns'"),
        ("token-classification", ["model.head.labels=['a']"], "model.head.labels: this follows from the data"),
        (
            "token-classification",
            ["model.head.kind=classify"],
            "model.head.kind: found 'classify'; for token-classification",
        ),
        ("token-classification", ["model.head=3"], "model.head: found 3; expected a table"),
        ("token-classification", ["model.head.pooling=mean"], "model.head.pooling: unknown key"),
        ("text-classification", ["model.head.pooling=pooler"], "model.pooler: the head needs the pooler"),
        ("text-classification", ["data.max_length=3", "train.batch_tokens=2"], "Raise data.max_length"),
        ("text-classification", ["init_from=en-tr"], "init_from: en-tr is not an encoder"),
        ("text-classification", ["init_from=nowhere"], "nowhere: there is no such folder"),
        ("text-classification", ["data.train.0.columns=[2, 3]"], "train.tsv, line 1"),
        ("text-classification", ["task=text-clasification"], "did you mean 'text-classification'"),
    ],
)  # fmt: skip
def test_errors_leave_no_run_folder(kind: str, change: list[str], sentence: str, tmp_path: Path) -> None:
    path = recipe_file(tmp_path, kind)
    with pytest.raises(UserError, match=sentence):
        train(read_recipe(path, change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_labels_that_only_the_validation_set_has_count_as_errors(kind: str, tmp_path: Path) -> None:
    path = recipe_file(tmp_path, kind)
    file = next(tmp_path.glob("valid.*"))
    before = train(read_recipe(path, evaluate_once(12)), tmp_path / "before").scores["valid"]
    texts = kind == "text-classification"
    file.write_text(file.read_text(encoding="utf-8") + ("a film\tpraze\n" if texts else "the/XX\n"), encoding="utf-8")
    callback = RecordingCallback()
    scored = train(read_recipe(path, evaluate_once(12)), tmp_path / "run", callback=callback).scores["valid"]
    unknown = "praze" if texts else "XX"
    (line,) = [message for message in callback.messages if "training data" in message]
    assert line.startswith(f"valid: the training data has no '{unknown}',")
    assert (scored.items, scored.correct) == (before.items + 1, before.correct)
    assert scored.recall[unknown] == 0
    assert scored.loss == pytest.approx(before.loss)
    assert evaluate(tmp_path / "run")["valid"].rounded() == scored.rounded()
    assert train(read_recipe(tmp_path / "run"), tmp_path / "run", resume=True).scores["valid"].items == scored.items


def test_validation_set_without_a_known_label_is_refused(tmp_path: Path) -> None:
    path = recipe_file(tmp_path, "text-classification")
    (tmp_path / "valid.tsv").write_text("praise\ta film\n", encoding="utf-8")  # the columns are swapped
    with pytest.raises(UserError, match=r"^valid: the training data has none of its labels \('a film'\)"):
        train(read_recipe(path), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_user_data(tmp_path: Path) -> None:
    recipe = read_recipe(recipe_file(tmp_path, "token-classification"), data=tmp_path / "mine.txt")
    assert isinstance(recipe, ClassificationRecipe)
    (part,) = recipe.parts.train
    assert part.plain() == TaggedConfig(path=str(tmp_path / "mine.txt"), format="slashes").plain()


def test_single_label_is_refused(tmp_path: Path) -> None:
    path = recipe_file(tmp_path, "text-classification")
    (tmp_path / "train.tsv").write_text("a film\tpraise\n", encoding="utf-8")
    with pytest.raises(UserError, match="at least two labels"):
        train(read_recipe(path), tmp_path / "run")


def test_weights_of_another_shape_are_refused(filler: Path, tmp_path: Path) -> None:
    path = recipe_file(tmp_path, "token-classification", model=MODEL, tokenizer=None)
    with pytest.raises(UserError, match=r"does not fit the recipe's model.* Leave \[model\] out to take its settings"):
        opened(path, tmp_path / "run", f"init_from={filler}")


def test_wrong_kind_of_labeler_is_refused(runs: dict[str, Path], filler: Path) -> None:
    with pytest.raises(UserError, match="tags words and does not label texts; use `regard tag`"):
        TextLabeler.load(runs["token-classification"]).classify(["a film"])
    with pytest.raises(UserError, match="labels texts and does not tag words; use `regard classify`"):
        TextLabeler.load(runs["text-classification"]).tag(["a film"])
    with pytest.raises(UserError, match="has no labels: it was trained with the head 'masked_lm'"):
        TextLabeler.load(filler)


@pytest.mark.parametrize("kind", KINDS)
def test_workload_is_of_mean_size(kind: str, tmp_path: Path) -> None:
    task = opened(recipe_file(tmp_path, kind), tmp_path / "run")
    batches = list(task.batches.epoch())
    work = task.workload()
    assert work.batch_size == round(80 / len(batches))
    cells = sum(batch.tokens.numel() for batch in batches)
    assert work.batch_size * work.target_length * len(batches) == pytest.approx(cells, rel=0.1)
    assert (work.source_length, work.predicted_tokens, work.batch_tokens) == (0, None, task.recipe.train.batch_tokens)
