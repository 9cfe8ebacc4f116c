"""Traces of every task: their header, their arrays, and saving and loading them."""

import contextlib
import json
import struct
from pathlib import Path

import pytest
import torch

from regard import UserError
from regard.decode import DecodeConfig
from regard.look.schema import DecodingOverrides, RunRequest
from regard.look.trace import Trace, load_trace, max_pool, trace_from_bytes
from tests.look.support import autoregressive_model, request, task_models

each_task = pytest.mark.parametrize("task", list(task_models()))


def traced(task: str) -> Trace:
    traced_model = task_models()[task]
    return traced_model.trace(request(traced_model))


@each_task
def test_attention_has_a_row_and_a_column_per_token(task: str) -> None:
    trace = traced(task)
    header = trace.header
    for spec in header.model.attention:
        queries = header.source if spec.attention_type == "encoder" else header.target
        keys = header.target if spec.attention_type == "decoder" else header.source
        array = trace.array(f"attention/{spec.attention_type}")
        assert array.shape == (spec.layers, spec.heads, len(queries), len(keys))
        assert array.dtype == torch.float16
        torch.testing.assert_close(array.float().sum(dim=-1), torch.ones(array.shape[:-1]), rtol=0, atol=5e-3)


@each_task
def test_header_lists_every_array(task: str) -> None:
    trace = traced(task)
    specs = {spec.name: (spec.dtype, spec.shape) for spec in trace.header.arrays}
    assert specs == {name: ("float16", list(array.shape)) for name, array in trace.arrays.items()}


@each_task
def test_attention_is_that_of_a_forward_pass(task: str) -> None:
    """Up to float16 rounding."""
    traced_model = task_models()[task]
    trace = traced_model.trace(request(traced_model))
    from regard.look.analysis.attention_maps import AttentionRecorder

    recorder = AttentionRecorder(traced_model.model)
    traced_model.forward_trace(trace, recorder)
    for attention_type in recorder.weights:
        torch.testing.assert_close(trace.attention(attention_type), recorder.stacked(attention_type), rtol=0, atol=5e-4)


def test_output_of_a_translator_is_its_translation() -> None:
    traced_model = autoregressive_model(dtype=torch.float32)
    trace = traced_model.trace(RunRequest(text="the old cat"))
    assert trace.output == traced_model.pipeline.translate("the old cat")  # type: ignore[attr-defined]


def test_target_of_a_language_model_is_prompt_and_continuation() -> None:
    traced_model = task_models()["language-modeling"]
    trace = traced_model.trace(
        RunRequest(text="the old", decoding=DecodingOverrides(method="greedy", max_new_tokens=5))
    )
    header = trace.header
    assert header.target[: len(header.source)] == header.source
    assert len(header.target) == len(header.source) + len(header.generated)
    expected = traced_model.pipeline.generate("the old", max_new_tokens=5, decode=DecodeConfig(beam_size=1))  # type: ignore[attr-defined]
    assert trace.output == expected


def test_output_of_a_parser_is_its_tree() -> None:
    traced_model = task_models()["parsing"]
    trace = traced_model.trace(RunRequest(text="the cat slept"))
    assert trace.output == str(traced_model.pipeline.parse("the cat slept"))  # type: ignore[attr-defined]


def test_output_of_a_masked_lm_is_its_filled_text() -> None:
    traced_model = task_models()["masked-lm"]
    text = "the [MASK] ate [MASK] mouse"
    trace = traced_model.trace(RunRequest(text=text))
    fillers = traced_model.pipeline.fill(text, top=5)  # type: ignore[attr-defined]
    assert trace.output == traced_model.pipeline.filled(text, fillers)  # type: ignore[attr-defined]
    predicted = [[(each.label, each.probability) for each in mask.choices] for mask in trace.header.predictions]
    for ours, theirs in zip(predicted, fillers, strict=True):
        assert [text for text, _ in ours] == [guess.text for guess in theirs]
        assert [probability for _, probability in ours] == pytest.approx(
            [guess.probability for guess in theirs], rel=1e-4
        )
    assert [token.piece for token in trace.header.source if token.special].count("⟨mask⟩") == 2


def test_masked_lm_takes_a_text_without_masks() -> None:
    trace = task_models()["masked-lm"].trace(RunRequest(text="the old cat"))
    assert (trace.output, trace.header.predictions) == ("the old cat", [])


