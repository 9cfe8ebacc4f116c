"""The log-probability of given continuations is the model's own, token by token."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard import UserError
from regard.look.continuations import continuations
from regard.look.wire import RunRequest
from tests.look.support import TEXT, writer
from tests.model.small_models import language_model

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("joined", [False, True])
def test_it_is_the_sum_over_the_tokens_behind_the_beginning(joined: bool) -> None:
    subject = writer(language_model(), translates=True) if joined else writer()
    translator = subject.translator  # type: ignore[attr-defined]
    found = continuations(translator, TEXT, "the old", [" cat", " sea, the sun"])
    for one, text in zip(found, (" cat", " sea, the sun"), strict=True):
        (steps,) = translator.score([TEXT], [f"the old{text}"])
        assert one.text == text
        assert one.log_probability == pytest.approx(sum(steps[-1 - len(one.tokens) : -1]))
        assert translator.target_text.decode(one.tokens) == text


def test_all_continuations_of_one_token_share_a_whole() -> None:
    subject = writer()
    translator = subject.translator  # type: ignore[attr-defined]
    source = subject.source(RunRequest(text=TEXT))
    first = translator.target_text.encode("the old")
    with torch.no_grad():
        logits = subject.model(torch.tensor([[*source.ids, 2]]), torch.tensor([[1, *first]]))[0, -1]
    (one,) = continuations(translator, TEXT, "the old", [" cat"])
    assert one.log_probability == pytest.approx(float(logits.log_softmax(dim=-1)[one.tokens[0]]))


def test_where_a_word_goes_on_its_tokens_count_from_where_they_differ() -> None:
    subject = writer()
    translator = subject.translator  # type: ignore[attr-defined]
    (one,) = continuations(translator, TEXT, "the mou", ["se"])
    (steps,) = translator.score([TEXT], ["the mouse"])
    assert one.log_probability == pytest.approx(sum(steps[-1 - len(one.tokens) : -1]))


def test_a_text_that_adds_nothing_is_refused() -> None:
    translator = writer().translator  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="'' adds nothing to 'the'"):
        continuations(translator, TEXT, "the", [""])
    assert continuations(translator, TEXT, "the", []) == []


def test_the_example_prints_both_sentences_every_head_and_every_word() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "animal.py", "en-tr", "--beginning", "Hayvan", "--words", " o", " bu"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("log p( o | Hayvan)") == done.stdout.count("log p( bu | Hayvan)") == 2
    assert done.stdout.count("what 'it' looks at") == 24
    assert "animal" in done.stdout
