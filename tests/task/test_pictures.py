"""A recipe for pictures becomes a model that tells them apart."""

import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import regard
from regard import UserError
from regard.cost import Work
from regard.data.augment import Augmented
from regard.data.pictures import PicturesConfig, read_pictures
from regard.interop import preparation_of
from regard.model import VisionTransformerConfig
from regard.run import read_facts, save
from regard.task import Classifier, load_classifier, read_recipe, train
from regard.task.pictures import PicturesTask, class_loss
from regard.task.pictures_recipe import PicturesRecipe
from regard.train.gradient import Gradients, in_precision
from regard.train.loss import Loss
from regard.train.surroundings import StoppedError
from regard.train.world import ALONE
from tests.task.small import Heard, quick_runs
from tests.task.small_pictures import CLASSES, as_if_recorded, pictures, write_arrays, write_recipe

EXACT = {"rtol": 1e-10, "atol": 1e-10}
STRONG = ["augment.crop=1", "augment.flip=0.5", "augment.erase=0.5", "augment.mixup=0.4", "augment.cutmix=1.0"]


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pictures")
    path = write_recipe(place, "train.steps=80", "train.validate_every=40", "train.save_every=40")
    train(read_recipe(path), place / "run")
    return place / "run"


def opened(path: Path, *changes: str) -> PicturesTask:
    recipe = read_recipe(path, changes)
    assert isinstance(recipe, PicturesRecipe)
    return PicturesTask.begin(recipe, lambda sentence: None, ALONE)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


# A run


def test_a_small_set_is_learnt(trained: Path) -> None:
    scores = read_facts(trained)["origin"]["scores"]["test"]
    assert scores["accuracy"] == 100
    assert (scores["items"], scores["items_by_class"]) == (30, dict.fromkeys(CLASSES, 10))
    assert scores["loss"] < 0.3


def test_the_folder_has_all_there_is_to_know(trained: Path) -> None:
    assert {"recipe.toml", "run.json", "model.safetensors", "README.md", "metrics.jsonl"} <= set(os.listdir(trained))
    facts = read_facts(trained)
    assert facts["model"]["classes"] == list(CLASSES)
    assert facts["model"]["image"] == [4, 4]
    assert facts["origin"]["fit"] == "crop"
    card = (trained / "README.md").read_text()
    assert "regard classify THIS-FOLDER" in card
    assert "1,000 pictures, seed 1" in card  # 80 steps: 20 epochs of 50
    assert "| test set | accuracy | balanced | loss | correct | items |" in card.replace(" nats |", "")


