"""A cell is what attention computed: its softmax gives the weights that were seen, its sum what a head hands over."""

from typing import Any

import pytest
import torch

from regard import UserError
from regard.look.attentions import attention_at
from regard.look.wire import Cell, RunRequest
from tests.look.support import LAYOUTS, TEXT, every_task, laid_out_writer, request, writer
from tests.model.small_models import encoder_decoder, stack


def softmax(masked: list[float | None]) -> torch.Tensor:
    """Written out, nothing being what may not be seen."""
    scores = torch.tensor([float("-inf") if score is None else score for score in masked], dtype=torch.float64)
    return scores.softmax(dim=-1)


def check(cell: Cell, seen: torch.Tensor, tolerance: float = 1e-10) -> None:
    """seen: the row of weights that attention has shown."""
    query, keys, values = (torch.tensor(each, dtype=torch.float64) for each in (cell.query, cell.keys, cell.values))
    products = torch.tensor(cell.products, dtype=torch.float64)
    torch.testing.assert_close(keys @ query, products, rtol=0, atol=tolerance)
    torch.testing.assert_close(cell.scale * products, torch.tensor(cell.scaled).double(), rtol=0, atol=1e-6)
    for score, masked in zip(cell.scaled, cell.masked, strict=True):
        assert masked is None or masked == score
    weights = torch.tensor(cell.weights, dtype=torch.float64)
    torch.testing.assert_close(softmax(cell.masked), weights, rtol=0, atol=tolerance)
    torch.testing.assert_close(weights, seen.double(), rtol=0, atol=tolerance)
    torch.testing.assert_close(weights @ values, torch.tensor(cell.result).double(), rtol=0, atol=1e-6)


def shown(subject: Any, trace: Any, side: str, layer: int) -> torch.Tensor:
    """The weights of one attention in one pass.  # (heads, queries, keys)"""
    kept: dict[int, torch.Tensor] = {}
    attention = attention_at(subject.model, side, layer)  # type: ignore[arg-type]

    def watch(module: torch.nn.Module, weights: torch.Tensor) -> None:
        if module is attention:
            kept[0] = weights[0]

    subject.forced(trace, watch)
    return kept[0]


def handed_over(subject: Any, trace: Any, side: str, layer: int) -> torch.Tensor:
    """What the heads of one attention gave to the output projection.  # (queries, heads · value width)"""
    kept: list[torch.Tensor] = []
    attention = attention_at(subject.model, side, layer)  # type: ignore[arg-type]
    hook = attention.output.register_forward_pre_hook(lambda module, given: kept.append(given[0][0]))
    subject.forced(trace, lambda module, weights: None)
    hook.remove()
    return kept[0]


@pytest.mark.parametrize("kind", ["translation", "language"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cell_is_what_attention_computed(layout: str, kind: str) -> None:
    """Also where key heads are shared, positions turn, cosines are compared, keys and values come of a latent."""
    subject = laid_out_writer(layout, kind)
    trace = subject.trace(RunRequest(text=TEXT))
    for facts in trace.header.model.attention:
        layer = facts.layers - 1
        seen, given = shown(subject, trace, facts.side, layer), handed_over(subject, trace, facts.side, layer)
        width = attention_at(subject.model, facts.side, layer).sizes.value_width
        for head in range(facts.heads):
            query = (3 * head + 1) % seen.shape[1]
            cell = trace.cell(facts.side, layer, head, query)
            check(cell, seen[head, query])
            own = given[query, head * width : (head + 1) * width]
            torch.testing.assert_close(torch.tensor(cell.result).double(), own.double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("task", list(every_task()))
def test_a_cell_is_in_the_trace_of_every_task(task: str) -> None:
    subject = every_task()[task]
    trace = subject.trace(request(subject))
    side = trace.header.model.attention[-1].side
    cell = trace.cell(side, 1, 2, 3)
    torch.testing.assert_close(
        torch.tensor(cell.weights), trace.attention(side, 1, 2)[3], rtol=0, atol=5e-4, check_dtype=False
    )


def test_later_words_may_not_be_seen() -> None:
    subject = laid_out_writer("multi-head", "language")
    cell = subject.trace(RunRequest(text=TEXT)).cell("decoder", 0, 0, 4)
    assert [score is None for score in cell.masked] == [place > 4 for place in range(len(cell.masked))]
    assert cell.weights[5:] == [0.0] * len(cell.weights[5:])


@pytest.mark.parametrize(
    ("heads", "similarity", "scale"),
    [({}, "scaled", 0.5), ({"similarity": "dot"}, "dot", 1.0), ({"head_width": 16}, "scaled", 0.25)],
)
def test_the_scale_is_the_one_that_is_used(heads: dict[str, Any], similarity: str, scale: float) -> None:
    subject = writer(encoder_decoder(encoder=stack(**heads)))
    cell = subject.trace(RunRequest(text=TEXT)).cell("encoder", 0, 0, 0)
    assert (cell.similarity, cell.scale) == (similarity, scale)


def test_cosines_are_of_vectors_of_length_1_and_have_the_scale_that_was_learned() -> None:
    subject = laid_out_writer("cosine", "translation")
    cell = subject.trace(RunRequest(text=TEXT)).cell("encoder", 1, 3, 2)
    attention: Any = attention_at(subject.model, "encoder", 1)
    assert cell.scale == pytest.approx(float(attention.scale[3].detach()))
    assert torch.tensor(cell.query).norm() == pytest.approx(1.0)
    assert torch.tensor(cell.keys).norm(dim=-1).tolist() == pytest.approx([1.0] * len(cell.keys))
    assert max(map(abs, cell.products)) <= 1.0 + 1e-9


def test_the_square_around_a_query_is_that_of_the_matrices() -> None:
    subject = writer()
    trace = subject.trace(RunRequest(text=" ".join([TEXT] * 9)))
    seen = shown(subject, trace, "encoder", 0)[1]
    assert len(seen) > 64
    for query in (0, 40, len(seen) - 1):
        square = trace.cell("encoder", 0, 1, query).square
        weights = torch.tensor(square.weights)
        assert weights.shape == (64, 64)
        rows = slice(square.first_query, square.first_query + 64)
        columns = slice(square.first_key, square.first_key + 64)
        assert query in range(len(seen))[rows]
        torch.testing.assert_close(weights.double(), seen[rows, columns].double(), rtol=0, atol=1e-6)
        assert square.masked == square.scores


def test_the_square_of_a_short_text_is_all_of_it() -> None:
    subject = laid_out_writer("multi-head", "language")
    trace = subject.trace(RunRequest(text=TEXT))
    square = trace.cell("decoder", 0, 0, 1).square
    size = len(trace.header.target)
    assert (square.first_query, square.first_key, len(square.scores), len(square.scores[0])) == (0, 0, size, size)
    assert [[score is None for score in row] for row in square.masked] == [
        [key > query for key in range(size)] for query in range(size)
    ]


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        (("encoder", 5, 0, 0), "no layer 5"),
        (("encoder", 0, 9, 0), "no head 9"),
        (("encoder", 0, 0, 999), "no token 999"),
    ],
)
def test_a_cell_that_is_not_there_is_refused(place: tuple[Any, ...], sentence: str) -> None:
    trace = writer().trace(RunRequest(text=TEXT))
    with pytest.raises(UserError, match=sentence):
        trace.cell(*place)
