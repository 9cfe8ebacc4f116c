"""A cell is what attention computed: its softmax gives the recorded weights, its sum the head's output."""

from typing import Any

import pytest
import torch

from regard import UserError
from regard.look.analysis.attention_maps import find_attention
from regard.look.schema import Cell, RunRequest
from tests.look.support import LAYOUTS, TEXT, autoregressive_model, model_with_layout, request, task_models
from tests.model.small_models import encoder_decoder, stack


def softmax(masked_scores: list[float | None]) -> torch.Tensor:
    scores = torch.tensor([float("-inf") if score is None else score for score in masked_scores], dtype=torch.float64)
    return scores.softmax(dim=-1)


def check(cell: Cell, recorded: torch.Tensor, tolerance: float = 1e-10) -> None:
    """recorded: the row of weights that an observer saw."""
    query, keys, values = (torch.tensor(each, dtype=torch.float64) for each in (cell.query, cell.keys, cell.values))
    scores = torch.tensor(cell.scores, dtype=torch.float64)
    torch.testing.assert_close(keys @ query, scores, rtol=0, atol=tolerance)
    torch.testing.assert_close(cell.scale * scores, torch.tensor(cell.scaled_scores).double(), rtol=0, atol=1e-6)
    for score, masked in zip(cell.scaled_scores, cell.masked_scores, strict=True):
        assert masked is None or masked == score
    weights = torch.tensor(cell.weights, dtype=torch.float64)
    torch.testing.assert_close(softmax(cell.masked_scores), weights, rtol=0, atol=tolerance)
    torch.testing.assert_close(weights, recorded.double(), rtol=0, atol=tolerance)
    torch.testing.assert_close(weights @ values, torch.tensor(cell.output).double(), rtol=0, atol=1e-6)


def recorded_weights(traced_model: Any, trace: Any, attention_type: str, layer: int) -> torch.Tensor:
    """The weights of one attention module in a forward pass.  # (heads, queries, keys)"""
    recorded: list[torch.Tensor] = []
    attention = find_attention(traced_model.model, attention_type, layer)  # type: ignore[arg-type]

    def attention_hook(module: torch.nn.Module, weights: torch.Tensor) -> None:
        if module is attention:
            recorded.append(weights[0])

    traced_model.forward_trace(trace, attention_hook)
    return recorded[-1]


def head_outputs(traced_model: Any, trace: Any, attention_type: str, layer: int) -> torch.Tensor:
    """The input of one attention's output projection.  # (queries, heads · value_head_dim)"""
    outputs: list[torch.Tensor] = []
    attention = find_attention(traced_model.model, attention_type, layer)  # type: ignore[arg-type]
    hook = attention.o_proj.register_forward_pre_hook(lambda module, given: outputs.append(given[0][0]))
    traced_model.forward_trace(trace, lambda module, weights: None)
    hook.remove()
    return outputs[0]


