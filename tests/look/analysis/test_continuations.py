"""The log-probability of a continuation is the sum over its tokens."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard import UserError
from regard.look.analysis.continuations import score_continuations
from regard.look.schema import RunRequest
from tests.look.support import TEXT, autoregressive_model
from tests.model.small_models import language_model

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("is_language_model", [False, True])
def test_log_probability_is_the_sum_over_the_tokens_after_the_prefix(is_language_model: bool) -> None:
    traced_model = (
        autoregressive_model(language_model(), translates=True) if is_language_model else autoregressive_model()
    )
    translator = traced_model.pipeline  # type: ignore[attr-defined]
    scores = score_continuations(translator, TEXT, "the old", [" cat", " sea, the sun"])
    for one, text in zip(scores, (" cat", " sea, the sun"), strict=True):
        (steps,) = translator.score([TEXT], [f"the old{text}"])
        assert one.text == text
        assert one.logprob == pytest.approx(sum(steps[-1 - len(one.tokens) : -1]))
        assert translator.target_tokenizer.decode(one.tokens) == text


def test_single_token_has_its_log_softmax() -> None:
    traced_model = autoregressive_model()
    translator = traced_model.pipeline  # type: ignore[attr-defined]
    source = traced_model.encode_request(RunRequest(text=TEXT))
    first = translator.target_tokenizer.encode("the old")
    with torch.no_grad():
        logits = traced_model.model(torch.tensor([[*source.ids, 2]]), torch.tensor([[1, *first]]))[0, -1]
    (one,) = score_continuations(translator, TEXT, "the old", [" cat"])
    assert one.logprob == pytest.approx(float(logits.log_softmax(dim=-1)[one.tokens[0]]))


def test_tokens_count_from_the_first_that_differs() -> None:
    traced_model = autoregressive_model()
    translator = traced_model.pipeline  # type: ignore[attr-defined]
    (one,) = score_continuations(translator, TEXT, "the mou", ["se"])
    (steps,) = translator.score([TEXT], ["the mouse"])
    assert one.logprob == pytest.approx(sum(steps[-1 - len(one.tokens) : -1]))


def test_text_without_tokens_is_refused() -> None:
    translator = autoregressive_model().pipeline  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="'' adds no token to 'the'"):
        score_continuations(translator, TEXT, "the", [""])
    assert score_continuations(translator, TEXT, "the", []) == []


def test_example_prints_every_head_of_both_sentences() -> None:
    arguments = ["en-tr", "--prefix", "Hayvan", "--continuations", " o", " bu"]
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "coreference.py", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("log p( o | Hayvan)") == done.stdout.count("log p( bu | Hayvan)") == 2
    assert done.stdout.count("what 'it' attends to") == 24
    assert "animal" in done.stdout
