"""The run folder: what is written can be read, what is damaged is named, what was there is never lost."""

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
from regard.attention import HeadsConfig
from regard.model import EncoderDecoderConfig, FeedForwardConfig, LanguageModelConfig, Model, StackConfig
from regard.run import FORMAT, load, save

FIXTURES = Path(__file__).parent.parent / "fixtures"


def small_stack() -> StackConfig:
    return StackConfig(layers=2, attention=HeadsConfig(heads=2), feed_forward=FeedForwardConfig(hidden=16))


def translator() -> Model:
    torch.manual_seed(0)
    return EncoderDecoderConfig(vocabulary=11, width=8, encoder=small_stack(), decoder=small_stack()).build()


def writer() -> Model:
    torch.manual_seed(0)
    return LanguageModelConfig(vocabulary=11, width=8, decoder=small_stack()).build()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(translator(), tmp_path / "run")


@pytest.mark.parametrize("name", ["encoder-decoder", "language-model"])
@pytest.mark.parametrize("number", range(1, FORMAT + 1))
def test_a_folder_of_every_earlier_format_gives_the_logits_it_gave_then(number: int, name: str) -> None:
    place = FIXTURES / f"format-{number}" / name
    expected = load_file(place / "expected.safetensors")
    logits = expected.pop("logits")
    found = load(place).logits(*(expected[side] for side in sorted(expected)))
    # Written on another machine: kernels differ in the last bits of float32.
    torch.testing.assert_close(found, logits, rtol=1e-5, atol=1e-5)


def test_a_saved_model_gives_the_same_logits_when_loaded(folder: Path) -> None:
    source, target = [[1, 2, 3]], [[4, 5]]
    model = translator().eval()
    with torch.no_grad():
        wanted = model(torch.tensor(source), torch.tensor(target))
    assert torch.equal(regard.load(folder).logits(source, target), wanted)


def test_the_config_survives_the_folder(folder: Path) -> None:
    assert load(folder).config == translator().config


def test_a_half_precision_model_stays_half_on_disk_and_answers_in_float32(tmp_path: Path) -> None:
    save(writer().to(torch.bfloat16), tmp_path / "run")
    loaded = load(tmp_path / "run")
    assert loaded.model.vocabulary.weight.dtype == torch.bfloat16
    assert loaded.logits([[1, 2]]).dtype == torch.float32