def test_metrics_have_the_validation_loss_and_the_accuracy(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    measured = [line for line in lines if "valid/accuracy" in line]
    assert [line["step"] for line in measured] == [40, 80]
    assert measured[-1]["valid/accuracy"] == 100
    assert 0 < measured[-1]["valid/loss"] < 0.3


def test_a_finished_run_knows_its_scores_again(trained: Path) -> None:
    again = train(read_recipe(trained), trained, resume=True)
    assert again.scores["test"].rounded() == read_facts(trained)["origin"]["scores"]["test"]


@pytest.mark.parametrize("changes", [[], [*STRONG, "train.moving=0.9", "train.final=moving", "model.registers=1"]])
def test_a_run_stopped_and_resumed_ends_bit_for_bit_as_one_that_was_not(changes: list[str], tmp_path: Path) -> None:
    class Stopping(Heard):
        def stepped(self, step: int, values: Mapping[str, float]) -> None:
            if step == 5:
                os.kill(os.getpid(), signal.SIGTERM)

    recipe = read_recipe(write_recipe(tmp_path), ["model.dropout=0.1", "train.tokens=96", *changes])
    train(recipe, tmp_path / "straight")
    with pytest.raises(StoppedError):
        train(recipe, tmp_path / "run", listener=Stopping())
    train(recipe, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == weights(tmp_path / "straight")


def test_pictures_in_folders_are_learnt_from_too(tmp_path: Path) -> None:
    pixels, labels = pictures(30)
    for number, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        place = tmp_path / "train" / CLASSES[label] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).resize((12, 8)).save(place)
    like = ["data.train.size=4", "data.train.channels=1", "data.train.fit=stretch"]
    path = write_recipe(tmp_path, f"data.train.path={tmp_path / 'train'}", "train.steps=3", *like)
    trained = train(read_recipe(path), tmp_path / "run")
    facts = read_facts(trained.folder)
    assert (facts["model"]["image"], facts["model"]["channels"]) == ([4, 4], 1)
    assert facts["origin"]["fit"] == "stretch"
    recipe = read_recipe(tmp_path / "run")
    assert isinstance(recipe, PicturesRecipe)
    assert recipe.data.valid is not None
    assert recipe.data.valid.fit == recipe.data.test["test"].fit == "stretch"


def test_a_recipe_can_be_trained_on_a_folder_of_one_s_own(tmp_path: Path) -> None:
    for number in range(40):
        place = tmp_path / "own" / "ab"[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (5, 7), (number, 0, 0)).save(place)
    path = write_recipe(tmp_path, "data.train.size=4", "data.train.channels=1")
    recipe = read_recipe(path, ["train.steps=2"], own=tmp_path / "own")
    trained = train(recipe, tmp_path / "run")
    assert 0 < trained.scores["valid"].items < 10
    facts = read_facts(tmp_path / "run")
    assert (facts["model"]["classes"], facts["model"]["image"], facts["model"]["channels"]) == (["a", "b"], [4, 4], 1)


# The loss


def brute_loss(scores: Tensor, seen: Augmented, smoothing: float) -> tuple[float, float]:
    """Row by row, from the distribution that is wanted."""
    total = plain = 0.0
    for row, label, other, share in zip(scores, seen.labels, seen.others, seen.share, strict=True):
        if label >= 0:
            wanted = torch.zeros_like(row)
            wanted[label] += share
            wanted[other] += 1 - share
            log_p = row.log_softmax(-1)
            plain -= float(wanted @ log_p)
            total -= float(((1 - smoothing) * wanted + smoothing / len(row)) @ log_p)
    return total, plain


def mixed() -> tuple[Tensor, Augmented]:
    torch.manual_seed(1)
    labels, others = torch.tensor([0, 2, 1, 1, -1]), torch.tensor([2, 2, 0, 1, -1])
    share = torch.tensor([0.3, 1.0, 0.5, 0.0, 1.0], dtype=torch.float64)
    return torch.randn(5, 3, dtype=torch.float64), Augmented(torch.zeros(5, 1, 2, 2), labels, others, share)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_the_wanted_distribution(smoothing: float) -> None:
    scores, seen = mixed()
    loss = class_loss(scores, seen, smoothing)
    assert (float(loss.total), float(loss.plain)) == pytest.approx(brute_loss(scores, seen, smoothing))
    assert int(loss.count) == 4


def test_empty_rows_have_no_say() -> None:
    scores, seen = mixed()
    scores.requires_grad_()
    class_loss(scores, seen, 0.1).total.backward()
    assert scores.grad is not None
    assert torch.equal(scores.grad[4], torch.zeros(3, dtype=torch.float64))
    assert (scores.grad[:4] != 0).all()


def test_the_loss_is_taken_in_float32() -> None:
    scores, seen = mixed()
    low = scores.to(torch.bfloat16)
    assert class_loss(low, seen).total.dtype == torch.float32
    torch.testing.assert_close(class_loss(low, seen).total, class_loss(low.float(), seen).total)


def together(losses: list[Loss]) -> Loss:
    total = losses[0]
    for one in losses[1:]:
        total = total + one
    return total


def test_parts_of_a_batch_add_up_to_it(tmp_path: Path) -> None:
    task = opened(write_recipe(tmp_path))
    task.model.eval().double()
    batch = next(iter(task.batches.once()))
    whole = task.loss(task.model, batch)
    parts = together([task.loss(task.model, part) for part in batch.split(3)])
    torch.testing.assert_close(parts.total, whole.total, **EXACT)
    torch.testing.assert_close(parts.plain, whole.plain, **EXACT)
    assert int(parts.count) == int(whole.count) == batch.count


def test_without_changes_and_smoothing_what_is_trained_on_is_what_is_reported(tmp_path: Path) -> None:
    task = opened(write_recipe(tmp_path), "train.loss.smoothing=0.0")
    task.model.eval().double()
    for batch in task.validation():
        torch.testing.assert_close(
            task.loss(task.model, batch).total, task.plain_loss(task.model, batch).plain, **EXACT
        )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "changes",
    [[], STRONG, [*STRONG, "train.loss.consistency=2.0"], ["augment.cutmix=1.0", "data.train.channels=3"]],
    ids=str,
)
def test_the_pass_asks_nothing_of_the_device_and_copies_nothing_to_it(
    changes: list[str], precision: str, tmp_path: Path
) -> None:
    """Else it could not be recorded as a CUDA graph."""
    task = opened(write_recipe(tmp_path), *changes, "model.registers=1", "train.tokens=96")
    batch = next(task.batches.epochs())
    for pixels in ({}, {"pixels": {"mean": [0.4], "std": [0.2]}}):
        task.model.config = VisionTransformerConfig.read(task.model.config.plain() | pixels)
        gradients = Gradients(task, precision, in_precision(task.model, precision))
        scale = torch.ones(())
        with as_if_recorded():
            loss = gradients.add(batch, scale)
        assert loss.total.isfinite()


