"""Images are preprocessed for an imported model as in transformers."""

import importlib
import json

import numpy as np
import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

import regard
from regard.errors import UserError
from regard.interop import import_huggingface
from regard.interop.huggingface import ImageProcessor, image_processor, load_image_processor
from regard.interop.huggingface.hf_config import HFConfig
from regard.interop.huggingface.image_processor import read_image_processor

Image = pytest.importorskip("PIL.Image")

GRAY_LEVEL = 2 / 255
"""One of 256 gray levels, for pixels from -1 to 1."""


def sample_image(height=97, width=141, channels=3):
    """An image with gradients, an edge, a texture and noise."""
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(0).normal(0, 12, (height, width, channels))
    base = np.stack([255 * x / width, 255 * y / height, 127 + 100 * np.sin(x * y / 60)], -1)[..., :channels]
    base[height // 3 : height // 2, width // 4 : width // 2] = 250
    return np.clip(base + noise, 0, 255).astype(np.uint8)


VARIANTS = {
    "default": {},
    "bicubic": {"resample": 3},
    "lanczos": {"resample": 1},
    "nearest": {"resample": 0},
    "wide": {"size": {"height": 20, "width": 40}},
    "larger": {"size": {"height": 160, "width": 160}},
    "ImageNet's means": {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
    "no mean": {"do_normalize": False},
    "from -1 to 1 by rescaling": {"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3},
    "not rescaled": {"do_rescale": False, "image_mean": [127.0] * 3, "image_std": [64.0] * 3},
    "not resized": {"do_resize": False},
}


def hf_image_processor(hf_config):
    module = importlib.import_module("transformers.models.vit.image_processing_pil_vit")
    return module.ViTImageProcessorPil(**{"size": {"height": 32, "width": 32}} | hf_config)


@pytest.mark.parametrize("hf_config", VARIANTS.values(), ids=VARIANTS.keys())
def test_pixels_equal_transformers(hf_config, tmp_path):
    theirs = hf_image_processor(hf_config)
    theirs.save_pretrained(tmp_path)
    hf_settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    prepare = read_image_processor(HFConfig(hf_settings, "preprocessor_config.json"))
    image = Image.fromarray(sample_image())
    expected = torch.from_numpy(np.asarray(theirs(image)["pixel_values"][0]))
    for image_input in (image, sample_image(), torch.from_numpy(sample_image())):
        actual = prepare(image_input)
        value_range = (expected.max() - expected.min()).item()
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, expected.float(), rtol=0, atol=0.01 * GRAY_LEVEL * value_range / 2)


@pytest.mark.parametrize("name", ["default", "bicubic", "nearest", "larger"])
def test_without_pillow_arrays_are_resized_within_one_gray_level(name, monkeypatch):
    hf_config = {"size": {"height": 32, "width": 32}} | VARIANTS[name]
    prepare = read_image_processor(HFConfig(hf_config, ""))
    expected = prepare(sample_image())
    monkeypatch.setattr(image_processor, "_pillow", lambda: None)
    assert (prepare(sample_image()) - expected).abs().max() <= 1.01 * GRAY_LEVEL


def test_without_pillow_other_resampling_is_refused(monkeypatch):
    monkeypatch.setattr(image_processor, "_pillow", lambda: None)
    with pytest.raises(UserError, match="only Pillow knows; pip install pillow, or give them at 224 × 224 pixels"):
        ImageProcessor(resample=1)(sample_image())


def test_gray_and_transparent_images():
    prepare = ImageProcessor((8, 8))
    assert prepare(Image.fromarray(sample_image(channels=1)[..., 0])).shape == (1, 8, 8)
    assert prepare(Image.fromarray(sample_image()).convert("RGBA")).shape == (3, 8, 8)
    assert prepare(sample_image(channels=1)).shape == (1, 8, 8)


def test_other_arrays_are_refused():
    with pytest.raises(UserError, match=r"whole numbers from 0 to 255 .* found \(4, 4, 3\) of torch.float64"):
        ImageProcessor()(np.zeros((4, 4, 3)))


def test_old_size_is_one_number_for_height_and_width():
    assert read_image_processor(HFConfig({"size": 48, "image_mean": 0.5, "image_std": 0.5}, "")).size == (48, 48)


@torch.no_grad()
def test_logits_of_an_image_equal_transformers(save_hf, tmp_path, equal_tensors):
    shape = {"hidden_size": 24, "intermediate_size": 30, "num_hidden_layers": 2, "num_attention_heads": 4}
    theirs = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=5, **shape))
    directory = save_hf(theirs)
    processor = hf_image_processor({"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]})
    processor.save_pretrained(directory)
    import_huggingface(directory, tmp_path / "ours")
    ours, prepare = regard.load(tmp_path / "ours"), load_image_processor(tmp_path / "ours")
    image = Image.fromarray(sample_image())
    assert ours.config.pixels == prepare.pixels
    expected = theirs(torch.from_numpy(np.asarray(processor(image)["pixel_values"]))).logits
    equal_tensors(ours.logits(prepare(image)[None]), expected)


def test_text_model_is_refused():
    with pytest.raises(UserError, match="en-tr holds no model that takes pictures"):
        load_image_processor("en-tr")


def test_default_image_size_is_that_of_the_model(from_hf, tmp_path):
    shape = {"hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 1, "num_attention_heads": 2}
    from_hf(ViTForImageClassification(ViTConfig(image_size=[8, 24], patch_size=4, **shape)))
    assert load_image_processor(tmp_path / "ours") == ImageProcessor((8, 24))
