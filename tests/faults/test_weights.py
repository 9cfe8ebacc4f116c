"""Weights and tokenizers that cannot be used are refused by name when a model is loaded."""

import json
import struct
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

import regard
from regard import UserError
from regard.data.tokenizers.tokenizer import MAX_FILE_BYTES, TextTokenizer
from regard.model import EncoderDecoderConfig, LanguageModelConfig, StackConfig
from regard.run import load_model, save_model
from regard.run.tensors import read_shapes, unusable_reason
from tests.cli.refusal import assert_refused
from tests.task.small import command

STACK = {"layers": 1, "attention": {"heads": 2}, "feed_forward": {"hidden": 16}}
NAME = "decoder.layers.0.feed_forward.up_proj.weight"


def language_model(**position: object) -> LanguageModelConfig:
    values = {"position": position} if position else {}
    return LanguageModelConfig(vocab_size=11, width=8, decoder=StackConfig(**STACK), **values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(11)}, unk_token="w0"))
    path = save_model(language_model().build(), tmp_path / "run", tokenizer=tokenizer)
    metadata = json.loads((path / "run.json").read_text(encoding="utf-8"))
    metadata.pop("sha256", None)  # files are changed on purpose, and found out by what is in them
    (path / "run.json").write_text(json.dumps(metadata), encoding="utf-8")
    return path


def change(folder: Path, edit: object) -> None:
    """Replace one tensor of a run folder."""
    weights = load_file(folder / "model.safetensors")
    weights[NAME] = edit(weights[NAME])  # type: ignore[operator]
    save_file(weights, folder / "model.safetensors")


def with_value(value: float) -> object:
    def edit(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.double()
        tensor[3, 2] = value
        return tensor if abs(value) == 1e300 else tensor.float()

    return edit


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_weights_that_are_not_finite_name_the_tensor(folder: Path, value: float) -> None:
    change(folder, with_value(value))
    with pytest.raises(UserError, match=rf"model\.safetensors: {NAME} has values that are not finite"):
        load_model(folder)
    assert_refused(command("generate", folder, "w1"), NAME)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_weights_of_another_dtype_name_the_tensor(folder: Path, dtype: torch.dtype) -> None:
    change(folder, lambda tensor: tensor.to(dtype))
    with pytest.raises(UserError, match=f"{NAME} is stored as"):
        load_model(folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_weights_of_every_floating_dtype_can_be_used(dtype: torch.dtype) -> None:
    assert unusable_reason(torch.randn(5, 3).to(dtype)) is None
    assert unusable_reason(torch.empty(0, dtype=dtype)) is None
    assert unusable_reason(torch.tensor([[1.0, float("nan")]], dtype=dtype)) is not None


def test_config_is_compared_with_the_file_before_memory_is_allocated(folder: Path) -> None:
    metadata = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    metadata["model"]["width"] = 1_000_000
    (folder / "run.json").write_text(json.dumps(metadata), encoding="utf-8")
    with (
        mock.patch("regard.run.folder.build_empty", side_effect=AssertionError("allocated")),
        pytest.raises(UserError, match=r"embed_tokens\.weight has the shape \(11, 8\).*\(11, 1000000\)"),
    ):
        load_model(folder)


@pytest.mark.parametrize("length", [10**13, (1 << 64) - 1])
def test_header_that_claims_terabytes_is_refused(folder: Path, length: int) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        load_model(folder)


def test_tensor_that_claims_terabytes_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4 * 10**12]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    with pytest.raises(UserError, match=r"x\.safetensors is damaged"):
        read_shapes(tmp_path / "x.safetensors")


def test_huge_tokenizer_is_refused_unread(folder: Path) -> None:
    with (folder / "tokenizer.json").open("r+b") as file:
        file.truncate(MAX_FILE_BYTES + 1)  # sparse
    for load in (load_model, lambda path: TextTokenizer.load(path / "tokenizer.json")):
        with pytest.raises(UserError, match=r"tokenizer\.json has 100,000,001 bytes"):
            load(folder)


def test_tokenizer_with_absurd_ids_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    text = tokenizer.to_str().replace('"b":1', f'"b":{2**31}')
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json: .*2,147,483,648"):
        TextTokenizer.load(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("encode", [TextTokenizer.encode, TextTokenizer.encode_with_offsets])
def test_catastrophic_regular_expression_ends_in_a_sentence(encode: object, capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+b$"), "isolated")
    with pytest.raises(UserError, match="regular expression"):
        encode(TextTokenizer(tokenizer), "a" * 10_000)  # type: ignore[operator]


def test_ids_and_lengths_are_checked_before_they_move_to_a_device() -> None:
    """On a GPU they would end the process. The meta device computes nothing, so only a check on the CPU finds them."""
    model = language_model(kind="learned", max_length=4).build()
    pair = EncoderDecoderConfig(
        vocab_size=11,
        source_vocab_size=7,
        width=8,
        encoder=StackConfig(**STACK),
        decoder=StackConfig(**STACK),
        position={"kind": "learned", "max_length": 4},
        special_tokens={"bos": 1, "eos": 2},
    ).build()
    for prompt in ([1, 11], [11, 1], [-1], [11]):
        with pytest.raises(UserError, match="outside the vocabulary of 11"):
            model.to("meta").prefill([prompt, [1, 2, 3]], 1)
    with pytest.raises(UserError, match="has positions for 4 tokens, but 5 are needed"):
        model.prefill([[1] * 5], 1)
    with pytest.raises(UserError, match="outside the vocabulary of 7"):
        pair.pad_sources([[7]])
    with pytest.raises(UserError, match="has positions for 4 tokens, but 5 are needed"):
        pair.pad_sources([[1] * 4])


def test_positions_are_checked_while_decoding_on_a_device_that_does_not() -> None:
    model = language_model(kind="learned", max_length=4).build()
    cache = model.start(1, 8)
    model.step(torch.zeros(1, 4, dtype=torch.long), cache)
    unchecked = mock.patch("torch.nn.functional.embedding", lambda ids, weight: weight[ids.clamp(max=len(weight) - 1)])
    with unchecked, pytest.raises(UserError, match="learned positions for 4 tokens, but 5 are needed"):
        model.step(torch.zeros(1, 1, dtype=torch.long), cache)


def test_load_of_a_usable_folder_is_unchanged(folder: Path) -> None:
    assert regard.load(folder).tokenizer is not None
