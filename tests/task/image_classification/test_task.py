"""The image classification task and pipeline."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import regard
from regard import UserError
from regard.cost import Workload
from regard.data.images.augment import Augmented
from regard.data.images.dataset import ImagesConfig, read_images
from regard.interop import load_image_processor
from regard.model import VisionTransformerConfig
from regard.run import read_metadata, save_model
from regard.task.evaluate import evaluate
from regard.task.image_classification.pipeline import ImageClassifier
from regard.task.image_classification.recipe import ImageClassificationRecipe
from regard.task.image_classification.task import ImageClassificationTask, class_loss
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from regard.train.distributed.process_group import SINGLE_PROCESS
from regard.train.loss import Loss
from regard.train.step import TrainStep, forward_in_precision
from tests.task.small import RecordingCallback, quick_runs
from tests.task.small_images import CLASSES, no_host_sync, small_images, write_arrays, write_recipe

EXACT = {"rtol": 1e-10, "atol": 1e-10}
STRONG = ["augment.crop=1", "augment.flip=0.5", "augment.erase=0.5", "augment.mixup=0.4", "augment.cutmix=1.0"]


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    path = write_recipe(folder, "train.steps=80", "train.validate_every=40", "train.save_every=40")
    train(read_recipe(path), folder / "run")
    return folder / "run"


def opened(path: Path, *changes: str) -> ImageClassificationTask:
    recipe = read_recipe(path, changes)
    assert isinstance(recipe, ImageClassificationRecipe)
    return ImageClassificationTask.prepare(recipe, Path(), lambda message: None, SINGLE_PROCESS)


# A run


def test_small_dataset_is_learned(trained: Path) -> None:
    scores = read_metadata(trained)["origin"]["scores"]["test"]
    assert scores["accuracy"] == 100
    assert (scores["items"], scores["items_by_class"]) == (30, dict.fromkeys(CLASSES, 10))
    assert scores["loss"] < 0.3


def test_run_folder_is_complete(trained: Path) -> None:
    assert {"recipe.toml", "run.json", "model.safetensors", "README.md", "metrics.jsonl"} <= set(os.listdir(trained))
    metadata = read_metadata(trained)
    assert metadata["model"]["classes"] == list(CLASSES)
    assert metadata["model"]["image_size"] == [4, 4]
    assert metadata["origin"]["fit"] == "crop"
    card = (trained / "README.md").read_text()
    assert "regard classify THIS-FOLDER" in card
    assert "1,000 images, seed 1" in card  # 80 steps: 20 epochs of 50
    assert "| test set | accuracy | balanced accuracy | loss | correct | items |" in card.replace(" nats |", "")


def test_metrics_have_validation_loss_and_accuracy(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    measured = [line for line in lines if "valid/accuracy" in line]
    assert [line["step"] for line in measured] == [40, 80]
    assert measured[-1]["valid/accuracy"] == 100
    assert 0 < measured[-1]["valid/loss"] < 0.3


def test_finished_run_is_scored_again(trained: Path) -> None:
    again = train(read_recipe(trained), trained, resume=True)
    assert again.scores["test"].rounded() == read_metadata(trained)["origin"]["scores"]["test"]


def test_training_on_a_folder(tmp_path: Path) -> None:
    pixels, labels = small_images(30)
    for number, (image_pixels, label) in enumerate(zip(pixels, labels, strict=True)):
        place = tmp_path / "train" / CLASSES[label] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image_pixels).resize((12, 8)).save(place)
    like = ["data.train.size=4", "data.train.channels=1", "data.train.fit=stretch"]
    path = write_recipe(tmp_path, f"data.train.path={tmp_path / 'train'}", "train.steps=3", *like)
    trained = train(read_recipe(path), tmp_path / "run")
    metadata = read_metadata(trained.folder)
    assert (metadata["model"]["image_size"], metadata["model"]["channels"]) == ([4, 4], 1)
    assert metadata["origin"]["fit"] == "stretch"
    recipe = read_recipe(tmp_path / "run")
    assert isinstance(recipe, ImageClassificationRecipe)
    assert recipe.data.valid is not None
    assert recipe.data.valid.fit == recipe.data.test["test"].fit == "stretch"


def test_user_data(tmp_path: Path) -> None:
    for number in range(40):
        place = tmp_path / "own" / "ab"[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (5, 7), (number, 0, 0)).save(place)
    path = write_recipe(tmp_path, "data.train.size=4", "data.train.channels=1")
    recipe = read_recipe(path, ["train.steps=2"], data=tmp_path / "own")
    trained = train(recipe, tmp_path / "run")
    assert trained.scores["held-out"].items == 2
    metadata = read_metadata(tmp_path / "run")
    assert (metadata["model"]["classes"], metadata["model"]["image_size"], metadata["model"]["channels"]) == (
        ["a", "b"],
        [4, 4],
        1,
    )


# The loss


def brute_loss(logits: Tensor, images: Augmented, smoothing: float) -> tuple[float, float]:
    """Row by row, from the target distribution."""
    total = nll = 0.0
    for row, label, other, weight in zip(logits, images.labels, images.mixed_labels, images.weight, strict=True):
        if label >= 0:
            target = torch.zeros_like(row)
            target[label] += weight
            target[other] += 1 - weight
            logprobs = row.log_softmax(-1)
            nll -= float(target @ logprobs)
            total -= float(((1 - smoothing) * target + smoothing / len(row)) @ logprobs)
    return total, nll


def mixed() -> tuple[Tensor, Augmented]:
    torch.manual_seed(1)
    labels, mixed_labels = torch.tensor([0, 2, 1, 1, -1]), torch.tensor([2, 2, 0, 1, -1])
    weight = torch.tensor([0.3, 1.0, 0.5, 0.0, 1.0], dtype=torch.float64)
    return torch.randn(5, 3, dtype=torch.float64), Augmented(torch.zeros(5, 1, 2, 2), labels, mixed_labels, weight)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_equals_cross_entropy_with_the_target_distribution(smoothing: float) -> None:
    logits, images = mixed()
    loss = class_loss(logits, images, smoothing)
    assert (float(loss.total), float(loss.nll)) == pytest.approx(brute_loss(logits, images, smoothing))
    assert int(loss.count) == 4


def test_empty_rows_have_no_gradient() -> None:
    logits, images = mixed()
    logits.requires_grad_()
    class_loss(logits, images, 0.1).total.backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad[4], torch.zeros(3, dtype=torch.float64))
    assert (logits.grad[:4] != 0).all()


def test_loss_is_computed_in_float32() -> None:
    logits, images = mixed()
    low = logits.to(torch.bfloat16)
    assert class_loss(low, images).total.dtype == torch.float32
    torch.testing.assert_close(class_loss(low, images).total, class_loss(low.float(), images).total)


def together(losses: list[Loss]) -> Loss:
    total = losses[0]
    for one in losses[1:]:
        total = total + one
    return total


def test_microbatch_losses_sum_to_the_batch_loss(tmp_path: Path) -> None:
    task = opened(write_recipe(tmp_path))
    task.model.eval().double()
    batch = next(iter(task.batches.in_order()))
    whole = task.loss(task.model, batch)
    parts = together([task.loss(task.model, part) for part in batch.split(3)])
    torch.testing.assert_close(parts.total, whole.total, **EXACT)
    torch.testing.assert_close(parts.nll, whole.nll, **EXACT)
    assert int(parts.count) == int(whole.count) == batch.count


def test_loss_without_augmentation_and_smoothing_is_the_nll(tmp_path: Path) -> None:
    task = opened(write_recipe(tmp_path), "train.loss.label_smoothing=0.0")
    task.model.eval().double()
    for batch in task.validation_batches():
        torch.testing.assert_close(task.loss(task.model, batch).total, task.nll(task.model, batch).nll, **EXACT)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "changes",
    [[], STRONG, [*STRONG, "train.loss.r_drop=2.0"], ["augment.cutmix=1.0", "data.train.channels=3"]],
    ids=str,
)
def test_training_step_does_not_synchronize(changes: list[str], precision: str, tmp_path: Path) -> None:
    """Otherwise it could not be captured in a CUDA graph."""
    task = opened(write_recipe(tmp_path), *changes, "model.registers=1", "train.batch_tokens=96")
    batch = next(task.batches.epochs())
    for pixels in ({}, {"pixels": {"mean": [0.4], "std": [0.2]}}):
        task.model.config = VisionTransformerConfig.read(task.model.config.plain() | pixels)
        gradients = TrainStep(task, precision, forward_in_precision(task.model, precision))
        scale = torch.ones(())
        with no_host_sync():
            loss = gradients.backward(batch, scale)
        assert loss.total.isfinite()


def test_every_parameter_has_a_gradient(tmp_path: Path) -> None:
    task = opened(write_recipe(tmp_path), *STRONG, "model.registers=1", "train.batch_tokens=96")
    task.loss(task.model, next(task.batches.epochs())).mean.backward()
    for name, parameter in task.model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0 or name.endswith("key.bias"), name


def test_training_in_bfloat16(tmp_path: Path) -> None:
    trained = train(read_recipe(write_recipe(tmp_path), ["train.precision=bfloat16", *STRONG]), tmp_path / "run")
    assert trained.scores["test"].items == 30


# Scores


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_score_equals_image_by_image_computation(rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = opened(write_recipe(tmp_path))
    monkeypatch.setattr("regard.task.image_classification.task._VALIDATION_TOKENS", 5 * rows)
    dataset = task.evaluation_data["test"]
    result = task.score(dataset)
    correct, nats = 0, 0.0
    with torch.no_grad():
        for pixels, label in zip(dataset.pixels, dataset.labels, strict=True):
            logprobs = task.model(task.model.config.pixels.apply(pixels[None])).log_softmax(-1)[0]
            nats -= float(logprobs[label])
            correct += int(logprobs.argmax() == label)
    assert (result.correct, result.items) == (correct, 30)
    assert result.nats == pytest.approx(nats, rel=1e-5)


def test_validation_loss_equals_the_scores_loss(tmp_path: Path) -> None:
    task = opened(write_recipe(tmp_path))
    task.model.eval()
    with torch.no_grad():
        loss = together([task.nll(task.model, batch) for batch in task.validation_batches()])
    assert float(loss.nll) == pytest.approx(task.score(task.evaluation_data["valid"]).nats, rel=1e-5)
    assert int(loss.count) == 20


# The pipeline


@pytest.fixture(scope="module")
def classifier(trained: Path) -> ImageClassifier:
    return ImageClassifier.load(trained)


def test_load_gives_a_classifier(trained: Path) -> None:
    model = regard.load(trained)
    assert isinstance(model, ImageClassifier)
    assert model.labels == CLASSES


def test_classes_are_sorted_by_probability(classifier: ImageClassifier) -> None:
    pixels, labels = small_images(6, seed=9)
    for image_pixels, label in zip(pixels, labels, strict=True):
        result = classifier.classify(torch.from_numpy(image_pixels))
        assert result[0][0] == CLASSES[label]
        assert {name for name, _ in result} == set(CLASSES)
        assert sum(p for _, p in result) == pytest.approx(1)
        assert [p for _, p in result] == sorted((p for _, p in result), reverse=True)
    assert classifier.classify(pixels[0], top=1) == classifier.classify(pixels[0])[:1]
    assert len(classifier.classify(pixels[0], top=99)) == 3


def test_files_images_and_arrays_give_the_same(classifier: ImageClassifier, tmp_path: Path) -> None:
    image_pixels = small_images(1, seed=9)[0][0]
    image = Image.fromarray(image_pixels)
    image.save(tmp_path / "one.png")
    expected = classifier.classify(image_pixels)
    for same in (tmp_path / "one.png", str(tmp_path / "one.png"), image, torch.from_numpy(image_pixels)[None],
                 image_pixels[:, :, None], image_pixels.astype(np.float64) / 255):  # fmt: skip
        assert classifier.classify(same) == expected


def test_batch_equals_single_images(classifier: ImageClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    given = list(small_images(11, seed=9)[0])
    reported: list[int] = []
    monkeypatch.setattr("regard.task.image_classification.pipeline.BATCH_TOKENS", {"cpu": 20})  # four at a time
    result = classifier.classify(given, progress=reported.append)
    assert reported == [4, 8, 11]
    for one, image_pixels in zip(result, given, strict=True):
        alone = classifier.classify(image_pixels)
        assert [name for name, _ in one] == [name for name, _ in alone]
        assert [p for _, p in one] == pytest.approx([p for _, p in alone], abs=1e-6)


def test_preprocessing_equals_that_of_training(trained: Path, classifier: ImageClassifier, tmp_path: Path) -> None:
    """A rotated RGB image of another size is preprocessed like those of the training set."""
    rng = np.random.default_rng(1)
    image = Image.fromarray(rng.integers(0, 256, (9, 14, 3)).astype(np.uint8))
    exif = image.getexif()
    exif[0x0112] = 6  # rotated by 90 degrees
    for folder in ("a", "b"):
        (tmp_path / "set" / folder).mkdir(parents=True)
        image.save(tmp_path / "set" / folder / "one.png", exif=exif)
    data = read_images(ImagesConfig(path=str(tmp_path / "set"), size=4, channels=1))
    expected = classifier.vision_transformer.config.pixels.apply(data.pixels[0])
    path = tmp_path / "set" / "a" / "one.png"
    torch.testing.assert_close(classifier.pixels(path), expected, rtol=0, atol=0)
    with Image.open(path) as opened_image:
        torch.testing.assert_close(classifier.pixels(opened_image), expected, rtol=0, atol=0)


def test_fit_is_recorded(trained: Path, tmp_path: Path) -> None:
    model = ImageClassifier.load(trained).model
    wide = np.concatenate([np.zeros((4, 8)), np.full((4, 8), 255)], axis=1).astype(np.uint8)
    for fit in ("crop", "stretch"):
        save_model(model, tmp_path / fit, origin={"fit": fit})
    cut, whole = (ImageClassifier.load(tmp_path / fit).pixels(wide) for fit in ("crop", "stretch"))
    assert not torch.equal(cut, whole)


def test_imported_model_uses_its_preprocessor(tmp_path: Path) -> None:
    """Resized as a whole, bilinearly, and normalized by the config; also where it does not ask to be resized."""
    levels = np.random.default_rng(1).integers(0, 256, (9, 14, 3)).astype(np.uint8)
    Image.fromarray(levels).save(tmp_path / "one.png")
    config = VisionTransformerConfig(image_size=4, patch_size=2, width=8, classes=2, pixels={"mean": (0.1, 0.2, 0.3)},
                                     encoder={"layers": 1, "attention": {"heads": 2}})  # fmt: skip
    preprocessor = {
        "size": {"height": 4, "width": 4},
        "resample": 2,
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.5] * 3,
    }
    save_model(config.build(), tmp_path / "run", origin={"preprocessor": preprocessor})
    save_model(config.build(), tmp_path / "as-it-is", origin={"preprocessor": preprocessor | {"do_resize": False}})
    classifier = ImageClassifier.load(tmp_path / "run")
    expected = load_image_processor(tmp_path / "run")(levels)
    torch.testing.assert_close(classifier.pixels(tmp_path / "one.png"), expected, rtol=0, atol=0)
    torch.testing.assert_close(classifier.pixels(levels), expected, rtol=0, atol=0)
    assert ImageClassifier.load(tmp_path / "as-it-is").pixels(levels).shape == (3, 4, 4)
    assert isinstance(regard.load(tmp_path / "run"), ImageClassifier)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((1, 1, 4, 4), np.uint8), "found 4 dimensions. Give several images as a list"),
        (np.full((4, 4), 300), "range from 300 to 300"),
        (17, "An image must be a path"),
        (Image.new("F", (4, 4)), "The image cannot be read"),
    ],
)
def test_invalid_images_are_refused(given: Any, message: str, classifier: ImageClassifier) -> None:
    with pytest.raises(UserError, match=message):
        classifier.classify(given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": 0}, "has no classes"),
        ({"channels": 2, "classes": 2}, "takes 2 channels"),
    ],
)
def test_model_that_is_not_a_classifier_is_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    stack = {"layers": 1, "attention": {"heads": 2}}
    config = VisionTransformerConfig(image_size=4, patch_size=2, width=8, encoder=stack, **settings)
    save_model(config.build(), tmp_path / "run")
    with pytest.raises(UserError, match=message):
        ImageClassifier.load(tmp_path / "run")


# Starting from another model


def test_init_from(trained: Path, tmp_path: Path) -> None:
    callback = RecordingCallback()
    path = write_recipe(tmp_path, "model={}", f"init_from={trained}")
    recipe = read_recipe(path, ["train.steps=1", "train.schedule.lr=1e-9"])
    begun = train(recipe, tmp_path / "run", callback=callback)
    assert begun.scores["test"].accuracy == 100
    assert f"Starting from the weights of {trained}." in callback.text
    assert read_metadata(tmp_path / "run")["model"]["width"] == 16


def test_init_from_with_other_classes_and_size(trained: Path, tmp_path: Path) -> None:
    path = write_recipe(
        tmp_path, "model={}", f"init_from={trained}", train={"path": "train.npz"}, valid={"path": "valid.npz"}
    )
    write_arrays(tmp_path / "train.npz", 30, size=8)
    write_arrays(tmp_path / "valid.npz", 9, size=8)
    task = opened(path, "train.batch_tokens=100")
    first = ImageClassifier.load(trained).vision_transformer
    assert task.model.config.labels == ("0", "1", "2")
    assert task.model.config.grid == (4, 4)
    mine, theirs = task.model.state_dict(), first.state_dict()
    torch.testing.assert_close(mine["embed_positions.weight"][1:].view(4, 4, 16), first.embed_positions(4, 4).detach())
    assert torch.equal(mine["embed_positions.weight"][0], theirs["embed_positions.weight"][0])
    assert not torch.equal(mine["head.classifier.weight"], theirs["head.classifier.weight"])
    for name in mine.keys() - {"embed_positions.weight", "head.classifier.weight", "head.classifier.bias"}:
        assert torch.equal(mine[name], theirs[name]), name


def test_weights_of_another_shape_are_refused(trained: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, f"init_from={trained}", "model.width=32")
    with pytest.raises(UserError, match=r"does not fit the recipe's model: .* Leave \[model\] out"):
        opened(path)


# Classes that the training set does not have


def test_classes_that_only_a_test_set_has_count_as_errors(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    before = train(read_recipe(path), tmp_path / "before").scores["test"]
    with np.load(tmp_path / "test.npz") as arrays:
        pixels, labels = (np.concatenate((arrays[key], arrays[key][:2])) for key in ("images", "labels"))
    labels[-2:] = 4
    np.savez(tmp_path / "test.npz", images=pixels, labels=labels)
    callback = RecordingCallback()
    scored = train(read_recipe(path), tmp_path / "run", callback=callback).scores["test"]
    (line,) = [message for message in callback.messages if "training data" in message]
    assert line.startswith("test: the training data has no '4',")
    assert (scored.items, scored.correct) == (before.items + 2, before.correct)
    assert scored.loss == pytest.approx(before.loss)
    assert evaluate(tmp_path / "run")["test"].rounded() == scored.rounded()


def test_folder_of_another_class_in_the_validation_set_counts_as_errors(tmp_path: Path) -> None:
    for part, classes in (("train", "ab"), ("valid", "acb")):
        for name in classes:
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(3):
                Image.new("L", (4, 4), 80 * ord(name) % 256).save(tmp_path / part / name / f"{number}.png")
    path = write_recipe(tmp_path, train={"path": "train", "channels": 1}, valid={"path": "valid"}, test={})
    callback = RecordingCallback()
    scored = train(read_recipe(path), tmp_path / "run", callback=callback).scores["valid"]
    assert scored.items_by_class == {"a": 3, "b": 3, "c": 3}
    assert scored.correct_by_class["c"] == 0
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert np.isfinite([values["valid/loss"] for values in metrics if "valid/loss" in values]).all()


# Errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["data.train.path=nowhere.npz"], "nowhere.npz: there is no such file or folder"),
        (["model.classes=9"], "model.classes: this follows from the data"),
        (["model.image_size=9"], "model.image_size: this follows from the data"),
        (["data.train.size=5"], "model.patch_size: patches of 2 pixels do not fill .* 5 × 5"),
        (["model.patch_size=3"], "model.patch_size: patches of 3 pixels do not fill .* 4 × 4"),
        (["train.batch_tokens=3"], "train.batch_tokens: found 3; one image of 4 × 4 has 5 tokens"),
        (["train.batch_tokens=3", "data.train.size=4"], "train.batch_tokens: found 3; one image of 4 × 4 has 5 tokens"),
        (["train.length_buckets=4"], "train.length_buckets: found 4, but all images have the same size"),
        (["data.valid.size=8"], "of 8 × 8 with 1 channel, but the training set has images of 4 × 4"),
        (["data.test.test.keys=['a','b']"], "has no array named 'a'"),
        (["data.train.labels=other.npy"], "data.train.labels: train.npz contains its labels"),
        (["augment.flop=0.5"], "did you mean 'flip'"),
        (["init_from=nowhere"], "nowhere: there is no such folder"),
    ],
    ids=str,
)  # fmt: skip
def test_errors_leave_no_run_folder(change: list[str], message: str, tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    with pytest.raises(UserError, match=message):
        train(read_recipe(path, [*(["model={}"] if "init_from=nowhere" in change else []), *change]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def image_folder(folder: Path) -> Path:
    for name in ("left", "right"):
        (folder / name).mkdir(parents=True)
        Image.new("L", (4, 4)).save(folder / name / "one.png")
    return folder


def remove_image(folder: Path) -> None:
    (folder / "right" / "one.png").unlink()


def damage_image(folder: Path) -> None:
    (folder / "right" / "one.png").write_text("no image")


def remove_class(folder: Path) -> None:
    (folder / "right" / "one.png").unlink()
    (folder / "right").rmdir()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (remove_image, "right has no images"),
        (damage_image, "one.png is not an image, or damaged"),
        (remove_class, "has only one class, 'left'"),
    ],
)
def test_invalid_folders_are_refused(spoil: Any, message: str, tmp_path: Path) -> None:
    spoil(image_folder(tmp_path / "folder"))
    path = write_recipe(tmp_path, train={"path": "folder", "size": 4})
    with pytest.raises(UserError, match=message):
        train(read_recipe(path), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_label_path_is_relative_to_the_recipe(tmp_path: Path) -> None:
    path = write_recipe(tmp_path, train={"path": "images", "labels": "labels"})
    recipe = read_recipe(path)
    assert isinstance(recipe, ImageClassificationRecipe)
    assert recipe.data.train.labels == str(tmp_path / "labels")


def test_workload_matches_the_batches(tmp_path: Path) -> None:
    task = opened(write_recipe(tmp_path), "train.grad_accumulation=3", "train.loss.r_drop=1.0", "train.batch_tokens=50")
    work, batch = task.workload(), next(iter(task.batches.epochs()))
    assert work == Workload(10, 5, steps=12, grad_accumulation=3, forward_passes=2)
    assert (work.batch_size, work.target_length) == (len(batch.labels), task.model.config.sequence_length)
    assert task.recipe.expected_workload().steps == work.steps  # of images of the expected size, as none is configured


def test_settings_that_need_validation_data_are_reported(tmp_path: Path) -> None:
    path = write_recipe(tmp_path, test={"test": {"path": "test.npz"}})
    overrides, callbacks = (
        ["train.final_weights=best", "train.patience=2", "train.steps=4", "data.dev_size=0"],
        [RecordingCallback(), RecordingCallback()],
    )
    train(read_recipe(path, overrides), tmp_path / "without", callback=callbacks[0])
    train(
        read_recipe(path, [*overrides, f"data.valid.path={tmp_path / 'valid.npz'}"]),
        tmp_path / "with",
        callback=callbacks[1],
    )
    message = (
        'There is no validation data (data.valid), so train.final_weights = "best" saves the last weights and '
        "train.patience = 2 never stops it early."
    )
    assert (message in callbacks[0].messages, message in callbacks[1].messages) == (True, False)
