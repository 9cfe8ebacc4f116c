"""A trace of every task: what it says, what its arrays are, and that a file gives it back or refuses."""

import contextlib
import json
import struct
from pathlib import Path

import pytest
import torch

from regard import UserError
from regard.decode import DecodeConfig
from regard.look.trace import Trace, load_trace, pooled, unpack
from regard.look.wire import RunRequest, SomeDecodingSettings
from tests.look.support import every_task, request, writer

every = pytest.mark.parametrize("task", list(every_task()))


def traced(task: str) -> Trace:
    subject = every_task()[task]
    return subject.trace(request(subject))


@every
def test_arrays_have_a_row_for_each_token_of_what_was_read_and_written(task: str) -> None:
    trace = traced(task)
    header = trace.header
    for facts in header.model.attention:
        queries = header.source if facts.side == "encoder" else header.target
        keys = header.target if facts.side == "decoder" else header.source
        array = trace.array(f"attention/{facts.side}")
        assert array.shape == (facts.layers, facts.heads, len(queries), len(keys))
        assert array.dtype == torch.float16
        torch.testing.assert_close(array.float().sum(dim=-1), torch.ones(array.shape[:-1]), rtol=0, atol=5e-3)


@every
def test_the_header_tells_of_every_array(task: str) -> None:
    trace = traced(task)
    told = {one.name: (one.dtype, one.shape) for one in trace.header.arrays}
    assert told == {name: ("float16", list(array.shape)) for name, array in trace.arrays.items()}


@every
def test_attention_is_what_the_model_computes(task: str) -> None:
    """In 16 bits; and so is what is watched in a pass of one's own."""
    subject = every_task()[task]
    trace = subject.trace(request(subject))
    from regard.look.attentions import Gathered

    gathered = Gathered(subject.model)
    subject.forced(trace, gathered)
    for side in gathered.weights:
        torch.testing.assert_close(trace.attention(side), gathered.stacked(side), rtol=0, atol=5e-4)


def test_a_translator_answers_as_it_translates() -> None:
    subject = writer(dtype=torch.float32)
    trace = subject.trace(RunRequest(text="the old cat"))
    assert trace.output == subject.translator.translate("the old cat")  # type: ignore[attr-defined]


def test_a_language_model_shows_its_prompt_and_what_follows() -> None:
    subject = every_task()["language"]
    trace = subject.trace(RunRequest(text="the old", decoding=SomeDecodingSettings(method="greedy", longest=5)))
    header = trace.header
    assert header.target[: len(header.source)] == header.source
    assert len(header.target) == len(header.source) + len(header.written)
    plain = subject.generator.generate("the old", limit=5, decode=DecodeConfig(beams=1))  # type: ignore[attr-defined]
    assert trace.output == plain


def test_a_parser_answers_with_a_tree_over_the_words() -> None:
    subject = every_task()["parsing"]
    trace = subject.trace(RunRequest(text="the cat slept"))
    assert trace.output == str(subject.parser.parse("the cat slept"))  # type: ignore[attr-defined]


def test_a_filler_answers_as_it_fills() -> None:
    subject = every_task()["filling"]
    text = "the [MASK] ate [MASK] mouse"
    trace = subject.trace(RunRequest(text=text))
    gaps = subject.filler.fill(text)  # type: ignore[attr-defined]
    assert trace.output == subject.filler.filled(text, gaps)  # type: ignore[attr-defined]
    found = [[(one.label, one.probability) for one in gap.choices] for gap in trace.header.labels]
    for ours, theirs in zip(found, gaps, strict=True):
        assert [text for text, _ in ours] == [guess.text for guess in theirs]
        assert [chance for _, chance in ours] == pytest.approx([guess.probability for guess in theirs], rel=1e-4)
    assert [token.piece for token in trace.header.source if token.special].count("⟨mask⟩") == 2


def test_a_text_without_gaps_is_read_all_the_same() -> None:
    trace = every_task()["filling"].trace(RunRequest(text="the old cat"))
    assert (trace.output, trace.header.labels) == ("the old cat", [])


def test_a_labeller_answers_as_it_labels() -> None:
    subject = every_task()["labelling"]
    trace = subject.trace(RunRequest(text="a big sea"))
    ((best, chance), *_) = subject.labeller.label(["a big sea"])[0]  # type: ignore[attr-defined]
    assert trace.output == best
    assert trace.header.labels[0].choices[0].probability == pytest.approx(chance, rel=1e-4)


