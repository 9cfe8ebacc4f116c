"""ViT models of transformers give the same scores after they are imported, for pictures of other sizes too."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import ViTConfig, ViTForImageClassification, ViTModel

import regard
from regard.errors import UserError
from regard.interop import import_huggingface
from regard.run import load

from .support import edit_json

SMALL = {
    "hidden_size": 24,
    "intermediate_size": 33,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "image_size": 20,
    "patch_size": 4,
}
LABELS = {"id2label": {0: "cat", 1: "dog", 2: "mouse"}, "label2id": {"cat": 0, "dog": 1, "mouse": 2}}
UNLIKE = {
    "classes": (ViTForImageClassification, LABELS),
    "grey, no biases, large patches": (
        ViTForImageClassification,
        {"num_labels": 5, "num_channels": 1, "qkv_bias": False, "patch_size": 10},
    ),
    "wide and low, relu, coarse norm": (
        ViTForImageClassification,
        {"image_size": [8, 24], "hidden_act": "relu", "layer_norm_eps": 0.1, "num_hidden_layers": 1},
    ),
    "no classes": (ViTModel, {}),
    "no classes, a wide pooler": (ViTModel, {"pooler_output_size": 31, "num_attention_heads": 1}),
}


def build(case):
    architecture, changes = case
    return architecture(ViTConfig(**SMALL | changes))


def pixels(theirs, height, width):
    return torch.randn(2, theirs.config.num_channels, height, width, generator=torch.Generator().manual_seed(1))


def given(theirs, pictures, **options):
    found = theirs(pictures, **options)
    return found.pooler_output if isinstance(theirs, ViTModel) else found.logits


@pytest.mark.parametrize("case", UNLIKE.values(), ids=UNLIKE.keys())
@torch.no_grad()
def test_scores_are_those_of_transformers(case, bring, same):
    theirs = build(case)
    ours = bring(theirs)
    pictures = pixels(theirs, *ours.config.size)
    same(ours.logits(pictures), given(theirs, pictures))
    vectors = (theirs if isinstance(theirs, ViTModel) else theirs.vit)(pictures).last_hidden_state
    same(ours.model.encode(pictures), vectors)


@pytest.mark.parametrize("size", [(20, 20), (40, 20), (8, 12), (24, 24), (4, 4)], ids=str)
@torch.no_grad()
def test_pictures_of_another_size_are_seen_as_transformers_sees_them(size, bring, same):
    theirs = build(UNLIKE["classes"])
    pictures = pixels(theirs, *size)
    same(bring(theirs).logits(pictures), given(theirs, pictures, interpolate_pos_encoding=True))


@torch.no_grad()
def test_in_float64_the_difference_is_rounding(bring, tmp_path):
    theirs = build(UNLIKE["classes"]).double()
    pictures = pixels(theirs, 20, 20).double()
    bring(theirs)
    ours = load(tmp_path / "ours").model  # as it was written; what classifies computes in float32
    torch.testing.assert_close(ours(pictures), theirs(pictures).logits, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_names_in_the_newer_spelling_are_read(save_theirs, tmp_path, same):
    theirs = build(UNLIKE["classes"])
    directory = save_theirs(theirs)
    newer = {name: tensor.contiguous() for name, tensor in theirs.state_dict().items()}
    assert "vit.layers.0.attention.q_proj.weight" in newer
    save_file(newer, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    pictures = pixels(theirs, 20, 20)
    same(regard.load(tmp_path / "ours").logits(pictures), theirs(pictures).logits)


def test_classes_have_their_names(bring):
    assert bring(build(UNLIKE["classes"])).config.labels == ("cat", "dog", "mouse")


def test_classes_without_names_are_counted(save_theirs, tmp_path):
    directory = save_theirs(build((ViTForImageClassification, {"num_labels": 7})), id2label=None, num_labels=7)
    import_huggingface(directory, tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config.classes == 7


def test_a_model_saved_without_its_pooler_gives_the_vector_of_the_picture(bring):
    theirs = ViTModel(ViTConfig(**SMALL), add_pooling_layer=False)
    ours = bring(theirs)
    assert ours.config.representation is None
    assert ours.logits(pixels(theirs, 20, 20)).shape == (2, 24)


def test_the_sentence_says_what_came(save_theirs, tmp_path):
    said = import_huggingface(save_theirs(build(UNLIKE["wide and low, relu, coarse norm"])), tmp_path / "ours")
    assert said.endswith(" parameters in float32, for pictures of 8 × 24 pixels.")


def tensors(change):
    def spoil(directory):
        held = load_file(directory / "model.safetensors")
        change(held)
        save_file(held, directory / "model.safetensors")

    return spoil


def settings(**changes):
    return lambda directory: edit_json(directory / "config.json", **changes)


def preparation(text):
    return lambda directory: (directory / "preprocessor_config.json").write_text(text)


WRONG = {
    "patches that are no squares": (settings(patch_size=[4, 2]), r"patch_size is \[4, 2\], which regard cannot import"),
    "patches that do not fill it": (settings(image_size=22), "patches of 4 pixels do not fill a picture of 22 × 22"),
    "three sides": (settings(image_size=[1, 2, 3]), r"image_size is \[1, 2, 3\], but should be"),
    "another pooler": (settings(pooler_act="relu"), "pooler_act is 'relu', which regard cannot import"),
    "another head": (settings(architectures=["ViTForMaskedImageModeling"]), "'ViTForMaskedImageModeling', which"),
    "a class twice": (settings(id2label={"0": "a", "1": "a", "2": "b"}), "'a' comes twice"),
    "a class too many": (settings(id2label=dict(enumerate("abcd"))), r"classifier.weight has the shape \(3, 24\)"),
    "patches of another size": (
        settings(patch_size=2),
        r"projection.weight has the shape \(24, 3, 4, 4\), but config.json calls for \(24, 3, 2, 2\)|position_emb",
    ),
    "no class token": (
        tensors(lambda held: held.pop("vit.embeddings.cls_token")),
        "lacks the tensor vit.embeddings.cls_token",
    ),
    "a tensor too many": (
        tensors(lambda held: held.update({"vit.encoder.layer.3.output.dense.bias": torch.ones(24)})),
        "holds the tensor vit.encoder.layer.3.output.dense.bias, which has no place",
    ),
    "a pickle": (
        lambda directory: (directory / "model.safetensors").rename(directory / "pytorch_model.bin"),
        "only as pytorch_model.bin.*ViTForImageClassification.from_pretrained",
    ),
    "a preparation that is no JSON": (preparation("?"), "preprocessor_config.json is not JSON"),
    "a crop": (
        preparation('{"do_center_crop": true}'),
        r"preprocessor_config\.json: regard cannot do what do_center_crop",
    ),
    "a short edge": (preparation('{"size": {"shortest_edge": 20}}'), "cannot do what size asks for"),
    "an unknown way to resize": (preparation('{"resample": 9}'), "resample is 9, but should be"),
    "too many means": (preparation('{"image_mean": [0, 0, 0, 0]}'), "pixels.mean.*4 numbers for 3 channels"),
    "a scale of nothing": (preparation('{"rescale_factor": 0}'), "rescale_factor is 0, but should be"),
}


@pytest.mark.parametrize(("spoil", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_gets_one_sentence_and_nothing_is_written(spoil, sentence, save_theirs, tmp_path):
    directory = save_theirs(build(UNLIKE["classes"]))
    spoil(directory)
    with pytest.raises(UserError, match=sentence) as caught:
        import_huggingface(directory, tmp_path / "ours")
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ours").exists()


def test_neither_their_library_nor_pillow_is_needed(save_theirs, tmp_path):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['transformers', 'PIL', 'PIL.Image']));"
        "from regard.interop import import_huggingface, preparation_of; import_huggingface(sys.argv[1], sys.argv[2]);"
        "import regard, torch; prepare = preparation_of(sys.argv[2]);"
        "print(*regard.load(sys.argv[2]).logits(prepare(torch.zeros(31, 17, 3, dtype=torch.uint8))[None]).shape)"
    )
    directory = save_theirs(build(UNLIKE["classes"]))
    command = [sys.executable, "-c", code, str(directory), str(tmp_path / "ours")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 3\n", "")
