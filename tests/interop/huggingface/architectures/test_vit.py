"""Imported ViT models have the logits of transformers, also for images of other sizes."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import ViTConfig, ViTForImageClassification, ViTModel

import regard
from regard.errors import UserError
from regard.interop import import_huggingface
from regard.run import load_model
from tests.interop.huggingface.support import edit_json

SMALL = {
    "hidden_size": 24,
    "intermediate_size": 33,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "image_size": 20,
    "patch_size": 4,
}
LABELS = {"id2label": {0: "cat", 1: "dog", 2: "mouse"}, "label2id": {"cat": 0, "dog": 1, "mouse": 2}}
VARIANTS = {
    "classes": (ViTForImageClassification, LABELS),
    "gray, no biases, large patches": (
        ViTForImageClassification,
        {"num_labels": 5, "num_channels": 1, "qkv_bias": False, "patch_size": 10},
    ),
    "wide images, relu, large eps": (
        ViTForImageClassification,
        {"image_size": [8, 24], "hidden_act": "relu", "layer_norm_eps": 0.1, "num_hidden_layers": 1},
    ),
    "no classes": (ViTModel, {}),
    "no classes, wide pooler": (ViTModel, {"pooler_output_size": 31, "num_attention_heads": 1}),
}


def build(case):
    architecture, changes = case
    return architecture(ViTConfig(**SMALL | changes))


def pixels(theirs, height, width):
    return torch.randn(2, theirs.config.num_channels, height, width, generator=torch.Generator().manual_seed(1))


def hf_output(theirs, images, **options):
    """The logits of their model, or the pooler's output if it has no head."""
    output = theirs(images, **options)
    return output.pooler_output if isinstance(theirs, ViTModel) else output.logits


@pytest.mark.parametrize("case", VARIANTS.values(), ids=VARIANTS.keys())
@torch.no_grad()
def test_outputs_equal_transformers(case, from_hf, equal_tensors):
    theirs = build(case)
    ours = from_hf(theirs)
    images = pixels(theirs, *ours.config.size)
    equal_tensors(ours.logits(images), hf_output(theirs, images))
    vectors = (theirs if isinstance(theirs, ViTModel) else theirs.vit)(images).last_hidden_state
    equal_tensors(ours.model.encode(images), vectors)


@pytest.mark.parametrize("size", [(20, 20), (40, 20), (8, 12), (24, 24), (4, 4)], ids=str)
@torch.no_grad()
def test_logits_of_images_of_other_sizes_equal_transformers(size, from_hf, equal_tensors):
    theirs = build(VARIANTS["classes"])
    images = pixels(theirs, *size)
    equal_tensors(from_hf(theirs).logits(images), hf_output(theirs, images, interpolate_pos_encoding=True))


