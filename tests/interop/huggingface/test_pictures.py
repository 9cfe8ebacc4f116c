"""Pictures are prepared for an imported model as transformers prepares them."""

import importlib
import json

import numpy as np
import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

import regard
from regard.errors import UserError
from regard.interop import import_huggingface
from regard.interop.huggingface import Preparation, pictures, preparation_of
from regard.interop.huggingface.pictures import read_preparation
from regard.interop.huggingface.settings import Settings

Image = pytest.importorskip("PIL.Image")

STEP = 2 / 255
"""One grey level, where pixels run from -1 to 1."""


def scene(height=97, width=141, channels=3):
    """A picture with slopes, an edge, a texture and noise."""
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(0).normal(0, 12, (height, width, channels))
    base = np.stack([255 * x / width, 255 * y / height, 127 + 100 * np.sin(x * y / 60)], -1)[..., :channels]
    base[height // 3 : height // 2, width // 4 : width // 2] = 250
    return np.clip(base + noise, 0, 255).astype(np.uint8)


UNLIKE = {
    "usual": {},
    "bicubic": {"resample": 3},
    "lanczos": {"resample": 1},
    "nearest": {"resample": 0},
    "wide": {"size": {"height": 20, "width": 40}},
    "larger": {"size": {"height": 160, "width": 160}},
    "ImageNet's means": {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
    "no mean": {"do_normalize": False},
    "from -1 to 1 by scale alone": {"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3},
    "not scaled": {"do_rescale": False, "image_mean": [127.0] * 3, "image_std": [64.0] * 3},
    "not resized": {"do_resize": False},
}


def theirs_of(settings):
    module = importlib.import_module("transformers.models.vit.image_processing_pil_vit")
    return module.ViTImageProcessorPil(**{"size": {"height": 32, "width": 32}} | settings)


@pytest.mark.parametrize("settings", UNLIKE.values(), ids=UNLIKE.keys())
def test_pixels_are_those_of_their_image_processor(settings, tmp_path):
    theirs = theirs_of(settings)
    theirs.save_pretrained(tmp_path)
    noted = json.loads((tmp_path / "preprocessor_config.json").read_text())
    prepare = read_preparation(Settings(noted, "preprocessor_config.json"))
    picture = Image.fromarray(scene())
    expected = torch.from_numpy(np.asarray(theirs(picture)["pixel_values"][0]))
    for given in (picture, scene(), torch.from_numpy(scene())):
        found = prepare(given)
        spread = (expected.max() - expected.min()).item()
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected.float(), rtol=0, atol=0.01 * STEP * spread / 2)


@pytest.mark.parametrize("name", ["usual", "bicubic", "nearest", "larger"])
def test_without_pillow_arrays_are_resized_within_one_grey_level(name, monkeypatch):
    settings = {"size": {"height": 32, "width": 32}} | UNLIKE[name]
    prepare = read_preparation(Settings(settings, ""))
    expected = prepare(scene())
    monkeypatch.setattr(pictures, "_pillow", lambda: None)
    assert (prepare(scene()) - expected).abs().max() <= 1.01 * STEP


def test_without_pillow_other_ways_of_resizing_are_refused(monkeypatch):
    monkeypatch.setattr(pictures, "_pillow", lambda: None)
    with pytest.raises(UserError, match="only Pillow knows; pip install pillow, or give them at 224 × 224 pixels"):
        Preparation(resample=1)(scene())


def test_grey_and_transparent_pictures_are_taken():
    prepare = Preparation((8, 8))
    assert prepare(Image.fromarray(scene(channels=1)[..., 0])).shape == (1, 8, 8)
    assert prepare(Image.fromarray(scene()).convert("RGBA")).shape == (3, 8, 8)
    assert prepare(scene(channels=1)).shape == (1, 8, 8)


def test_other_arrays_are_refused():
    with pytest.raises(UserError, match=r"whole numbers from 0 to 255 .* found \(4, 4, 3\) of torch.float64"):
        Preparation()(np.zeros((4, 4, 3)))


def test_an_old_size_is_one_number_for_both_sides():
    assert read_preparation(Settings({"size": 48, "image_mean": 0.5, "image_std": 0.5}, "")).size == (48, 48)


@torch.no_grad()
def test_an_imported_model_sees_a_picture_as_theirs_does(save_theirs, tmp_path, same):
    shape = {"hidden_size": 24, "intermediate_size": 30, "num_hidden_layers": 2, "num_attention_heads": 4}
    theirs = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=5, **shape))
    directory = save_theirs(theirs)
    processor = theirs_of({"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]})
    processor.save_pretrained(directory)
    import_huggingface(directory, tmp_path / "ours")
    ours, prepare = regard.load(tmp_path / "ours"), preparation_of(tmp_path / "ours")
    picture = Image.fromarray(scene())
    assert ours.config.pixels == prepare.pixels
    expected = theirs(torch.from_numpy(np.asarray(processor(picture)["pixel_values"]))).logits
    same(ours.logits(prepare(picture)[None]), expected)


def test_a_model_for_text_is_refused():
    with pytest.raises(UserError, match="en-tr holds no model that takes pictures"):
        preparation_of("en-tr")


def test_where_nothing_is_said_pictures_get_the_size_of_the_model(bring, tmp_path):
    shape = {"hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 1, "num_attention_heads": 2}
    bring(ViTForImageClassification(ViTConfig(image_size=[8, 24], patch_size=4, **shape)))
    assert preparation_of(tmp_path / "ours") == Preparation((8, 24))
