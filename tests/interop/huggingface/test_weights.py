"""Weight files: single and sharded, of one dtype and of several, complete and damaged."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

import regard
from regard.errors import UserError
from regard.interop import import_huggingface
from regard.interop.huggingface.weights import Weights
from tests.interop.huggingface.support import ids


def build():
    return GPT2LMHeadModel(GPT2Config(vocab_size=23, n_embd=12, n_head=3, n_layer=2, n_positions=12))


@pytest.fixture
def sharded(save_hf):
    """A model in several safetensors files."""
    theirs = build()
    directory = save_hf(theirs)
    (directory / "model.safetensors").unlink()
    theirs.save_pretrained(directory, max_shard_size="8KB")
    assert len(list(directory.glob("*.safetensors"))) > 2
    return theirs, directory


def assert_refused(directory, out, message):
    with pytest.raises(UserError, match=message):
        import_huggingface(directory, out)
    assert not out.exists()


def test_sharded_model_equals_transformers(sharded, tmp_path, check_padded_language_model):
    theirs, directory = sharded
    import_huggingface(directory, tmp_path / "ours")
    check_padded_language_model(theirs, regard.load(tmp_path / "ours"))


def test_missing_shard_is_named(sharded, tmp_path):
    _, directory = sharded
    missing = sorted(directory.glob("*.safetensors"))[1]
    missing.unlink()
    assert_refused(
        directory, tmp_path / "ours", f"{missing.name} is missing, though model.safetensors.index.json names it"
    )


def test_damaged_shard_is_named(sharded, tmp_path):
    _, directory = sharded
    path = sorted(directory.glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:-5])
    assert_refused(directory, tmp_path / "ours", f"{path.name} is damaged or cut short")


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/etc/passwd", "model.bin"])
def test_index_with_invalid_file_names_is_refused(name, sharded, tmp_path):
    _, directory = sharded
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"transformer.wte.weight": name}}))
    assert_refused(directory, tmp_path / "ours", "expected the name of a safetensors file beside it")


@pytest.mark.parametrize("index", ["{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "[]", "{"])
def test_invalid_index_is_refused(index, sharded, tmp_path):
    _, directory = sharded
    (directory / "model.safetensors.index.json").write_text(index)
    assert_refused(directory, tmp_path / "ours", r"model\.safetensors\.index\.json")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtype_is_preserved(dtype, from_hf):
    ours = from_hf(build().to(dtype))
    assert {tensor.dtype for tensor in ours.model.state_dict().values()} == {dtype}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logits_in_half_precision_are_close_to_transformers(dtype, from_hf, equal_tensors):
    theirs = build().to(dtype)
    ours = from_hf(theirs)
    tokens = ids(2, 9, 23)
    with torch.no_grad():
        actual, expected = ours.logits(tokens), theirs(tokens).logits.float()
    assert actual.dtype == torch.float32
    equal_tensors(actual, expected, bound=0.1)


def test_mixed_dtypes_are_promoted_to_the_widest(save_hf, tmp_path):
    directory = save_hf(build())
    tensors = load_file(directory / "model.safetensors")
    exact = tensors["transformer.ln_f.weight"]
    mixed = {name: tensor if tensor is exact else tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(mixed, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    state = regard.load(tmp_path / "ours").model.state_dict()
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    assert torch.equal(state["decoder.final_norm.weight"], exact)


def test_quantized_tensors_are_refused(save_hf, tmp_path):
    directory = save_hf(build())
    tensors = load_file(directory / "model.safetensors")
    tensors["transformer.wte.weight"] = torch.zeros(23, 12, dtype=torch.int8)
    save_file(tensors, directory / "model.safetensors")
    assert_refused(directory, tmp_path / "ours", r"transformer\.wte\.weight is stored as int8")


def test_tensor_under_two_names_is_refused(tmp_path):
    save_file({"model.a": torch.zeros(1), "a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="is also there as"):
        Weights([tmp_path / "model.safetensors"], "model.")
