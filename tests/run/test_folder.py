"""The run folder: what is saved loads again, damage is named in the error, existing folders are never lost."""

import json
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

import regard
from regard import UserError
from regard.attention import MultiHeadConfig
from regard.model import EncoderDecoderConfig, FeedForwardConfig, LanguageModelConfig, Model, StackConfig
from regard.run import FORMAT_VERSION, load_model, save_model, save_trained_model

FIXTURES = Path(__file__).parent.parent / "fixtures"


def small_stack() -> StackConfig:
    return StackConfig(layers=2, attention=MultiHeadConfig(heads=2), feed_forward=FeedForwardConfig(hidden=16))


def encoder_decoder() -> Model:
    torch.manual_seed(0)
    return EncoderDecoderConfig(vocab_size=11, width=8, encoder=small_stack(), decoder=small_stack()).build()


def language_model() -> Model:
    torch.manual_seed(0)
    return LanguageModelConfig(vocab_size=11, width=8, decoder=small_stack()).build()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(encoder_decoder(), tmp_path / "run")


@pytest.mark.parametrize("name", ["encoder-decoder", "language-model"])
@pytest.mark.parametrize("number", range(1, FORMAT_VERSION + 1))
def test_every_earlier_format_loads_with_the_same_logits(number: int, name: str) -> None:
    folder = FIXTURES / f"format-{number}" / name
    expected = load_file(folder / "expected.safetensors")
    logits = expected.pop("logits")
    actual = load_model(folder).logits(*(expected[side] for side in sorted(expected)))
    # The fixture was written on another machine, whose kernels differ in the last bits of float32.
    torch.testing.assert_close(actual, logits, rtol=1e-5, atol=1e-5)


def test_saved_model_loads_with_the_same_logits(folder: Path) -> None:
    source, target = [[1, 2, 3]], [[4, 5]]
    model = encoder_decoder().eval()
    with torch.no_grad():
        logits = model(torch.tensor(source), torch.tensor(target))
    assert torch.equal(regard.load(folder).logits(source, target), logits)


def test_config_round_trips(folder: Path) -> None:
    assert load_model(folder).config == encoder_decoder().config


def test_experts_bias_is_not_rounded_to_float16(tmp_path: Path) -> None:
    experts = {"kind": "moe", "experts": 4, "top_k": 2, "hidden": 8, "balancing": "bias"}
    stack = {"layers": 1, "attention": {"heads": 2}, "feed_forward": experts}
    model = LanguageModelConfig.read({"vocab_size": 11, "width": 8, "decoder": stack}).build()
    (name,) = [name for name, _ in model.named_buffers() if name.endswith("expert_bias")]
    bias = torch.tensor([1.0001, 1.0002, 1.0003, 1.0004])
    model.get_buffer(name).copy_(bias)
    save_trained_model(model, tmp_path, origin={}, half=True)
    saved = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for key, tensor in saved.items() if key != name} == {torch.float16}
    assert torch.equal(saved[name], bias)
    assert torch.equal(load_model(tmp_path).model.get_buffer(name), bias)


def test_half_precision_weights_are_kept_and_logits_are_float32(tmp_path: Path) -> None:
    save_model(language_model().to(torch.bfloat16), tmp_path / "run")
    loaded = load_model(tmp_path / "run")
    assert loaded.model.embed_tokens.weight.dtype == torch.bfloat16
    assert loaded.logits([[1, 2]]).dtype == torch.float32


def test_single_tokenizer_serves_both_sides(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    loaded = load_model(save_model(encoder_decoder(), tmp_path / "run", tokenizer=tokenizer))
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.encode("b").ids == [1]
    assert loaded.target_tokenizer is loaded.tokenizer


def test_tokenizer_is_none_without_a_file(folder: Path) -> None:
    assert load_model(folder).tokenizer is None


def test_lengths_mask_padding(folder: Path) -> None:
    loaded = load_model(folder)
    unpadded = loaded.logits([[1, 2]], [[3, 4]])
    padded = loaded.logits([[1, 2, 7, 7]], [[3, 4]], lengths=[2])
    torch.testing.assert_close(padded, unpadded, rtol=1e-5, atol=1e-6)


def test_existing_folder_is_not_overwritten(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="exists already"):
        save_model(language_model(), folder)
    assert (folder / "model.safetensors").read_bytes() == before


def test_replace_leaves_no_temporary_folder(folder: Path) -> None:
    save_model(language_model(), folder, replace=True)
    assert load_model(folder).config.kind == "language-model"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_failed_write_keeps_the_old_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("regard.run.tensors.save_file", full_disk)
    with pytest.raises(UserError, match="No space left on device"):
        save_model(language_model(), folder, replace=True)
    assert load_model(folder).config.kind == "encoder-decoder"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_files_have_the_usual_permissions(folder: Path) -> None:
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~mask
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o666 & ~mask}


