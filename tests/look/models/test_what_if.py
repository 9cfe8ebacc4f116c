"""A what-if run is the model's own search under constraints, and the recorded search shows what was forced."""

import math

import pytest
import torch

from regard.errors import UserError
from regard.look.models.autoregressive import TracedAutoregressiveModel
from regard.look.schema import RunRequest
from tests.look.support import SENTENCES, TEXT, autoregressive_model
from tests.model.small_models import language_model


def traced(kind: str) -> TracedAutoregressiveModel:
    return autoregressive_model(None if kind == "translation" else language_model())


@pytest.mark.parametrize("kind", ["translation", "language-modeling"])
@pytest.mark.parametrize("method", ["beam", "greedy", "sample"])
def test_forced_tokens_keep_the_probability_of_the_model(kind: str, method: str) -> None:
    model = traced(kind)
    request = RunRequest.model_validate({"text": TEXT, "decoding": {"method": method, "max_new_tokens": 7}})
    chosen = model.trace(request).header
    first = model.prefix_length(request)
    prefix = [chosen.target[first].id, chosen.generated[1].alternatives[4].token.id]
    header = model.trace(request.model_copy(update={"prefix_tokens": prefix})).header
    assert [token.id for token in header.target[first : first + 2]] == prefix
    ids = [token.id for token in header.target]
    logprobs = model.logits(request, ids[:-1]).double().log_softmax(dim=-1)[first - 1 :]
    expected = [float(row[token]) for row, token in zip(logprobs, ids[first:], strict=True)]
    assert header.log_probability == pytest.approx(sum(expected), abs=1e-9)
    forced = [node for node in header.nodes if node.step <= len(prefix)]
    assert [node.token.id for node in forced] == prefix  # no other candidates
    assert [node.log_probability for node in forced] == pytest.approx(expected[:2], abs=1e-9)
    assert any(node.step == 3 and node.state == "pruned" for node in header.nodes) or method != "beam"


@pytest.mark.parametrize("kind", ["translation", "language-modeling"])
def test_an_output_can_be_ended(kind: str) -> None:
    model = traced(kind)
    header = model.trace(RunRequest(text=TEXT, prefix_tokens=[40, model.eos])).header
    assert [token.id for token in header.target[-2:]] == [40, model.eos]
    with pytest.raises(UserError, match="no token can follow"):
        model.trace(RunRequest(text=TEXT, prefix_tokens=[model.eos, 40]))


def test_translation_equals_that_of_the_pipeline() -> None:
    """With required and forbidden words, and with a prefix that is given as text."""
    model = autoregressive_model(dtype=torch.float64)
    translate = model.pipeline.translate  # type: ignore[attr-defined]
    before = model.trace(RunRequest(text=TEXT)).header
    for words in ({"require": ["cat"]}, {"forbid": [before.output[0]]}):
        found = model.trace(RunRequest.model_validate({"text": TEXT, **words})).header
        assert found.output == translate(TEXT, split=False, **words) != before.output
    prefix = SENTENCES[1][:11]
    ids = model.target_tokenizer.encode(prefix)
    found = model.trace(RunRequest(text=TEXT, prefix_tokens=ids)).header
    assert found.output == translate(TEXT, prefix=prefix, split=False)
    with pytest.raises(UserError, match="prefix contains a forbidden word"):
        model.trace(RunRequest(text=TEXT, prefix_tokens=ids, forbid=["old"]))


@pytest.mark.parametrize("kind", ["translation", "language-modeling"])
def test_a_search_with_words_is_recorded_as_it_was(kind: str) -> None:
    model = traced(kind)
    decoding = {"method": "beam", "beam_size": 3, "max_new_tokens": 9}
    free = model.trace(RunRequest.model_validate({"text": TEXT, "decoding": decoding})).header
    request = {"text": TEXT, "decoding": decoding, "require": ["cat"], "forbid": [free.output.strip()[0]]}
    header = model.trace(RunRequest.model_validate(request)).header
    assert "cat" in header.output
    assert free.output.strip()[0] not in header.output
    output = [node for node in header.nodes if node.in_output]
    assert [node.token.id for node in output] == [each.token.id for each in header.generated]
    assert [math.exp(node.log_probability) for node in output] == pytest.approx(
        [each.probability for each in header.generated], abs=1e-9
    )
    assert output[-1].total_log_probability == pytest.approx(header.log_probability, abs=1e-9)
