"""Importing a folder: what is written, and every sentence for what cannot be."""

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
from regard.model import count_parameters

from .support import edit_json


@pytest.fixture
def theirs(save_theirs) -> Path:
    """A folder with a small GPT-2."""
    return save_theirs(
        GPT2LMHeadModel(GPT2Config(vocab_size=23, n_embd=12, n_head=3, n_layer=2, n_positions=12, eos_token_id=4))
    )


def change_tensors(directory, change):
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def change_config(directory, **changes):
    edit_json(directory / "config.json", **changes)


def without_weights(directory, name):
    (directory / "model.safetensors").unlink()
    if name:
        (directory / name).write_bytes(b"weights")


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


WRONG = {
    "no config": (lambda d: (d / "config.json").unlink(), "has no config.json"),
    "config that is no JSON": (lambda d: (d / "config.json").write_text("{"), "config.json is not JSON"),
    "config that is no text": (lambda d: (d / "config.json").write_bytes(b"\xff\xfe\x00"), "config.json is not JSON"),
    "config that is no table": (lambda d: (d / "config.json").write_text("[1]"), "should hold a table"),
    "unknown architecture": (
        lambda d: change_config(d, architectures=["T5ForConditionalGeneration"]),
        "'T5ForConditionalGeneration', which regard cannot import; it can import MarianMTModel, "
        "BartForConditionalGeneration, GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM, "
        "DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, BertModel, "
        "BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification, ViTModel, "
        "ViTForImageClassification",
    ),
    "no architecture": (lambda d: change_config(d, architectures=..., model_type=...), "of the architecture None"),
    "another kind": (lambda d: change_config(d, architectures=..., model_type="t5"), "of the architecture 't5'"),
    "architectures that are no list": (lambda d: change_config(d, architectures=5, model_type="x"), "architecture 'x'"),
    "a pickle": (
        lambda d: without_weights(d, "pytorch_model.bin"),
        r"only as pytorch_model.bin.*GPT2LMHeadModel.from_pretrained.*safe_serialization=True",
    ),
    "a pickle of another name": (lambda d: without_weights(d, "model.pt"), "only as model.pt"),
    "weights of another library": (lambda d: without_weights(d, "tf_model.h5"), "only as tf_model.h5"),
    "no weights": (lambda d: without_weights(d, None), "has neither model.safetensors nor"),
    "unknown tensor": (
        lambda d: change_tensors(d, lambda t: t.update({"transformer.h.0.adapter.weight": torch.ones(1)})),
        "holds the tensor transformer.h.0.adapter.weight, which has no place",
    ),
    "a layer too many": (lambda d: change_config(d, n_layer=1), r"holds the tensor transformer\.h\.1\."),
    "missing tensor": (
        lambda d: change_tensors(d, lambda t: t.pop("transformer.h.1.ln_2.bias")),
        "lacks the tensor transformer.h.1.ln_2.bias",
    ),
    "missing words": (lambda d: change_tensors(d, lambda t: t.pop("transformer.wte.weight")), "transformer.wte.weight"),
    "wrong shape": (
        lambda d: change_tensors(d, lambda t: t.update({"transformer.wpe.weight": torch.ones(9, 12)})),
        r"transformer.wpe.weight has the shape \(9, 12\), but config.json calls for \(12, 12\)",
    ),
    "wrong shape of joined tensors": (
        lambda d: change_tensors(d, lambda t: t.update({"transformer.h.0.attn.c_attn.weight": torch.ones(36, 12)})),
        r"c_attn.weight has the shape \(36, 12\), but config.json calls for \(12, 36\)",
    ),
    "cut short": (lambda d: cut(d / "model.safetensors", -7), "model.safetensors is damaged or cut short"),
    "cut in the header": (lambda d: cut(d / "model.safetensors", 40), "damaged or cut short"),
    "empty": (lambda d: cut(d / "model.safetensors", 0), "damaged or cut short"),
    "garbage": (lambda d: (d / "model.safetensors").write_bytes(b"\xff" * 100), "damaged or cut short"),
    "a value missing": (lambda d: change_config(d, n_embd=...), "config.json: n_embd is missing"),
    "a value of a wrong type": (lambda d: change_config(d, n_layer="two"), "config.json: n_layer is 'two'"),
    "heads that do not fit": (lambda d: change_config(d, n_head=5), "5 heads do not divide the width 12"),
    "dropout of everything": (lambda d: change_config(d, resid_pdrop=1.0), "dropout"),
    "a model beyond any machine": (lambda d: change_config(d, n_embd=3 * 10**30), "cannot be built"),
    "quantised": (lambda d: change_config(d, quantization_config={"bits": 4}), "quantization_config"),
    "generation that is no JSON": (
        lambda d: (d / "generation_config.json").write_text("?"),
        "generation_config.json is not JSON",
    ),
}