def test_tokenizers_come_back_and_a_single_one_serves_both_sides(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    loaded = load(save(translator(), tmp_path / "run", tokenizer=words))
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.encode("b").ids == [1]
    assert loaded.target_tokenizer is loaded.tokenizer


def test_a_folder_without_a_tokenizer_has_none(folder: Path) -> None:
    assert load(folder).tokenizer is None


def test_lengths_hide_padding(folder: Path) -> None:
    loaded = load(folder)
    alone = loaded.logits([[1, 2]], [[3, 4]])
    padded = loaded.logits([[1, 2, 7, 7]], [[3, 4]], lengths=[2])
    torch.testing.assert_close(padded, alone, rtol=1e-5, atol=1e-6)


def test_an_existing_folder_is_left_alone(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="exists already"):
        save(writer(), folder)
    assert (folder / "model.safetensors").read_bytes() == before


def test_replace_puts_the_new_folder_in_place_and_leaves_nothing_beside_it(folder: Path) -> None:
    save(writer(), folder, replace=True)
    assert load(folder).config.kind == "language-model"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_failed_write_leaves_the_old_folder_and_no_rubbish(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("regard.run.tensors.save_file", full_disk)
    with pytest.raises(UserError, match="No space left on device"):
        save(writer(), folder, replace=True)
    assert load(folder).config.kind == "encoder-decoder"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_the_folder_can_be_read_by_others_as_usual(folder: Path) -> None:
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~mask
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o666 & ~mask}


def test_nothing_but_plain_data_is_in_the_folder(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["model.safetensors", "run.json"]
    json.loads((folder / "run.json").read_text(encoding="utf-8"))


def change(folder: Path, **values: object) -> None:
    path = folder / "run.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(facts | values), encoding="utf-8")


def test_a_newer_format_is_named_with_what_to_do(folder: Path) -> None:
    change(folder, format=FORMAT + 1)
    with pytest.raises(UserError, match=rf"newer regard \(format {FORMAT + 1}.*upgrade"):
        load(folder)


@pytest.mark.parametrize("number", [None, 0, "1", 1.5, True, [1]])
def test_a_format_that_is_no_number_is_refused(folder: Path, number: object) -> None:
    change(folder, format=number)
    with pytest.raises(UserError, match="which format"):
        load(folder)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        load(tmp_path / "nowhere")


def test_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not a run folder: it has no run\.json"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "\x00\x01"])
def test_a_broken_run_json_is_named(folder: Path, text: str) -> None:
    (folder / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"run\.json"):
        load(folder)


def test_run_json_that_is_no_text_is_named(folder: Path) -> None:
    (folder / "run.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(UserError, match=r"run\.json cannot be read"):
        load(folder)


def test_an_unknown_kind_of_model_is_named_with_the_known_ones(folder: Path) -> None:
    change(folder, model={"kind": "perceptron"})
    with pytest.raises(UserError, match=r"run\.json.*'perceptron'; known kinds: encoder-decoder, language-model"):
        load(folder)


def test_an_unknown_key_in_the_config_is_named_with_its_file(folder: Path) -> None:
    change(folder, model={**translator().config.plain(), "widht": 8})
    with pytest.raises(UserError, match=r"run\.json: model: widht: unknown key; did you mean 'width'"):
        load(folder)


def test_missing_weights_are_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors is missing"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, 2000])
def test_weights_cut_short_are_named(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"model\.safetensors is damaged or cut short"):
        load(folder)


def test_weights_that_are_something_else_are_named(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"PK\x03\x04" + bytes(1000))
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        load(folder)


def rewrite(folder: Path, **tensors: torch.Tensor | None) -> None:
    weights = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        weights.pop(name, None)
        if tensor is not None:
            weights[name] = tensor
    save_file(weights, folder / "model.safetensors")


def test_a_missing_tensor_is_named(folder: Path) -> None:
    rewrite(folder, **{"vocabulary.weight": None})
    with pytest.raises(UserError, match=r"lacks the tensor vocabulary\.weight"):
        load(folder)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(folder: Path) -> None:
    rewrite(folder, **{"vocabulary.weight": torch.zeros(12, 8)})
    with pytest.raises(UserError, match=r"vocabulary\.weight has the shape \(12, 8\).*\(11, 8\)"):
        load(folder)


def test_a_tensor_too_many_is_named(folder: Path) -> None:
    rewrite(folder, surplus=torch.zeros(1))
    with pytest.raises(UserError, match="holds the tensor surplus"):
        load(folder)


def test_a_broken_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json is not a tokenizer"):
        load(folder)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (([[1, 2]],), r"1 groups of ids were given.*logits\(source_ids, target_ids\)"),
        (([[1]], [[11]]), "Token id 11 is outside the vocabulary of 11"),
        (([[-1]], [[1]]), "Token id -1 is outside the vocabulary"),
        (([1, 2], [[1]]), r"shape \(rows, tokens\); found \(2,\)"),
        (([[1.5]], [[1]]), "whole numbers"),
        (([[1], [1, 2]], [[1], [1]]), "equally long"),
        (([["a"]], [[1]]), "whole numbers"),
        (([[1], [2]], [[1]]), "same number of rows"),
    ],
)
def test_wrong_ids_get_a_sentence(folder: Path, ids: tuple, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(folder).logits(*ids)


def test_lengths_of_the_wrong_shape_get_a_sentence(folder: Path) -> None:
    with pytest.raises(UserError, match="lengths"):
        load(folder).logits([[1, 2]], [[3]], lengths=[1, 2])