def test_a_tagger_answers_as_it_tags() -> None:
    subject = every_task()["tagging"]
    trace = subject.trace(RunRequest(text="a big sea, isn't it?"))
    assert trace.output == str(subject.labeller.tag(["a big sea, isn't it?"])[0])  # type: ignore[attr-defined]
    assert [one.of for one in trace.header.labels] == ["a", "big", "sea", ",", "is", "n't", "it", "?"]


def test_a_picture_has_a_class_token_registers_and_patches() -> None:
    header = traced("pictures").header
    assert header.grid is not None
    assert (header.grid.rows, header.grid.columns) == (3, 3)
    assert header.grid.picture.startswith("data:image/png;base64,")
    names = [token.piece for token in header.source]
    assert names == ["⟨class⟩", "⟨register 1⟩", *(f"{row},{column}" for row in range(3) for column in range(3))]


def test_a_picture_is_classified_as_it_is() -> None:
    from regard.look.readers import sent_picture

    subject = every_task()["pictures"]
    wanted = request(subject)
    trace = subject.trace(wanted)
    ((best, chance), *_) = subject.classifier.classify(sent_picture(wanted.picture or ""))  # type: ignore[attr-defined]
    assert trace.output == best
    assert trace.header.labels[0].choices[0].probability == pytest.approx(chance, rel=1e-4)


def test_what_is_shown_of_a_picture_is_what_the_model_sees() -> None:
    """Read again, it gives the same pixels and the same answer."""
    subject = every_task()["pictures"]
    first = subject.trace(request(subject))
    assert first.header.grid is not None
    again = subject.trace(RunRequest(text="", picture=first.header.grid.picture))
    assert again.header.labels == first.header.labels
    assert again.header.grid == first.header.grid


@every
def test_a_file_gives_back_all_of_it(task: str, tmp_path: Path) -> None:
    trace = traced(task)
    back = load_trace(trace.save(tmp_path / "one.safetensors"))
    assert back.header == trace.header
    assert list(back.arrays) == sorted(trace.arrays) or set(back.arrays) == set(trace.arrays)
    for name, array in trace.arrays.items():
        assert torch.equal(back.arrays[name], array)
    assert back.subject is None


def test_a_loaded_trace_says_that_its_model_is_not_here(tmp_path: Path) -> None:
    back = load_trace(traced("translation").save(tmp_path / "one.safetensors"))
    with pytest.raises(UserError, match="saved without its model, 'small'"):
        back.node(0)
    with pytest.raises(UserError, match="saved without its model"):
        back.cell("encoder", 0, 0, 0)


def changed(packed: bytes, **values: object) -> bytes:
    """A file whose header of ours has other values."""
    length = struct.unpack("<Q", packed[:8])[0]
    stated = json.loads(packed[8 : 8 + length])
    header = json.loads(stated["__metadata__"]["regard"]) | values
    stated["__metadata__"]["regard"] = json.dumps(header)
    made = json.dumps(stated).encode()
    made += b" " * (-len(made) % 8)
    return struct.pack("<Q", len(made)) + made + packed[8 + length :]


def test_another_version_is_refused_with_a_sentence() -> None:
    with pytest.raises(UserError, match=r"a trace of version 2, and this regard reads version 1; make it anew"):
        unpack(changed(traced("translation").packed(), version=2), "one.trace")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"format": "something"}, "is no trace: its header does not say"),
        ({"source": "words"}, "is damaged: source is not as a trace has it"),
        ({"nodes": [{}]}, r"is damaged: nodes\.0\."),
        ({"arrays": []}, "its arrays are not those that its header tells of"),
        ({"source": []}, "does not fit the rest of it"),
    ],
)
def test_a_header_that_is_wrong_is_refused(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        unpack(changed(traced("translation").packed(), **values), "one.trace")


def test_a_tree_that_goes_round_in_circles_is_refused() -> None:
    trace = traced("translation")
    nodes = [node.model_copy(update={"parent": node.id}) for node in trace.header.nodes]
    trace.header = trace.header.model_copy(update={"nodes": nodes})
    with pytest.raises(UserError, match="its tree of candidates is not in order"):
        unpack(trace.packed(), "one.trace")


@pytest.mark.parametrize("cut", [0, 4, 100, -1])
def test_a_file_that_is_cut_short_is_refused(cut: int, tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(traced("translation").packed()[:cut])
    with pytest.raises(UserError, match="is damaged or cut short, or no trace at all"):
        load_trace(tmp_path / "cut")


def test_every_byte_that_is_flipped_is_refused_or_harmless() -> None:
    """Nothing but a sentence ever comes of a damaged header."""
    packed = traced("labelling").packed()
    length = struct.unpack("<Q", packed[:8])[0]
    for place in range(0, 8 + length, 7):
        broken = packed[:place] + bytes([packed[place] ^ 0xFF]) + packed[place + 1 :]
        with contextlib.suppress(UserError):
            unpack(broken)


def test_other_files_of_tensors_are_refused(tmp_path: Path) -> None:
    from regard.run.tensors import write_tensors

    write_tensors(tmp_path / "weights", {"a": torch.zeros(2)})
    with pytest.raises(UserError, match="is no trace: it has no header of regard"):
        load_trace(tmp_path / "weights")


def test_pickles_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(2)}, tmp_path / "pickle")
    with pytest.raises(UserError, match="damaged or cut short, or no trace at all"):
        load_trace(tmp_path / "pickle")