@pytest.mark.parametrize("kind", ["translation", "language-modeling"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_cell_is_what_attention_computed(layout: str, kind: str) -> None:
    """Also with shared KV heads, rotary positions, cosine similarity and latent keys and values."""
    traced_model = model_with_layout(layout, kind)
    trace = traced_model.trace(RunRequest(text=TEXT))
    for spec in trace.header.model.attention:
        layer = spec.layers - 1
        recorded, outputs = (
            recorded_weights(traced_model, trace, spec.attention_type, layer),
            head_outputs(traced_model, trace, spec.attention_type, layer),
        )
        width = find_attention(traced_model.model, spec.attention_type, layer).sizes.value_head_dim
        for head in range(spec.heads):
            query = (3 * head + 1) % recorded.shape[1]
            cell = trace.cell(spec.attention_type, layer, head, query)
            check(cell, recorded[head, query])
            expected = outputs[query, head * width : (head + 1) * width]
            torch.testing.assert_close(torch.tensor(cell.output).double(), expected.double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("task", list(task_models()))
def test_cell_weights_are_those_of_the_trace_for_every_task(task: str) -> None:
    traced_model = task_models()[task]
    trace = traced_model.trace(request(traced_model))
    attention_type = trace.header.model.attention[-1].attention_type
    cell = trace.cell(attention_type, 1, 2, 3)
    torch.testing.assert_close(
        torch.tensor(cell.weights), trace.attention(attention_type, 1, 2)[3], rtol=0, atol=5e-4, check_dtype=False
    )


def test_later_tokens_are_masked() -> None:
    traced_model = model_with_layout("multi-head", "language-modeling")
    cell = traced_model.trace(RunRequest(text=TEXT)).cell("decoder", 0, 0, 4)
    assert [score is None for score in cell.masked_scores] == [key > 4 for key in range(len(cell.masked_scores))]
    assert cell.weights[5:] == [0.0] * len(cell.weights[5:])


@pytest.mark.parametrize(
    ("heads", "similarity", "scale"),
    [({}, "scaled", 0.5), ({"similarity": "dot"}, "dot", 1.0), ({"head_dim": 16}, "scaled", 0.25)],
)
def test_scale_is_that_of_the_similarity(heads: dict[str, Any], similarity: str, scale: float) -> None:
    traced_model = autoregressive_model(encoder_decoder(encoder=stack(**heads)))
    cell = traced_model.trace(RunRequest(text=TEXT)).cell("encoder", 0, 0, 0)
    assert (cell.similarity, cell.scale) == (similarity, scale)


def test_cosine_similarity_uses_unit_vectors_and_the_learned_scale() -> None:
    traced_model = model_with_layout("cosine", "translation")
    cell = traced_model.trace(RunRequest(text=TEXT)).cell("encoder", 1, 3, 2)
    attention: Any = find_attention(traced_model.model, "encoder", 1)
    assert cell.scale == pytest.approx(float(attention.logit_scale[3].detach()))
    assert torch.tensor(cell.query).norm() == pytest.approx(1.0)
    assert torch.tensor(cell.keys).norm(dim=-1).tolist() == pytest.approx([1.0] * len(cell.keys))
    assert max(map(abs, cell.scores)) <= 1.0 + 1e-9


def test_window_is_part_of_the_full_matrix() -> None:
    traced_model = autoregressive_model()
    trace = traced_model.trace(RunRequest(text=" ".join([TEXT] * 9)))
    recorded = recorded_weights(traced_model, trace, "encoder", 0)[1]
    assert len(recorded) > 64
    for query in (0, 40, len(recorded) - 1):
        window = trace.cell("encoder", 0, 1, query).window
        weights = torch.tensor(window.weights)
        assert weights.shape == (64, 64)
        rows = slice(window.first_query, window.first_query + 64)
        columns = slice(window.first_key, window.first_key + 64)
        assert query in range(len(recorded))[rows]
        torch.testing.assert_close(weights.double(), recorded[rows, columns].double(), rtol=0, atol=1e-6)
        assert window.masked_scores == window.scaled_scores


def test_window_of_a_short_text_is_the_full_matrix() -> None:
    traced_model = model_with_layout("multi-head", "language-modeling")
    trace = traced_model.trace(RunRequest(text=TEXT))
    window = trace.cell("decoder", 0, 0, 1).window
    size = len(trace.header.target)
    assert (window.first_query, window.first_key, len(window.scaled_scores), len(window.scaled_scores[0])) == (
        0,
        0,
        size,
        size,
    )
    assert [[score is None for score in row] for row in window.masked_scores] == [
        [key > query for key in range(size)] for query in range(size)
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("encoder", 5, 0, 0), "no layer 5"),
        (("encoder", 0, 9, 0), "no head 9"),
        (("encoder", 0, 0, 999), "no token 999"),
    ],
)
def test_missing_cell_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    trace = autoregressive_model().trace(RunRequest(text=TEXT))
    with pytest.raises(UserError, match=message):
        trace.cell(*arguments)
