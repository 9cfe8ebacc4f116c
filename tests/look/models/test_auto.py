"""A pipeline of an unknown task gets a generic traced model, chosen by the type of its model."""

from collections.abc import Sequence

import pytest
import torch

from regard.look.models.auto import make_traced_model
from regard.look.models.traced_model import TracedModel
from regard.look.schema import Embedded
from regard.run import LoadedModel
from regard.task.pipeline import Pipeline
from tests.look.support import LABELS, TEXT, autoregressive_model, classifier, encoder_model, request
from tests.look.test_standalone import embedded
from tests.model.small_models import language_model

DECODING = {"method": "greedy", "max_new_tokens": 6}


class ReversedText(Pipeline):
    """A task whose input and output are reversed texts."""

    def encode_input(self, text: str) -> Sequence[int]:
        return self._tokenizer.encode(text[::-1]).ids

    def decode_output(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids)))[::-1]

    @property
    def _tokenizer(self):
        assert self.loaded.tokenizer is not None
        return self.loaded.tokenizer


def of_unknown_task(known: TracedModel, kind: type[Pipeline] = Pipeline) -> TracedModel:
    loaded = known.pipeline.loaded  # type: ignore[attr-defined]
    copy = LoadedModel(loaded.model, loaded.tokenizer, loaded.target_tokenizer, origin={"task": "a-new-task"})
    return make_traced_model(kind(copy), "small")


@pytest.mark.parametrize(
    "known",
    [
        autoregressive_model(dtype=torch.float32),
        autoregressive_model(language_model(), torch.float32),
        encoder_model({"kind": "classification", "labels": LABELS}, torch.float32),
        classifier(),
    ],
    ids=["encoder-decoder", "language model", "encoder", "vision"],
)
def test_generic_trace_equals_the_trace_of_the_known_task(known: TracedModel) -> None:
    ours = of_unknown_task(known).trace(request(known, decoding=DECODING))
    theirs = known.trace(request(known, decoding=DECODING))
    assert ours.header.model.task == "a-new-task"
    assert ours.output == theirs.output
    assert ours.header.predictions == theirs.header.predictions
    for name, array in theirs.arrays.items():
        assert torch.equal(ours.arrays[name], array)
    Embedded.model_validate(embedded(ours.html()))


def test_tagger_of_an_unknown_task_labels_every_token() -> None:
    known = encoder_model({"kind": "token_classification", "labels": LABELS}, torch.float32)
    trace = of_unknown_task(known).trace(request(known))
    assert [prediction.item for prediction in trace.header.predictions] == [token.text for token in trace.header.source]


def test_pipeline_may_encode_its_input_and_decode_its_output() -> None:
    known = autoregressive_model(dtype=torch.float32)
    unknown = of_unknown_task(known, ReversedText)
    reversed_output = unknown.trace(request(known, TEXT[::-1], decoding=DECODING)).output
    assert reversed_output == known.trace(request(known, TEXT, decoding=DECODING)).output[::-1]