@pytest.mark.parametrize(("spoil", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_gets_one_sentence_and_nothing_is_written(spoil, sentence, theirs, tmp_path):
    spoil(theirs)
    with pytest.raises(UserError, match=sentence) as caught:
        import_huggingface(theirs, tmp_path / "ours")
    assert str(theirs) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [theirs]


def test_a_folder_that_is_not_there_gets_a_sentence(tmp_path):
    with pytest.raises(UserError, match="nowhere: there is no such folder"):
        import_huggingface(tmp_path / "nowhere", tmp_path / "ours")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_folder_gets_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file: there is no such folder"):
        import_huggingface(tmp_path / "file", tmp_path / "ours")


def test_a_run_folder_that_exists_is_left_alone_and_seen_before_anything_is_read(tmp_path):
    out = tmp_path / "ours"
    out.mkdir()
    with pytest.raises(UserError, match="ours exists already"):
        import_huggingface(tmp_path / "nowhere", out)
    assert list(out.iterdir()) == []


def test_the_sentence_says_what_came(theirs, tmp_path):
    said = import_huggingface(theirs, tmp_path / "ours")
    count = count_parameters(regard.load(tmp_path / "ours").model)
    assert said == f"imported GPT-2 with {count:,} parameters in float32, without a tokenizer, as the folder has none."


def test_the_run_folder_tells_where_it_came_from(theirs, tmp_path):
    import_huggingface(theirs, tmp_path / "ours")
    origin = json.loads((tmp_path / "ours" / "run.json").read_text())["origin"]
    assert (origin["library"], origin["architecture"], origin["folder"]) == ("huggingface", "GPT2LMHeadModel", "theirs")
    assert origin["config"] == json.loads((theirs / "config.json").read_text())


def test_the_model_type_decides_where_no_architecture_is_named(theirs, tmp_path):
    change_config(theirs, architectures=None)
    import_huggingface(theirs, tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config.kind == "language-model"


def command(*arguments, code=None):
    start = ["-m", "regard"] if code is None else ["-c", code]
    return subprocess.run([sys.executable, *start, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def test_the_command_imports(theirs, tmp_path):
    done = command("import", theirs, tmp_path / "ours")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path / 'ours'}: imported GPT-2 with ")
    assert regard.load(tmp_path / "ours").config.tokens.end == 4


def test_the_command_says_what_is_wrong_in_one_line(theirs, tmp_path):
    change_config(theirs, architectures=["T5Model"])
    done = command("import", theirs, tmp_path / "ours")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "T5Model" in done.stderr
    assert not (tmp_path / "ours").exists()


def test_their_library_is_not_needed(theirs, tmp_path):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['transformers', 'sentencepiece', 'google.protobuf']));"
        "from regard.interop import import_huggingface; import_huggingface(sys.argv[1], sys.argv[2])"
    )
    done = command(theirs, tmp_path / "ours", code=code)
    assert (done.returncode, done.stderr) == (0, "")
