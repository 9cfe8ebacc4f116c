"""Long inputs: a translator's text is split into sentences, and a trace says what was cut."""

import pytest
import torch

from regard.attention import LearnedConfig
from regard.look.models.traced_model import TracedModel
from regard.look.schema import RunRequest
from regard.task.translation.pipeline import MAX_CHARACTERS, split_text
from tests.look.support import TEXT, autoregressive_model, encoder_model, request, task_models
from tests.model.small_models import language_model

PASSAGE = "Dr. Smith was late. The cat ate the mouse!\n\nWhere is it?"


@pytest.mark.parametrize("task", ["translation", "translation by a language model"])
def test_translator_splits_a_text_as_its_pipeline_does(task: str) -> None:
    found = task_models()[task].split_text(PASSAGE)
    assert found.sentences == ["Dr. Smith was late.", "The cat ate the mouse!", "Where is it?"]
    assert found.sentences == list(split_text(PASSAGE).sentences)
    assert found.note is None


def test_divided_sentence_is_said() -> None:
    long = "word, " * MAX_CHARACTERS
    found = task_models()["translation"].split_text(long)
    assert found.sentences == list(split_text(long).sentences)
    assert len(found.sentences) > 1
    assert str(MAX_CHARACTERS) in (found.note or "")


@pytest.mark.parametrize("task", ["language-modeling", "parsing", "text-classification"])
def test_other_tasks_take_a_text_as_it_is(task: str) -> None:
    assert task_models()[task].split_text(PASSAGE).sentences == [PASSAGE]
    assert not task_models()[task].summary().splits_sentences


def cuts(traced_model: TracedModel, **more: object) -> list[str] | None:
    return traced_model.trace(request(traced_model, **more)).header.cuts  # type: ignore[arg-type]


def test_output_that_is_cut_says_why() -> None:
    model = autoregressive_model(language_model(position=LearnedConfig(max_length=12)), torch.float32)
    (by_setting,) = cuts(model, text="a mouse", decoding={"max_new_tokens": 2}) or []
    assert by_setting.startswith("The output was cut after 2 tokens")
    assert by_setting.endswith("that is the maximum number of new tokens.")
    (by_positions,) = cuts(model, text="a", decoding={"max_new_tokens": 50, "method": "greedy"}) or []
    assert by_positions.endswith("the model has 12 positions.")
    translator = task_models()["translation"]  # its search allows for seven tokens
    trace = translator.trace(RunRequest.model_validate({"text": TEXT, "decoding": {"max_new_tokens": 50}}))
    assert trace.header.hypotheses is not None
    ended = trace.header.hypotheses[0].ended
    assert (trace.header.cuts is None) == ended
    assert ended or (trace.header.cuts or [""])[0].endswith("tokens gets no longer output.")


def test_classifier_says_how_much_of_the_input_it_reads() -> None:
    model = encoder_model({"kind": "classification", "labels": ("good", "bad")}, torch.float32)
    assert cuts(model) is None
    whole = len(model.trace(request(model)).header.source) - 2
    model.pipeline.max_length = 8  # type: ignore[attr-defined]
    assert cuts(model) == [f"The input was cut: of its {whole} tokens, this classifier reads the first 6."]
