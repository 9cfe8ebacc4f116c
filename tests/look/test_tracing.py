"""`pipeline.trace(text)` for whatever `regard.load` returns."""

from pathlib import Path

import pytest
import torch

import regard
from regard import UserError
from regard.attention import LearnedConfig
from regard.look.models.auto import load_traced_model, make_traced_model
from regard.look.models.examples import TRANSLATION
from regard.look.schema import DecodingOverrides, RunRequest
from regard.look.trace import Trace
from regard.run import LoadedModel
from regard.task.pipeline import Pipeline
from tests.look.support import TEXT, autoregressive_model, classifier, request, sample_image, save_run, task_models
from tests.model.small_models import build, encoder, language_model, vision


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("models") / "small", autoregressive_model(dtype=torch.float32))


def test_loaded_pipeline_is_traced(folder: Path) -> None:
    model = regard.load(folder)
    trace = model.trace(TEXT)
    assert isinstance(trace, Trace)
    assert trace.output == model.translate(TEXT)
    assert repr(trace).startswith(f"Trace({TEXT!r} → ")


def test_decoding_settings_override_defaults(folder: Path) -> None:
    model = regard.load(folder)
    greedy = model.trace(TEXT, method="greedy", max_new_tokens=3)
    assert len(greedy.header.generated) <= 3
    assert greedy.output == regard.trace(model, TEXT, method="greedy", max_new_tokens=3).output


def test_ablated_heads_are_part_of_the_request(folder: Path) -> None:
    trace = regard.load(folder).trace(TEXT, ablated_heads=[("cross", 0, 1), ("encoder", 1, 3)], ablation="mean")
    assert trace.header.request.ablated_heads is not None
    assert [
        (head.attention_type, head.layer, head.head, head.ablation) for head in trace.header.request.ablated_heads
    ] == [
        ("cross", 0, 1, "mean"),
        ("encoder", 1, 3, "mean"),
    ]


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"beam_size": 0}, "beam_size"),
        ({"width": 3}, "width"),
        ({"beam_sise": 3}, "'beam_sise'; did you mean 'beam_size'"),
        ({"ablated_heads": [("nowhere", 0, 0)]}, "attention_type"),
    ],
)
def test_invalid_settings_are_refused(folder: Path, settings: dict, word: str) -> None:
    with pytest.raises(UserError, match=word):
        regard.load(folder).trace(TEXT, **settings)


def test_input_that_is_not_text_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="Expected a text, found a value of type int"):
        regard.load(folder).trace(3)


def test_image_is_a_path_or_a_pillow_image(tmp_path: Path) -> None:
    traced_model = classifier()
    pipeline = traced_model.pipeline  # type: ignore[attr-defined]
    image = sample_image()
    image.save(tmp_path / "one.png")
    first, second = pipeline.trace(image), pipeline.trace(tmp_path / "one.png")
    assert first.output == second.output == pipeline.classify(image)[0][0]
    assert torch.equal(first.attention("encoder"), second.attention("encoder"))
    assert second.text == str(tmp_path / "one.png")


def test_loaded_model_is_named_after_its_folder(folder: Path) -> None:
    traced_model = load_traced_model(folder)
    assert (traced_model.name, traced_model.task, traced_model.folder) == ("small", "translation", folder)


def test_model_without_tokenizer_or_labels_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be traced: it has no tokenizer"):
        make_traced_model(Pipeline(LoadedModel(build(encoder()))))
    with pytest.raises(UserError, match="cannot be traced: it has no tokenizer"):
        Pipeline(LoadedModel(build(language_model()))).trace("a")
    with pytest.raises(UserError, match="not an image classifier"):
        make_traced_model(Pipeline(LoadedModel(build(vision(classes=0)))))