@torch.no_grad()
def test_logits_in_float64_equal_transformers(from_hf, tmp_path):
    theirs = build(VARIANTS["classes"]).double()
    images = pixels(theirs, 20, 20).double()
    from_hf(theirs)
    ours = load_model(tmp_path / "ours").model  # in the saved dtype; the pipeline computes in float32
    torch.testing.assert_close(ours(images), theirs(images).logits, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_newer_tensor_names_can_be_imported(save_hf, tmp_path, equal_tensors):
    theirs = build(VARIANTS["classes"])
    directory = save_hf(theirs)
    tensors_by_name = {name: tensor.contiguous() for name, tensor in theirs.state_dict().items()}
    assert "vit.layers.0.attention.q_proj.weight" in tensors_by_name
    save_file(tensors_by_name, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    images = pixels(theirs, 20, 20)
    equal_tensors(regard.load(tmp_path / "ours").logits(images), theirs(images).logits)


def test_class_names_are_imported(from_hf):
    assert from_hf(build(VARIANTS["classes"])).config.labels == ("cat", "dog", "mouse")


def test_unnamed_classes_are_numbered(save_hf, tmp_path):
    directory = save_hf(build((ViTForImageClassification, {"num_labels": 7})), id2label=None, num_labels=7)
    import_huggingface(directory, tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config.classes == 7


def test_model_without_a_pooler_returns_the_cls_token(from_hf):
    theirs = ViTModel(ViTConfig(**SMALL), add_pooling_layer=False)
    ours = from_hf(theirs)
    assert ours.config.representation_size is None
    assert ours.logits(pixels(theirs, 20, 20)).shape == (2, 24)


def test_import_describes_the_model(save_hf, tmp_path):
    description = import_huggingface(save_hf(build(VARIANTS["wide images, relu, large eps"])), tmp_path / "ours")
    assert description.endswith(" parameters in float32, for images of 8 × 24 pixels.")


def edit_tensors(edit):
    def corrupt(directory):
        state = load_file(directory / "model.safetensors")
        edit(state)
        save_file(state, directory / "model.safetensors")

    return corrupt


def edit_config(**changes):
    return lambda directory: edit_json(directory / "config.json", **changes)


def write_preprocessor_config(text):
    return lambda directory: (directory / "preprocessor_config.json").write_text(text)


INVALID = {
    "patches that are not square": (
        edit_config(patch_size=[4, 2]),
        r"patch_size is \[4, 2\], which regard cannot import",
    ),
    "patches that do not fill the image": (
        edit_config(image_size=22),
        "patches of 4 pixels do not fill an image of 22 × 22",
    ),
    "three image dimensions": (edit_config(image_size=[1, 2, 3]), r"image_size is \[1, 2, 3\], but should be"),
    "another pooler": (edit_config(pooler_act="relu"), "pooler_act is 'relu', which regard cannot import"),
    "another head": (edit_config(architectures=["ViTForMaskedImageModeling"]), "'ViTForMaskedImageModeling', which"),
    "a class twice": (edit_config(id2label={"0": "a", "1": "a", "2": "b"}), "'a' comes twice"),
    "a class too many": (edit_config(id2label=dict(enumerate("abcd"))), r"classifier.weight has the shape \(3, 24\)"),
    "patches of another size": (
        edit_config(patch_size=2),
        r"projection.weight has the shape \(24, 3, 4, 4\), but config.json calls for \(24, 3, 2, 2\)|position_emb",
    ),
    "no class token": (
        edit_tensors(lambda state: state.pop("vit.embeddings.cls_token")),
        "lacks the tensor vit.embeddings.cls_token",
    ),
    "a tensor too many": (
        edit_tensors(lambda state: state.update({"vit.encoder.layer.3.output.dense.bias": torch.ones(24)})),
        "holds the tensor vit.encoder.layer.3.output.dense.bias, which has no counterpart",
    ),
    "a pickle": (
        lambda directory: (directory / "model.safetensors").rename(directory / "pytorch_model.bin"),
        "only as pytorch_model.bin.*ViTForImageClassification.from_pretrained",
    ),
    "preprocessor config that is not JSON": (write_preprocessor_config("?"), "preprocessor_config.json is not JSON"),
    "center crop": (
        write_preprocessor_config('{"do_center_crop": true}'),
        r"preprocessor_config\.json: regard cannot do what do_center_crop",
    ),
    "shortest edge": (write_preprocessor_config('{"size": {"shortest_edge": 20}}'), "cannot do what size asks for"),
    "unknown resampling": (write_preprocessor_config('{"resample": 9}'), "resample is 9, but should be"),
    "too many means": (
        write_preprocessor_config('{"image_mean": [0, 0, 0, 0]}'),
        "pixels.mean.*4 numbers for 3 channels",
    ),
    "rescale factor of zero": (
        write_preprocessor_config('{"rescale_factor": 0}'),
        "rescale_factor is 0, but should be",
    ),
}


@pytest.mark.parametrize(("corrupt", "message"), INVALID.values(), ids=INVALID.keys())
def test_invalid_folder_is_refused_and_nothing_is_written(corrupt, message, save_hf, tmp_path):
    directory = save_hf(build(VARIANTS["classes"]))
    corrupt(directory)
    with pytest.raises(UserError, match=message) as caught:
        import_huggingface(directory, tmp_path / "ours")
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ours").exists()


def test_import_needs_neither_transformers_nor_pillow(save_hf, tmp_path):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['transformers', 'PIL', 'PIL.Image']));"
        "from regard.interop import import_huggingface, load_image_processor;"
        "import_huggingface(sys.argv[1], sys.argv[2]);"
        "import regard, torch; prepare = load_image_processor(sys.argv[2]);"
        "print(*regard.load(sys.argv[2]).logits(prepare(torch.zeros(31, 17, 3, dtype=torch.uint8))[None]).shape)"
    )
    directory = save_hf(build(VARIANTS["classes"]))
    command = [sys.executable, "-c", code, str(directory), str(tmp_path / "ours")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout, result.stderr) == (0, "1 3\n", "")
