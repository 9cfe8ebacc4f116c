"""Files of weights: one or several, of one type or mixed, whole or not."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

import regard
from regard.errors import UserError
from regard.interop import import_huggingface
from regard.interop.huggingface.weights import Weights

from .support import ids


def build():
    return GPT2LMHeadModel(GPT2Config(vocab_size=23, n_embd=12, n_head=3, n_layer=2, n_positions=12))


@pytest.fixture
def sharded(save_theirs):
    """A model in several files."""
    theirs = build()
    directory = save_theirs(theirs)
    (directory / "model.safetensors").unlink()
    theirs.save_pretrained(directory, max_shard_size="8KB")
    assert len(list(directory.glob("*.safetensors"))) > 2
    return theirs, directory


def refused(directory, out, sentence):
    with pytest.raises(UserError, match=sentence):
        import_huggingface(directory, out)
    assert not out.exists()


def test_a_model_in_several_files_is_one_model(sharded, tmp_path, check_padded_writer):
    theirs, directory = sharded
    import_huggingface(directory, tmp_path / "ours")
    check_padded_writer(theirs, regard.load(tmp_path / "ours"))


def test_a_missing_file_of_several_is_named(sharded, tmp_path):
    _, directory = sharded
    gone = sorted(directory.glob("*.safetensors"))[1]
    gone.unlink()
    refused(directory, tmp_path / "ours", f"{gone.name} is missing, though model.safetensors.index.json names it")


def test_a_damaged_file_of_several_is_named(sharded, tmp_path):
    _, directory = sharded
    path = sorted(directory.glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:-5])
    refused(directory, tmp_path / "ours", f"{path.name} is damaged or cut short")


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/etc/passwd", "model.bin"])
def test_an_index_names_safetensors_beside_it_and_nothing_else(name, sharded, tmp_path):
    _, directory = sharded
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"transformer.wte.weight": name}}))
    refused(directory, tmp_path / "ours", "expected the name of a safetensors file beside it")


@pytest.mark.parametrize("index", ["{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "[]", "{"])
def test_an_index_that_says_nothing_is_refused(index, sharded, tmp_path):
    _, directory = sharded
    (directory / "model.safetensors.index.json").write_text(index)
    refused(directory, tmp_path / "ours", r"model\.safetensors\.index\.json")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_numbers_keep_their_type(kind, bring):
    ours = bring(build().to(kind))
    assert {tensor.dtype for tensor in ours.model.state_dict().values()} == {kind}


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_logits_in_half_precision_are_near_theirs(kind, bring, same):
    theirs = build().to(kind)
    ours = bring(theirs)
    tokens = ids(2, 9, 23)
    with torch.no_grad():
        found, expected = ours.logits(tokens), theirs(tokens).logits.float()
    assert found.dtype == torch.float32
    same(found, expected, bound=0.1)


def test_mixed_types_are_widened_so_that_nothing_is_rounded(save_theirs, tmp_path):
    directory = save_theirs(build())
    tensors = load_file(directory / "model.safetensors")
    exact = tensors["transformer.ln_f.weight"]
    mixed = {name: tensor if tensor is exact else tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(mixed, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    state = regard.load(tmp_path / "ours").model.state_dict()
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    assert torch.equal(state["decoder.norm.weight"], exact)


def test_quantised_numbers_are_refused(save_theirs, tmp_path):
    directory = save_theirs(build())
    tensors = load_file(directory / "model.safetensors")
    tensors["transformer.wte.weight"] = torch.zeros(23, 12, dtype=torch.int8)
    save_file(tensors, directory / "model.safetensors")
    refused(directory, tmp_path / "ours", r"transformer\.wte\.weight is stored as int8")


def test_a_tensor_under_two_spellings_is_refused(tmp_path):
    save_file({"model.a": torch.zeros(1), "a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="is also there as"):
        Weights([tmp_path / "model.safetensors"], "model.")