def test_what_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be opened"):
        load_trace(tmp_path / "none")


def test_a_file_larger_than_any_trace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = traced("translation").save(tmp_path / "one")
    monkeypatch.setattr("regard.look.trace.LARGEST", 100)
    with pytest.raises(UserError, match="no trace is larger than 200"):
        load_trace(path)
    with pytest.raises(UserError, match="no trace is larger than 200"):
        unpack(path.read_bytes())


def test_more_than_can_be_kept_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.look.trace.LARGEST", 1000)
    with pytest.raises(UserError, match=r"would take .* MiB, and at most 0 are kept; give a shorter text"):
        traced("translation")


@pytest.mark.parametrize(("layer", "head"), [(None, None), (0, None), (None, 1), (1, 2)])
def test_some_layers_and_heads_can_be_asked_for(layer: int | None, head: int | None) -> None:
    trace = traced("translation")
    whole = trace.array("attention/cross").float()
    chosen = whole if layer is None else whole[layer : layer + 1]
    chosen = chosen if head is None else chosen[:, head : head + 1]
    found = trace.attention("cross", layer, head)
    assert torch.equal(found.reshape(chosen.shape), chosen)


@pytest.mark.parametrize(("side", "layer", "head"), [("cross", 2, 0), ("cross", 0, 4), ("encoder", -1, 0)])
def test_what_is_not_there_cannot_be_asked_for(side, layer: int, head: int) -> None:
    with pytest.raises(UserError, match="count from 0"):
        traced("translation").attention(side, layer, head)


def test_an_array_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match=r"no array 'attention/cross'; it has attention/encoder\."):
        traced("labelling").attention("cross")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_pooling_takes_the_greatest_of_each_block(size: int, dtype: torch.dtype) -> None:
    array = torch.rand(2, 3, 7, 5).to(dtype)
    made = pooled(array, size)
    assert made.shape == (2, 3, -(-7 // size), -(-5 // size))
    for row in range(made.shape[2]):
        for column in range(made.shape[3]):
            block = array[..., row * size : (row + 1) * size, column * size : (column + 1) * size]
            assert torch.equal(made[..., row, column], block.amax(dim=(-1, -2)))


@pytest.mark.parametrize("task", ["translation", "translation by a language model", "parsing"])
def test_nothing_to_read_is_refused(task: str) -> None:
    with pytest.raises(UserError, match=r"give a sentence\."):
        every_task()[task].trace(RunRequest(text="  "))


def test_no_word_to_tag_is_refused() -> None:
    with pytest.raises(UserError, match="no word to tag"):
        every_task()["tagging"].trace(RunRequest(text=" "))


@pytest.mark.parametrize(
    "address", ["", "nothing", "data:text/plain;base64,AAAA", "data:image/png;base64,!!", "data:image/png;base64,AAAA"]
)
def test_what_is_no_picture_is_refused(address: str) -> None:
    with pytest.raises(UserError, match=r"A picture is sent as|cannot be read|There is no picture"):
        every_task()["pictures"].trace(RunRequest(text="", picture=address))


def test_a_picture_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.look.readers.PIXELS", 10)
    with pytest.raises(UserError, match="has 12 × 9 pixels; make it smaller"):
        traced("pictures")