def test_every_parameter_has_a_gradient(tmp_path: Path) -> None:
    task = opened(write_recipe(tmp_path), *STRONG, "model.registers=1", "train.tokens=96")
    task.loss(task.model, next(task.batches.epochs())).mean.backward()
    for name, parameter in task.model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0 or name.endswith("key.bias"), name


def test_it_trains_in_bf16(tmp_path: Path) -> None:
    trained = train(read_recipe(write_recipe(tmp_path), ["train.precision=bf16", *STRONG]), tmp_path / "run")
    assert trained.scores["test"].items == 30


# Scores


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_a_score_is_that_of_every_picture_by_itself(rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = opened(write_recipe(tmp_path))
    monkeypatch.setattr("regard.task.pictures._VALIDATION_TOKENS", 5 * rows)
    held = task.held["test"]
    found = task.score(held)
    right, nats = 0, 0.0
    with torch.no_grad():
        for pixels, label in zip(held.pixels, held.labels, strict=True):
            chances = task.model(task.model.config.pixels.apply(pixels[None])).log_softmax(-1)[0]
            nats -= float(chances[label])
            right += int(chances.argmax() == label)
    assert (found.correct, found.items) == (right, 30)
    assert found.nats == pytest.approx(nats, rel=1e-5)


def test_the_validation_loss_of_the_loop_is_that_of_the_score(tmp_path: Path) -> None:
    task = opened(write_recipe(tmp_path))
    task.model.eval()
    with torch.no_grad():
        loss = together([task.plain_loss(task.model, batch) for batch in task.validation()])
    assert float(loss.plain) == pytest.approx(task.score(task.held["valid"]).nats, rel=1e-5)
    assert int(loss.count) == 20


# Using it


@pytest.fixture(scope="module")
def classifier(trained: Path) -> Classifier:
    return load_classifier(trained)


def test_it_opens_as_a_classifier(trained: Path) -> None:
    model = regard.load(trained)
    assert isinstance(model, Classifier)
    assert model.labels == CLASSES


def test_a_picture_gets_all_classes_with_probabilities_the_likeliest_first(classifier: Classifier) -> None:
    pixels, labels = pictures(6, seed=9)
    for picture, label in zip(pixels, labels, strict=True):
        found = classifier.classify(torch.from_numpy(picture))
        assert found[0][0] == CLASSES[label]
        assert {name for name, _ in found} == set(CLASSES)
        assert sum(chance for _, chance in found) == pytest.approx(1)
        assert [chance for _, chance in found] == sorted((chance for _, chance in found), reverse=True)
    assert classifier.classify(pixels[0], top=1) == classifier.classify(pixels[0])[:1]
    assert len(classifier.classify(pixels[0], top=99)) == 3


def test_a_file_an_image_and_an_array_give_the_same(classifier: Classifier, tmp_path: Path) -> None:
    picture = pictures(1, seed=9)[0][0]
    image = Image.fromarray(picture)
    image.save(tmp_path / "one.png")
    wanted = classifier.classify(picture)
    for same in (tmp_path / "one.png", str(tmp_path / "one.png"), image, torch.from_numpy(picture)[None],
                 picture[:, :, None], picture.astype(np.float64) / 255):  # fmt: skip
        assert classifier.classify(same) == wanted


def test_many_pictures_are_classified_as_each_alone(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    given = list(pictures(11, seed=9)[0])
    heard: list[int] = []
    monkeypatch.setattr("regard.task.classifier.BATCH_TOKENS", {"cpu": 20})  # four at a time
    found = classifier.classify_all(given, progress=heard.append)
    assert heard == [4, 8, 11]
    for one, picture in zip(found, given, strict=True):
        alone = classifier.classify(picture)
        assert [name for name, _ in one] == [name for name, _ in alone]
        assert [chance for _, chance in one] == pytest.approx([chance for _, chance in alone], abs=1e-6)


def test_pixels_are_those_that_were_trained_on(trained: Path, classifier: Classifier, tmp_path: Path) -> None:
    """A photo in colour, of another size and lying on its side, becomes what the training set would make of it."""
    dice = np.random.default_rng(1)
    image = Image.fromarray(dice.integers(0, 256, (9, 14, 3)).astype(np.uint8))
    exif = image.getexif()
    exif[0x0112] = 6  # the camera was held upright
    for folder in ("a", "b"):
        (tmp_path / "set" / folder).mkdir(parents=True)
        image.save(tmp_path / "set" / folder / "one.png", exif=exif)
    data = read_pictures(PicturesConfig(path=str(tmp_path / "set"), size=4, channels=1))
    wanted = classifier.vision_transformer.config.pixels.apply(data.pixels[0])
    path = tmp_path / "set" / "a" / "one.png"
    torch.testing.assert_close(classifier.pixels(path), wanted, rtol=0, atol=0)
    with Image.open(path) as opened_image:
        torch.testing.assert_close(classifier.pixels(opened_image), wanted, rtol=0, atol=0)


def test_stretching_is_kept_too(trained: Path, tmp_path: Path) -> None:
    model = load_classifier(trained).model
    wide = np.concatenate([np.zeros((4, 8)), np.full((4, 8), 255)], axis=1).astype(np.uint8)
    for fit in ("crop", "stretch"):
        save(model, tmp_path / fit, origin={"fit": fit})
    cut, whole = (load_classifier(tmp_path / fit).pixels(wide) for fit in ("crop", "stretch"))
    assert not torch.equal(cut, whole)


def test_an_imported_model_gets_its_pictures_as_it_wants_them(tmp_path: Path) -> None:
    """Resized as a whole, bilinearly, and normalised by the config; also where it does not ask to be resized."""
    levels = np.random.default_rng(1).integers(0, 256, (9, 14, 3)).astype(np.uint8)
    Image.fromarray(levels).save(tmp_path / "one.png")
    config = VisionTransformerConfig(image=4, patch=2, width=8, classes=2, pixels={"mean": (0.1, 0.2, 0.3)},
                                     encoder={"layers": 1, "attention": {"heads": 2}})  # fmt: skip
    asked = {"size": {"height": 4, "width": 4}, "resample": 2, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.5] * 3}
    save(config.build(), tmp_path / "run", origin={"preprocessor": asked})
    save(config.build(), tmp_path / "as-it-is", origin={"preprocessor": asked | {"do_resize": False}})
    classifier = load_classifier(tmp_path / "run")
    wanted = preparation_of(tmp_path / "run")(levels)
    torch.testing.assert_close(classifier.pixels(tmp_path / "one.png"), wanted, rtol=0, atol=0)
    torch.testing.assert_close(classifier.pixels(levels), wanted, rtol=0, atol=0)
    assert load_classifier(tmp_path / "as-it-is").pixels(levels).shape == (3, 4, 4)
    assert isinstance(regard.load(tmp_path / "run"), Classifier)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (np.zeros((1, 1, 4, 4), np.uint8), "found 4 dimensions. Give many pictures as a list"),
        (np.full((4, 4), 300), "pixels from 300 to 300"),
        (17, "a picture is a path|A picture is a path"),
        (Image.new("F", (4, 4)), "The picture cannot be read"),
    ],
)
def test_what_is_no_picture_is_refused(given: Any, sentence: str, classifier: Classifier) -> None:
    with pytest.raises(UserError, match=sentence):
        classifier.classify(given)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"classes": 0}, "knows no classes"),
        ({"channels": 2, "classes": 2}, "wants 2 channels"),
    ],
)
def test_a_model_that_is_no_classifier_is_refused(settings: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    config = VisionTransformerConfig(image=4, patch=2, width=8, encoder={"layers": 1, "attention": {"heads": 2}},
                                     **settings)  # fmt: skip
    save(config.build(), tmp_path / "run")
    with pytest.raises(UserError, match=sentence):
        load_classifier(tmp_path / "run")


# Starting from another model


def test_another_run_can_start_from_its_weights(trained: Path, tmp_path: Path) -> None:
    heard = Heard()
    path = write_recipe(tmp_path, "model={}", f"init_from={trained}")
    recipe = read_recipe(path, ["train.steps=1", "train.schedule.rate=1e-9"])
    begun = train(recipe, tmp_path / "run", listener=heard)
    assert begun.scores["test"].accuracy == 100
    assert f"Starting from the weights of {trained}." in heard.text
    assert read_facts(tmp_path / "run")["model"]["width"] == 16


def test_other_classes_and_another_size_get_what_is_new_anew(trained: Path, tmp_path: Path) -> None:
    path = write_recipe(
        tmp_path, "model={}", f"init_from={trained}", train={"path": "train.npz"}, valid={"path": "valid.npz"}
    )
    write_arrays(tmp_path / "train.npz", 30, size=8)
    write_arrays(tmp_path / "valid.npz", 9, size=8)
    task = opened(path, "train.tokens=100")
    first = load_classifier(trained).vision_transformer
    assert task.model.config.labels == ("0", "1", "2")
    assert task.model.config.grid == (4, 4)
    mine, theirs = task.model.state_dict(), first.state_dict()
    torch.testing.assert_close(mine["position.table"][1:].view(4, 4, 16), first.position(4, 4).detach())
    assert torch.equal(mine["position.table"][0], theirs["position.table"][0])
    assert not torch.equal(mine["head.output.weight"], theirs["head.output.weight"])
    for name in mine.keys() - {"position.table", "head.output.weight", "head.output.bias"}:
        assert torch.equal(mine[name], theirs[name]), name


def test_a_model_that_does_not_fit_the_recipe_is_refused(trained: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, f"init_from={trained}", "model.width=32")
    with pytest.raises(UserError, match=r"does not fit the recipe's model: for .* Leave \[model\] out"):
        opened(path)


# What is wrong


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (["data.train.path=nowhere.npz"], "nowhere.npz: there is no such file or folder"),
        (["model.classes=9"], "model.classes: this follows from the data"),
        (["model.image=9"], "model.image: this follows from the data"),
        (["data.train.size=5"], "model.patch: patches of 2 pixels do not fill a picture of 5 × 5"),
        (["model.patch=3"], "model.patch: patches of 3 pixels do not fill a picture of 4 × 4"),
        (["train.tokens=3"], "train.tokens: found 3; one picture of 4 × 4 alone has 5 tokens"),
        (["train.tokens=3", "data.train.size=4"], "train.tokens: found 3; one picture of 4 × 4 alone has 5 tokens"),
        (["train.shapes=4"], "train.shapes: found 4, but all pictures have one size"),
        (["data.valid.size=8"], "of 8 × 8 with 1 channel and the training part pictures of 4 × 4"),
        (["data.test.test.keys=['a','b']"], "has no array named 'a'"),
        (["data.train.labels=other.npy"], "data.train.labels: train.npz has its labels within"),
        (["augment.flop=0.5"], "did you mean 'flip'"),
        (["init_from=nowhere"], "nowhere: there is no such folder"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence_and_nothing_is_left(
    change: list[str], sentence: str, tmp_path: Path
) -> None:
    path = write_recipe(tmp_path)
    with pytest.raises(UserError, match=sentence):
        train(read_recipe(path, [*(["model={}"] if "init_from=nowhere" in change else []), *change]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def picture_folder(place: Path) -> Path:
    for name in ("left", "right"):
        (place / name).mkdir(parents=True)
        Image.new("L", (4, 4)).save(place / name / "one.png")
    return place


def spoil_nothing(folder: Path) -> None:
    (folder / "right" / "one.png").unlink()


def spoil_picture(folder: Path) -> None:
    (folder / "right" / "one.png").write_text("no picture")


def spoil_class(folder: Path) -> None:
    (folder / "right" / "one.png").unlink()
    (folder / "right").rmdir()


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (spoil_nothing, "right has no pictures in it"),
        (spoil_picture, "one.png is not a picture, or damaged"),
        (spoil_class, "has only one class, 'left'"),
    ],
)
def test_a_folder_that_cannot_be_learnt_from_is_refused(spoil: Any, sentence: str, tmp_path: Path) -> None:
    spoil(picture_folder(tmp_path / "folder"))
    path = write_recipe(tmp_path, train={"path": "folder", "size": 4})
    with pytest.raises(UserError, match=sentence):
        train(read_recipe(path), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_labels_of_idx_files_are_meant_from_where_the_recipe_lies(tmp_path: Path) -> None:
    path = write_recipe(tmp_path, train={"path": "images", "labels": "labels"})
    recipe = read_recipe(path)
    assert isinstance(recipe, PicturesRecipe)
    assert recipe.data.train.labels == str(tmp_path / "labels")


def test_what_it_costs_is_of_the_batches_there_are(tmp_path: Path) -> None:
    task = opened(write_recipe(tmp_path), "train.accumulate=3", "train.loss.consistency=1.0", "train.tokens=50")
    work, batch = task.work(), next(iter(task.batches.epochs()))
    assert work == Work(10, 5, steps=12, accumulate=3, passes=2)
    assert (work.rows, work.target) == (len(batch.labels), task.model.config.tokens)
    assert task.recipe.likely_work().steps == work.steps  # of pictures of a likely size, as none is asked for


def test_settings_that_need_a_validation_part_are_named_where_there_is_none(tmp_path: Path) -> None:
    path = write_recipe(tmp_path, test={"test": {"path": "test.npz"}})
    asked, heard = ["train.final=best", "train.patience=2", "train.steps=4"], [Heard(), Heard()]
    train(read_recipe(path, asked), tmp_path / "without", listener=heard[0])
    train(
        read_recipe(path, [*asked, f"data.valid.path={tmp_path / 'valid.npz'}"]), tmp_path / "with", listener=heard[1]
    )
    sentence = (
        'Nothing is kept aside to watch the run (data.valid), so train.final = "best" ends with the last weights and '
        "train.patience = 2 never stops it early."
    )
    assert (sentence in heard[0].said, sentence in heard[1].said) == (True, False)
