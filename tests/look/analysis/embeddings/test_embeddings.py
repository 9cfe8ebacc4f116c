"""Neighbors, contextual vectors and the residual stream of every kind of model, beside plain PyTorch."""

import pytest
import torch

from regard import UserError
from regard.look.analysis.embeddings.contextual import contextual_vectors
from regard.look.analysis.embeddings.neighbors import nearest_neighbors
from regard.look.analysis.embeddings.residual_stream import residual_stream
from regard.look.models.traced_model import TracedModel
from regard.look.schema import ContextualVectorsRequest, GroupedSentence
from regard.model import CausalLM
from tests.look.support import autoregressive_model, request, task_models
from tests.model.before.samples import SAMPLES

TEXT_TASKS = [task for task in task_models() if task != "image-classification"]
SENTENCES = [
    GroupedSentence(text=text, group=group)
    for text, group in (("the old cat sat", 0), ("a cat by the sea", 1), ("a mouse and a Cat", 1), ("the old sea", 2))
]


def vectors_of(traced_model: TracedModel, word: str | None = "cat", **more):
    return contextual_vectors(traced_model, ContextualVectorsRequest(sentences=SENTENCES, word=word, **more))


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_neighbors_have_the_highest_cosine(task: str) -> None:
    traced_model = task_models()[task]
    model = traced_model.model
    tables = {"target": model.embed_tokens}
    tables["source"] = getattr(model, "source_embed_tokens", None) or model.embed_tokens
    for side, table in tables.items():
        found = nearest_neighbors(traced_model, side, 5)
        cosines = torch.cosine_similarity(table.weight[5], table.weight, dim=1)
        cosines[5] = -2
        best = cosines.topk(10)
        assert [each.token.id for each in found.neighbors] == best.indices.tolist()
        assert [each.similarity for each in found.neighbors] == pytest.approx(best.values.tolist(), abs=1e-5)
        assert (found.vocab_size, found.width) == table.weight.shape
    with pytest.raises(UserError, match="there is no token 1000000"):
        nearest_neighbors(traced_model, "source", 1_000_000)


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_words_part_from_layer_to_layer(task: str) -> None:
    traced_model = task_models()[task]
    found = vectors_of(traced_model)
    assert [(word.sentence, word.text) for word in found.words][4:7] == [(1, "a"), (1, "cat"), (1, "by")]
    assert [found.words[index].text for index in found.occurrences] == ["cat", "cat", "Cat"]
    expected = traced_model.pipeline.contextual_vectors([each.text for each in SENTENCES], layer="all")
    stacked = torch.cat([each.vectors for each in expected], dim=1)  # (layers, words, width)
    static, *layers = found.layers
    assert static.cosines[0][1] == pytest.approx(1)
    for layer, vectors in zip(layers, stacked, strict=True):
        chosen = vectors[found.occurrences].double()
        cosines = torch.cosine_similarity(chosen[:, None], chosen[None], dim=2)
        torch.testing.assert_close(torch.tensor(layer.cosines, dtype=torch.float64), cosines, atol=1e-5, rtol=0)
        pairs = {(each.first, each.second): (each.pairs, each.mean) for each in layer.groups}
        assert pairs[1, 1] == (1, pytest.approx(float(cosines[1, 2]), abs=1e-5))
        assert pairs[0, 1] == (2, pytest.approx(float(cosines[0, 1:].mean()), abs=1e-5))
        units = torch.nn.functional.normalize(vectors.double(), dim=-1)
        u, s, _ = torch.linalg.svd(units - units.mean(dim=0), full_matrices=False)
        torch.testing.assert_close(
            torch.tensor(layer.points, dtype=torch.float64).abs(), (u * s)[:, :2].abs(), atol=1e-4, rtol=0
        )
        assert layer.variance == pytest.approx(float((s[:2] ** 2).sum() / (s**2).sum()), abs=1e-5)


def test_map_has_the_chosen_words_only() -> None:
    traced_model = task_models()["masked-lm"]
    found = vectors_of(traced_model, words=["SEA", "mouse"])
    assert [found.words[index].text for index in found.shown] == ["sea", "mouse", "sea"]
    assert all(len(layer.points) == 3 for layer in found.layers)
    with pytest.raises(UserError, match="None of the sentences has one of these words"):
        vectors_of(traced_model, words=["river"])


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_residual_stream_is_that_of_the_text_that_is_read(task: str) -> None:
    traced_model = task_models()[task]
    trace = traced_model.trace(request(traced_model))
    found = residual_stream(trace)
    tokens = trace.header.target if isinstance(traced_model.model, CausalLM) else trace.header.source
    assert found.tokens == tokens[: len(found.tokens)]
    with torch.no_grad():
        states = [state[0] for state in traced_model.model.hidden_states(torch.tensor([[each.id for each in tokens]]))]
    for layer, state in enumerate(states):
        assert found.norms[layer] == pytest.approx(state.norm(dim=-1).tolist(), rel=1e-4)
        if layer:
            cosines = torch.cosine_similarity(state, states[layer - 1], dim=-1)
            assert found.cosines[layer - 1] == pytest.approx(cosines.tolist(), abs=1e-5)


@pytest.mark.parametrize("kind", list(SAMPLES))
def test_models_before_the_transformer_have_them_or_say_why_not(kind: str) -> None:
    traced_model = autoregressive_model(next(iter(SAMPLES[kind].values())), torch.float32)
    if kind in ("ngram", "dnn1"):
        with pytest.raises(UserError, match="no embeddings of tokens"):
            nearest_neighbors(traced_model, "target", 5)
    else:
        assert len(nearest_neighbors(traced_model, "target", 5).neighbors) == 10
    trace = traced_model.trace(request(traced_model))
    if kind in ("ngram", "dnn1", "dnn2", "context", "window-lm"):
        for compute in (lambda: vectors_of(traced_model), lambda: residual_stream(trace)):
            with pytest.raises(UserError, match=r"no embeddings of tokens|no vectors of tokens in their context"):
                compute()
    else:
        layers = len(residual_stream(trace).norms)
        assert len(vectors_of(traced_model).layers) == 1 + layers > 2


def test_models_of_images_say_why_not() -> None:
    image_model = task_models()["image-classification"]
    with pytest.raises(UserError, match="reads images"):
        nearest_neighbors(image_model, "source", 0)
    with pytest.raises(UserError, match="reads images"):
        vectors_of(image_model)
