"""`model.trace(text)` of whatever `regard.load` gives."""

from pathlib import Path

import pytest
import torch

import regard
from regard import UserError
from regard.attention import LearnedConfig
from regard.look.opening import open_subject, subject_of
from regard.look.trace import Trace
from regard.look.wire import RunRequest, SomeDecodingSettings
from regard.run import Loaded
from tests.look.support import TEXT, classifier, every_task, picture, request, saved, writer
from tests.model.small_models import build, encoder, language_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "small", writer(dtype=torch.float32))


def test_a_loaded_model_can_be_traced(folder: Path) -> None:
    model = regard.load(folder)
    trace = model.trace(TEXT)
    assert isinstance(trace, Trace)
    assert trace.output == model.translate(TEXT)
    assert repr(trace).startswith(f"Trace({TEXT!r} → ")


def test_decoding_can_be_chosen(folder: Path) -> None:
    model = regard.load(folder)
    greedy = model.trace(TEXT, method="greedy", longest=3)
    assert len(greedy.header.written) <= 3
    assert greedy.output == regard.trace(model, TEXT, method="greedy", longest=3).output


def test_heads_can_be_off(folder: Path) -> None:
    trace = regard.load(folder).trace(TEXT, off=[("cross", 0, 1), ("encoder", 1, 3)], how="mean")
    assert trace.header.request.off is not None
    assert [(one.side, one.layer, one.head, one.how) for one in trace.header.request.off] == [
        ("cross", 0, 1, "mean"),
        ("encoder", 1, 3, "mean"),
    ]


@pytest.mark.parametrize(
    ("settings", "word"), [({"beams": 0}, "beams"), ({"width": 3}, "width"), ({"off": [("nowhere", 0, 0)]}, "side")]
)
def test_settings_that_mean_nothing_are_refused(folder: Path, settings: dict, word: str) -> None:
    with pytest.raises(UserError, match=word):
        regard.load(folder).trace(TEXT, **settings)


def test_what_is_no_text_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="Expected a text, found a value of type int"):
        regard.load(folder).trace(3)


def test_a_picture_may_be_a_file_or_an_image(tmp_path: Path) -> None:
    subject = classifier()
    model = subject.classifier  # type: ignore[attr-defined]
    image = picture()
    image.save(tmp_path / "one.png")
    first, second = model.trace(image), model.trace(tmp_path / "one.png")
    assert first.output == second.output == model.classify(image)[0][0]
    assert torch.equal(first.attention("encoder"), second.attention("encoder"))
    assert second.text == str(tmp_path / "one.png")


def test_a_folder_is_opened_with_its_name(folder: Path) -> None:
    subject = open_subject(folder)
    assert (subject.name, subject.task, subject.folder) == ("small", "translation", folder)


def test_a_model_without_text_or_labels_cannot_be_looked_into() -> None:
    with pytest.raises(UserError, match="cannot be looked into: a model of the kind 'encoder'"):
        subject_of(Loaded(build(encoder())))
    with pytest.raises(UserError, match="cannot be looked into"):
        Loaded(build(language_model())).trace("a")


@pytest.mark.parametrize("task", list(every_task()))
def test_a_summary_says_what_there_is(task: str) -> None:
    subject = every_task()[task]
    summary = subject.summary()
    assert summary.task == subject.task
    assert summary.parameters == sum(parameter.numel() for parameter in subject.model.parameters())
    wanted = {"translation": ["encoder", "decoder", "cross"], "parsing": ["encoder", "decoder", "cross"]}
    assert [one.side for one in summary.attention] == wanted.get(
        task, ["decoder"] if "language" in task else ["encoder"]
    )
    assert all((one.layers, one.heads) == (2, 4) for one in summary.attention)


@pytest.mark.parametrize(
    ("name", "example"), [("tatoeba-fr-en", "Je suis étudiant."), ("en-tr", "The cat ate the mouse."), ("zz-en", "")]
)
def test_an_example_is_in_the_language_that_is_read(name: str, example: str) -> None:
    subject = writer()
    subject.name = name
    assert subject.example == example


def test_a_sentence_longer_than_a_models_positions_is_refused_or_cut_short() -> None:
    subject = writer(language_model(position=LearnedConfig(limit=12)))
    longest = SomeDecodingSettings(method="greedy", longest=50)
    trace = subject.trace(RunRequest(text="the cat", decoding=longest))
    assert len(trace.header.target) == 13
    assert trace.array("attention/decoder").shape[-2:] == (13, 13)
    assert not trace.attention("decoder")[:, :, -1].any()
    with pytest.raises(UserError, match="too long: this model has 12 positions"):
        subject.trace(RunRequest(text=" ".join([TEXT] * 5), decoding=longest))


def test_edited_tokens_are_read_as_they_are_and_kept_as_a_text() -> None:
    subject = writer(dtype=torch.float32)
    first = subject.trace(RunRequest(text="the cat sat"))
    pieces = [token.piece for token in first.header.source]
    place = next(at for at, token in enumerate(first.header.source) if token.word == 1)
    second = subject.trace(RunRequest(text="the cat sat", source_tokens=[*pieces[:place], "dog", *pieces[place + 1 :]]))
    assert second.text.startswith("the dog")
    assert second.header.request.source_tokens == [token.piece for token in second.header.source]
    again = subject.trace(second.header.request)
    assert again.header.source == second.header.source
    assert again.output == second.output == subject.translator.translate(second.text)  # type: ignore[attr-defined]


def test_a_special_token_within_a_text_is_refused() -> None:
    subject = writer()
    pieces = [token.piece for token in subject.trace(RunRequest(text="the cat")).header.source]
    with pytest.raises(UserError, match="⟨start⟩ cannot stand within a text"):
        subject.trace(RunRequest(text="the cat", source_tokens=["⟨start⟩", *pieces[1:]]))


@pytest.mark.parametrize("task", ["filling", "labelling", "tagging"])
def test_tokens_of_readers_can_be_edited_too(task: str) -> None:
    subject = every_task()[task]
    first = subject.trace(request(subject))
    pieces = [token.piece for token in first.header.source]
    second = subject.trace(request(subject, source_tokens=[pieces[0], "a", *pieces[2:]]))
    assert second.text != first.text
    assert second.header.source != first.header.source
    assert subject.trace(second.header.request).header.labels == second.header.labels