def test_output_of_a_text_classifier_is_its_label() -> None:
    traced_model = task_models()["text-classification"]
    trace = traced_model.trace(RunRequest(text="a big sea"))
    ((best, probability), *_) = traced_model.pipeline.classify(["a big sea"])[0]  # type: ignore[attr-defined]
    assert trace.output == best
    assert trace.header.predictions[0].choices[0].probability == pytest.approx(probability, rel=1e-4)


def test_output_of_a_tagger_is_its_tags() -> None:
    traced_model = task_models()["token-classification"]
    trace = traced_model.trace(RunRequest(text="a big sea, isn't it?"))
    assert trace.output == str(traced_model.pipeline.tag(["a big sea, isn't it?"])[0])  # type: ignore[attr-defined]
    assert [prediction.item for prediction in trace.header.predictions] == [
        "a",
        "big",
        "sea",
        ",",
        "is",
        "n't",
        "it",
        "?",
    ]


def test_tokens_of_an_image_are_class_token_registers_and_patches() -> None:
    header = traced("image-classification").header
    assert header.grid is not None
    assert (header.grid.rows, header.grid.columns) == (3, 3)
    assert header.grid.image.startswith("data:image/png;base64,")
    names = [token.piece for token in header.source]
    assert names == ["⟨class⟩", "⟨register 1⟩", *(f"{row},{column}" for row in range(3) for column in range(3))]


def test_output_of_an_image_classifier_is_its_class() -> None:
    from regard.look.models.images import image_from_data_url

    traced_model = task_models()["image-classification"]
    image_request = request(traced_model)
    trace = traced_model.trace(image_request)
    ((best, probability), *_) = traced_model.pipeline.classify(image_from_data_url(image_request.image or ""))  # type: ignore[attr-defined]
    assert trace.output == best
    assert trace.header.predictions[0].choices[0].probability == pytest.approx(probability, rel=1e-4)


def test_shown_image_is_the_models_input() -> None:
    """Sent again, it gives the same pixels and the same predictions."""
    traced_model = task_models()["image-classification"]
    first = traced_model.trace(request(traced_model))
    assert first.header.grid is not None
    again = traced_model.trace(RunRequest(text="", image=first.header.grid.image))
    assert again.header.predictions == first.header.predictions
    assert again.header.grid == first.header.grid


@each_task
def test_saved_trace_loads_unchanged(task: str, tmp_path: Path) -> None:
    trace = traced(task)
    back = load_trace(trace.save(tmp_path / "one.safetensors"))
    assert back.header == trace.header
    assert set(back.arrays) == set(trace.arrays)
    for name, array in trace.arrays.items():
        assert torch.equal(back.arrays[name], array)
    assert back.traced_model is None


def test_loaded_trace_has_no_model(tmp_path: Path) -> None:
    back = load_trace(traced("translation").save(tmp_path / "one.safetensors"))
    with pytest.raises(UserError, match="loaded without its model, 'small'"):
        back.node(0)
    with pytest.raises(UserError, match="loaded without its model"):
        back.cell("encoder", 0, 0, 0)


def with_header_values(content: bytes, **values: object) -> bytes:
    """The content of a file with other values in the trace's header."""
    length = struct.unpack("<Q", content[:8])[0]
    file_header = json.loads(content[8 : 8 + length])
    header = json.loads(file_header["__metadata__"]["regard"]) | values
    file_header["__metadata__"]["regard"] = json.dumps(header)
    encoded = json.dumps(file_header).encode()
    encoded += b" " * (-len(encoded) % 8)
    return struct.pack("<Q", len(encoded)) + encoded + content[8 + length :]


def test_other_version_is_refused() -> None:
    with pytest.raises(UserError, match=r"one\.trace is a trace of version 2"):
        trace_from_bytes(with_header_values(traced("translation").to_bytes(), version=2), "one.trace")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": "something"}, "is not a trace: the format in its header"),
        ({"source": "words"}, "is damaged: source is not valid"),
        ({"nodes": [{}]}, r"is damaged: nodes\.0\."),
        ({"arrays": []}, "its arrays are not those that its header lists"),
        ({"source": []}, "does not match its header"),
    ],
)
def test_invalid_header_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        trace_from_bytes(with_header_values(traced("translation").to_bytes(), **values), "one.trace")


def test_cyclic_search_tree_is_refused() -> None:
    trace = traced("translation")
    nodes = [node.model_copy(update={"parent": node.id}) for node in trace.header.nodes]
    trace.header = trace.header.model_copy(update={"nodes": nodes})
    with pytest.raises(UserError, match="its search tree are out of order"):
        trace_from_bytes(trace.to_bytes(), "one.trace")