@pytest.mark.parametrize("task", list(task_models()))
def test_summary_describes_the_model(task: str) -> None:
    traced_model = task_models()[task]
    summary = traced_model.summary()
    assert summary.task == traced_model.task
    assert summary.parameters == sum(parameter.numel() for parameter in traced_model.model.parameters())
    expected = {"translation": ["encoder", "decoder", "cross"], "parsing": ["encoder", "decoder", "cross"]}
    assert [spec.attention_type for spec in summary.attention] == expected.get(
        task, ["decoder"] if "language" in task else ["encoder"]
    )
    assert all((spec.layers, spec.heads) == (2, 4) for spec in summary.attention)


@pytest.mark.parametrize(
    ("name", "example"), [("tatoeba-fr-en", "Je suis étudiant."), ("en-tr", "The cat ate the mouse."), ("zz-en", "")]
)
def test_example_is_in_the_source_language(name: str, example: str) -> None:
    traced_model = autoregressive_model()
    traced_model.name = name
    assert traced_model.example == example


def test_languages_of_a_translator_come_from_its_name() -> None:
    traced_model = autoregressive_model()
    traced_model.name = "tatoeba-fr-en"
    assert (traced_model.summary().language, traced_model.summary().target_language) == ("fr", "en")
    traced_model.name = "mine"
    assert traced_model.summary().target_language is None


@pytest.mark.parametrize("task", list(task_models()))
def test_examples_run(task: str) -> None:
    summary = task_models()[task].summary()
    assert summary.examples is not None
    assert len(set(summary.examples)) == (0 if summary.input == "image" else 8)
    assert summary.example == next(iter(summary.examples), "")
    for example in summary.examples:
        assert task_models()[task].encode_request(RunRequest(text=example))  # type: ignore[attr-defined]


def test_every_language_has_its_own_examples() -> None:
    assert [len(set(sentences)) for sentences in TRANSLATION.values()] == [8] * len(TRANSLATION)


def test_input_beyond_max_positions_is_refused_and_output_truncated() -> None:
    traced_model = autoregressive_model(language_model(position=LearnedConfig(max_length=12)))
    decoding = DecodingOverrides(method="greedy", max_new_tokens=50)
    trace = traced_model.trace(RunRequest(text="the cat", decoding=decoding))
    assert len(trace.header.target) == 13
    assert trace.array("attention/decoder").shape[-2:] == (13, 13)
    assert not trace.attention("decoder")[:, :, -1].any()
    with pytest.raises(UserError, match="too long: this model has 12 positions"):
        traced_model.trace(RunRequest(text=" ".join([TEXT] * 5), decoding=decoding))


def test_edited_tokens_replace_the_text() -> None:
    traced_model = autoregressive_model(dtype=torch.float32)
    first = traced_model.trace(RunRequest(text="the cat sat"))
    pieces = [token.piece for token in first.header.source]
    index = next(index for index, token in enumerate(first.header.source) if token.word == 1)
    second = traced_model.trace(
        RunRequest(text="the cat sat", source_tokens=[*pieces[:index], "dog", *pieces[index + 1 :]])
    )
    assert second.text.startswith("the dog")
    assert second.header.request.source_tokens == [token.piece for token in second.header.source]
    again = traced_model.trace(second.header.request)
    assert again.header.source == second.header.source
    assert again.output == second.output == traced_model.pipeline.translate(second.text)  # type: ignore[attr-defined]


def test_special_token_inside_a_text_is_refused() -> None:
    traced_model = autoregressive_model()
    pieces = [token.piece for token in traced_model.trace(RunRequest(text="the cat")).header.source]
    with pytest.raises(UserError, match="⟨bos⟩ is a special token"):
        traced_model.trace(RunRequest(text="the cat", source_tokens=["⟨bos⟩", *pieces[1:]]))


@pytest.mark.parametrize("task", ["masked-lm", "text-classification", "token-classification"])
def test_tokens_of_encoders_can_be_edited(task: str) -> None:
    traced_model = task_models()[task]
    first = traced_model.trace(request(traced_model))
    pieces = [token.piece for token in first.header.source]
    second = traced_model.trace(request(traced_model, source_tokens=[pieces[0], "a", *pieces[2:]]))
    assert second.text != first.text
    assert second.header.source != first.header.source
    assert traced_model.trace(second.header.request).header.predictions == second.header.predictions