def test_folder_holds_only_json_and_safetensors(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["model.safetensors", "run.json"]
    json.loads((folder / "run.json").read_text(encoding="utf-8"))


def edit_metadata(folder: Path, **values: object) -> None:
    path = folder / "run.json"
    metadata = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(metadata | values), encoding="utf-8")


def test_newer_format_asks_to_upgrade(folder: Path) -> None:
    edit_metadata(folder, format=FORMAT_VERSION + 1)
    with pytest.raises(UserError, match=rf"newer regard \(format {FORMAT_VERSION + 1}.*upgrade"):
        load_model(folder)


@pytest.mark.parametrize("number", [None, 0, "1", 1.5, True, [1]])
def test_invalid_format_version_is_an_error(folder: Path, number: object) -> None:
    edit_metadata(folder, format=number)
    with pytest.raises(UserError, match=r"run\.json does not give its format version"):
        load_model(folder)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        load_model(tmp_path / "nowhere")


def test_folder_without_run_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not a run folder: it has no run\.json"):
        load_model(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "\x00\x01"])
def test_broken_run_json_is_named(folder: Path, text: str) -> None:
    (folder / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"run\.json"):
        load_model(folder)


def test_undecodable_run_json_is_named(folder: Path) -> None:
    (folder / "run.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(UserError, match=r"run\.json cannot be read"):
        load_model(folder)


def test_unknown_model_kind_lists_the_known_ones(folder: Path) -> None:
    edit_metadata(folder, model={"kind": "perceptron"})
    with pytest.raises(UserError, match=r"run\.json.*'perceptron'; expected one of encoder-decoder, language-model"):
        load_model(folder)


def test_unknown_config_key_is_named_with_its_file(folder: Path) -> None:
    edit_metadata(folder, model={**encoder_decoder().config.plain(), "widht": 8})
    with pytest.raises(UserError, match=r"run\.json: model: widht: unknown key; did you mean 'width'"):
        load_model(folder)


def test_missing_weights_are_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors is missing"):
        load_model(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, 2000])
def test_truncated_weights_are_named(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"model\.safetensors is damaged or truncated"):
        load_model(folder)


def test_weights_in_another_format_are_named(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"PK\x03\x04" + bytes(1000))
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        load_model(folder)


def replace_tensors(folder: Path, **tensors: torch.Tensor | None) -> None:
    weights = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        weights.pop(name, None)
        if tensor is not None:
            weights[name] = tensor
    save_file(weights, folder / "model.safetensors")


def test_missing_tensor_is_named(folder: Path) -> None:
    replace_tensors(folder, **{"embed_tokens.weight": None})
    with pytest.raises(UserError, match=r"lacks the tensor embed_tokens\.weight"):
        load_model(folder)


def test_wrong_shape_is_named_with_both_shapes(folder: Path) -> None:
    replace_tensors(folder, **{"embed_tokens.weight": torch.zeros(12, 8)})
    with pytest.raises(UserError, match=r"embed_tokens\.weight has the shape \(12, 8\).*\(11, 8\)"):
        load_model(folder)


def test_unexpected_tensor_is_named(folder: Path) -> None:
    replace_tensors(folder, surplus=torch.zeros(1))
    with pytest.raises(UserError, match="holds the tensor surplus"):
        load_model(folder)


def test_broken_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json is not a valid tokenizer"):
        load_model(folder)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (([[1, 2]],), r"1 groups of ids were given.*logits\(source_ids, target_ids\)"),
        (([[1]], [[11]]), "Token id 11 is outside the vocabulary of 11"),
        (([[-1]], [[1]]), "Token id -1 is outside the vocabulary"),
        (([1, 2], [[1]]), r"shape \(rows, tokens\); found \(2,\)"),
        (([[1.5]], [[1]]), "integers"),
        (([[1], [1, 2]], [[1], [1]]), "equal length"),
        (([["a"]], [[1]]), "integers"),
        (([[1], [2]], [[1]]), "same number of rows"),
    ],
)
def test_invalid_ids_are_explained(folder: Path, ids: tuple, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_model(folder).logits(*ids)


def test_lengths_of_the_wrong_shape_are_explained(folder: Path) -> None:
    with pytest.raises(UserError, match="lengths"):
        load_model(folder).logits([[1, 2]], [[3]], lengths=[1, 2])