@pytest.mark.parametrize("size", [0, 4, 100, -1])
def test_truncated_file_is_refused(size: int, tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(traced("translation").to_bytes()[:size])
    with pytest.raises(UserError, match="is damaged or truncated, or not a trace"):
        load_trace(tmp_path / "cut")


def test_flipped_header_byte_is_refused_or_harmless() -> None:
    """A damaged header never raises anything but a UserError."""
    content = traced("text-classification").to_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    for offset in range(0, 8 + length, 7):
        broken = content[:offset] + bytes([content[offset] ^ 0xFF]) + content[offset + 1 :]
        with contextlib.suppress(UserError):
            trace_from_bytes(broken)


def test_other_safetensors_files_are_refused(tmp_path: Path) -> None:
    from regard.run.tensors import write_tensors

    write_tensors(tmp_path / "weights", {"a": torch.zeros(2)})
    with pytest.raises(UserError, match="is not a trace: its metadata have no entry"):
        load_trace(tmp_path / "weights")


def test_pickles_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(2)}, tmp_path / "pickle")
    with pytest.raises(UserError, match="damaged or truncated, or not a trace"):
        load_trace(tmp_path / "pickle")


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be opened"):
        load_trace(tmp_path / "none")


def test_file_larger_than_any_trace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = traced("translation").save(tmp_path / "one")
    monkeypatch.setattr("regard.look.trace.MAX_BYTES", 100)
    with pytest.raises(UserError, match="no trace is larger than 200"):
        load_trace(path)
    with pytest.raises(UserError, match="no trace is larger than 200"):
        trace_from_bytes(path.read_bytes())


def test_attention_beyond_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.look.trace.MAX_BYTES", 1000)
    with pytest.raises(UserError, match=r"would take .* MiB, and a trace holds at most 0 MiB"):
        traced("translation")


@pytest.mark.parametrize(("layer", "head"), [(None, None), (0, None), (None, 1), (1, 2)])
def test_attention_selects_layer_and_head(layer: int | None, head: int | None) -> None:
    trace = traced("translation")
    weights = trace.array("attention/cross").float()
    selected = weights if layer is None else weights[layer : layer + 1]
    selected = selected if head is None else selected[:, head : head + 1]
    assert torch.equal(trace.attention("cross", layer, head).reshape(selected.shape), selected)


@pytest.mark.parametrize(("attention_type", "layer", "head"), [("cross", 2, 0), ("cross", 0, 4), ("encoder", -1, 0)])
def test_missing_layer_or_head_is_refused(attention_type, layer: int, head: int) -> None:
    with pytest.raises(UserError, match="counted from 0"):
        traced("translation").attention(attention_type, layer, head)


def test_missing_array_is_refused() -> None:
    with pytest.raises(UserError, match=r"no array 'attention/cross'; it has attention/encoder\."):
        traced("text-classification").attention("cross")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_max_pool_takes_the_maximum_of_each_block(size: int, dtype: torch.dtype) -> None:
    array = torch.rand(2, 3, 7, 5).to(dtype)
    pooled = max_pool(array, size)
    assert pooled.shape == (2, 3, -(-7 // size), -(-5 // size))
    for row in range(pooled.shape[2]):
        for column in range(pooled.shape[3]):
            block = array[..., row * size : (row + 1) * size, column * size : (column + 1) * size]
            assert torch.equal(pooled[..., row, column], block.amax(dim=(-1, -2)))


@pytest.mark.parametrize("task", ["translation", "translation by a language model", "parsing"])
def test_empty_input_is_refused(task: str) -> None:
    with pytest.raises(UserError, match=r"enter a sentence\."):
        task_models()[task].trace(RunRequest(text="  "))


def test_input_without_words_to_tag_is_refused() -> None:
    with pytest.raises(UserError, match="no word to tag"):
        task_models()["token-classification"].trace(RunRequest(text=" "))


@pytest.mark.parametrize(
    "url", ["", "nothing", "data:text/plain;base64,AAAA", "data:image/png;base64,!!", "data:image/png;base64,AAAA"]
)
def test_invalid_image_url_is_refused(url: str) -> None:
    with pytest.raises(UserError, match=r"An image is sent as|cannot be read|There is no image"):
        task_models()["image-classification"].trace(RunRequest(text="", image=url))


def test_image_with_too_many_pixels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.look.models.images.MAX_PIXELS", 10)
    with pytest.raises(UserError, match="has 12 × 9 pixels; make it smaller"):
        traced("image-classification")
