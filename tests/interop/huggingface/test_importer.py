"""Importing a folder: the run folder that is written, and errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

import regard
from regard.errors import UserError
from regard.interop import import_huggingface
from regard.interop.huggingface.weights import Weights, find_files
from regard.model import count_parameters
from regard.run import load_model
from tests.interop.huggingface.support import edit_json


@pytest.fixture
def theirs(save_hf) -> Path:
    """A folder with a small GPT-2."""
    return save_hf(
        GPT2LMHeadModel(GPT2Config(vocab_size=23, n_embd=12, n_head=3, n_layer=2, n_positions=12, eos_token_id=4))
    )


def edit_tensors(directory, edit):
    path = directory / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def edit_config(directory, **changes):
    edit_json(directory / "config.json", **changes)


def replace_weights(directory, name):
    (directory / "model.safetensors").unlink()
    if name:
        (directory / name).write_bytes(b"weights")


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


INVALID = {
    "no config": (lambda d: (d / "config.json").unlink(), "has no config.json"),
    "config that is not JSON": (lambda d: (d / "config.json").write_text("{"), "config.json is not JSON"),
    "config that is not text": (lambda d: (d / "config.json").write_bytes(b"\xff\xfe\x00"), "config.json is not JSON"),
    "config that is not an object": (lambda d: (d / "config.json").write_text("[1]"), "should hold an object"),
    "unknown architecture": (
        lambda d: edit_config(d, architectures=["T5ForConditionalGeneration"]),
        "'T5ForConditionalGeneration', which regard cannot import; it can import MarianMTModel, "
        "BartForConditionalGeneration, GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM, "
        "DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, BertModel, "
        "BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification, ViTModel, "
        "ViTForImageClassification",
    ),
    "no architecture": (lambda d: edit_config(d, architectures=..., model_type=...), "has the architecture None"),
    "another model type": (lambda d: edit_config(d, architectures=..., model_type="t5"), "has the architecture 't5'"),
    "architectures that are not a list": (
        lambda d: edit_config(d, architectures=5, model_type="x"),
        "architecture 'x'",
    ),
    "a pickle": (
        lambda d: replace_weights(d, "pytorch_model.bin"),
        r"only as pytorch_model.bin.*GPT2LMHeadModel.from_pretrained.*safe_serialization=True",
    ),
    "a pickle with another name": (lambda d: replace_weights(d, "model.pt"), "only as model.pt"),
    "weights of another library": (lambda d: replace_weights(d, "tf_model.h5"), "only as tf_model.h5"),
    "no weights": (lambda d: replace_weights(d, None), "has neither model.safetensors nor"),
    "unknown tensor": (
        lambda d: edit_tensors(d, lambda t: t.update({"transformer.h.0.adapter.weight": torch.ones(1)})),
        "holds the tensor transformer.h.0.adapter.weight, which has no counterpart",
    ),
    "a layer too many": (lambda d: edit_config(d, n_layer=1), r"holds the tensor transformer\.h\.1\."),
    "missing tensor": (
        lambda d: edit_tensors(d, lambda t: t.pop("transformer.h.1.ln_2.bias")),
        "lacks the tensor transformer.h.1.ln_2.bias",
    ),
    "missing embedding": (
        lambda d: edit_tensors(d, lambda t: t.pop("transformer.wte.weight")),
        "transformer.wte.weight",
    ),
    "wrong shape": (
        lambda d: edit_tensors(d, lambda t: t.update({"transformer.wpe.weight": torch.ones(9, 12)})),
        r"transformer.wpe.weight has the shape \(9, 12\), but config.json calls for \(12, 12\)",
    ),
    "wrong shape of a concatenated tensor": (
        lambda d: edit_tensors(d, lambda t: t.update({"transformer.h.0.attn.c_attn.weight": torch.ones(36, 12)})),
        r"c_attn.weight has the shape \(36, 12\), but config.json calls for \(12, 36\)",
    ),
    "weights that are not finite": (
        lambda d: edit_tensors(d, lambda t: t["transformer.h.1.mlp.c_fc.bias"].fill_(float("nan"))),
        r"transformer\.h\.1\.mlp\.c_fc\.bias has values that are not finite",
    ),
    "a million layers": (lambda d: edit_config(d, n_layer=10**6), "cannot be built: layers: found 1000000"),
    "sizes that no file holds": (
        lambda d: edit_config(d, n_embd=999_999),
        r"has the shape \(23, 12\), but config.json calls for \(23, 999999\)",
    ),
    "cut short": (lambda d: cut(d / "model.safetensors", -7), "model.safetensors is damaged or cut short"),
    "cut in the header": (lambda d: cut(d / "model.safetensors", 40), "damaged or cut short"),
    "empty": (lambda d: cut(d / "model.safetensors", 0), "damaged or cut short"),
    "garbage": (lambda d: (d / "model.safetensors").write_bytes(b"\xff" * 100), "damaged or cut short"),
    "a value missing": (lambda d: edit_config(d, n_embd=...), "config.json: n_embd is missing"),
    "a value of wrong type": (lambda d: edit_config(d, n_layer="two"), "config.json: n_layer is 'two'"),
    "heads that do not fit": (lambda d: edit_config(d, n_head=5), "5 heads do not divide the width 12"),
    "dropout of one": (lambda d: edit_config(d, resid_pdrop=1.0), "dropout"),
    "a model too large to build": (lambda d: edit_config(d, n_embd=3 * 10**30), "cannot be built"),
    "quantized": (lambda d: edit_config(d, quantization_config={"bits": 4}), "quantization_config"),
    "generation config that is not JSON": (
        lambda d: (d / "generation_config.json").write_text("?"),
        "generation_config.json is not JSON",
    ),
}


@pytest.mark.parametrize(("corrupt", "message"), INVALID.values(), ids=INVALID.keys())
def test_invalid_folder_is_refused_and_nothing_is_written(corrupt, message, theirs, tmp_path):
    corrupt(theirs)
    with pytest.raises(UserError, match=message) as caught:
        import_huggingface(theirs, tmp_path / "ours")
    assert str(theirs) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [theirs]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_weights_stay_in_the_file_and_in_its_dtype(save_hf, tmp_path):
    """Neither importing nor loading copies a large model: tensors that need no new layout are the mapped file."""

    def mapped(path, tensor):
        lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]
        ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
        return any(first <= tensor.data_ptr() < last for first, last in ranges)

    config = GPT2Config(vocab_size=23, n_embd=12, n_head=3, n_layer=2, n_positions=12, eos_token_id=4)
    hf = save_hf(GPT2LMHeadModel(config).to(torch.bfloat16))
    (file,) = find_files(hf, "GPT2LMHeadModel")
    weights = Weights([file], "transformer.")
    assert mapped(file, weights.tensor("wte.weight"))
    import_huggingface(hf, tmp_path / "ours")
    loaded = load_model(tmp_path / "ours").model
    assert {tensor.dtype for tensor in loaded.state_dict().values()} == {torch.bfloat16}
    assert all(mapped(tmp_path / "ours" / "model.safetensors", tensor) for tensor in loaded.state_dict().values())


def test_missing_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="nowhere: there is no such folder"):
        import_huggingface(tmp_path / "nowhere", tmp_path / "ours")
    assert list(tmp_path.iterdir()) == []


def test_file_instead_of_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file: there is no such folder"):
        import_huggingface(tmp_path / "file", tmp_path / "ours")


def test_existing_run_folder_is_refused_before_anything_is_read(tmp_path):
    out = tmp_path / "ours"
    out.mkdir()
    with pytest.raises(UserError, match="ours exists already"):
        import_huggingface(tmp_path / "nowhere", out)
    assert list(out.iterdir()) == []


def test_import_describes_the_model(theirs, tmp_path):
    description = import_huggingface(theirs, tmp_path / "ours")
    count = count_parameters(regard.load(tmp_path / "ours").model)
    assert (
        description
        == f"imported GPT-2 with {count:,} parameters in float32, without a tokenizer, which the folder lacks."
    )


def test_run_folder_records_its_origin(theirs, tmp_path):
    import_huggingface(theirs, tmp_path / "ours")
    origin = json.loads((tmp_path / "ours" / "run.json").read_text())["origin"]
    assert (origin["library"], origin["architecture"], origin["folder"]) == ("huggingface", "GPT2LMHeadModel", "theirs")
    assert origin["config"] == json.loads((theirs / "config.json").read_text())


def test_model_type_is_used_if_no_architecture_is_named(theirs, tmp_path):
    edit_config(theirs, architectures=None)
    import_huggingface(theirs, tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config.kind == "language-model"


def command(*arguments, code=None):
    start = ["-m", "regard"] if code is None else ["-c", code]
    return subprocess.run([sys.executable, *start, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def test_import_command(theirs, tmp_path):
    result = command("import", theirs, tmp_path / "ours")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{tmp_path / 'ours'}: imported GPT-2 with ")
    assert regard.load(tmp_path / "ours").config.special_tokens.eos == 4


def test_import_command_reports_errors_in_one_line(theirs, tmp_path):
    edit_config(theirs, architectures=["T5Model"])
    result = command("import", theirs, tmp_path / "ours")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "T5Model" in result.stderr
    assert not (tmp_path / "ours").exists()


def test_import_does_not_need_transformers(theirs, tmp_path):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['transformers', 'sentencepiece', 'google.protobuf']));"
        "from regard.interop import import_huggingface; import_huggingface(sys.argv[1], sys.argv[2])"
    )
    result = command(theirs, tmp_path / "ours", code=code)
    assert (result.returncode, result.stderr) == (0, "")
