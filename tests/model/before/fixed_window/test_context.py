"""The steps to attention: the weights of each mixing, written out."""

import math

import pytest
import torch
from torch import Tensor

from regard.model.before.fixed_window.context import ContextConfig, ContextModel

EXACT: dict[str, float] = {"rtol": 1e-10, "atol": 1e-10}
MIXINGS = ["mean", "learned", "cosine", "query_key"]
LENGTHS = [4, 2]


def build(mixing: str) -> ContextModel:
    torch.manual_seed(0)
    config = ContextConfig(vocab_size=9, max_length=5, hidden=6, width=4, layers=1, mixing=mixing)
    return config.build().double().eval()


def words_of(model: ContextModel, row: int, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The words of one row without padding.  # (tokens, width) each"""
    length, width = LENGTHS[row], model.config.width
    table, places = model.embed_tokens.weight, model.source_positions.weight
    first = table[source[row, :length]] * width**0.5 + places[:length]
    return first, table[target[row]] * width**0.5 + model.target_positions.weight[: target.shape[1]]


def score(model: ContextModel, query: Tensor, key: Tensor) -> Tensor:
    """The score of one word for another, as the file says it."""
    match model.config.mixing:
        case "mean":
            return torch.tensor(0.0, dtype=torch.float64)
        case "learned":
            return model.mixing.score.weight[0] @ key
        case "cosine":
            return query @ key / (query.norm() * key.norm())
    return (model.mixing.q_proj.weight @ query) @ (model.mixing.k_proj.weight @ key) / math.sqrt(len(query))


def attention_weights(model: ContextModel, source: Tensor, target: Tensor) -> Tensor:
    found: list[Tensor] = []
    model(
        source,
        target,
        source_lengths=torch.tensor(LENGTHS),
        attention_hook=lambda module, weights: found.append(weights),
    )
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("mixing", MIXINGS)
def test_weights_and_logits_match_the_written_out_computation(mixing):
    model = build(mixing)
    source, target = torch.randint(9, (2, 4)), torch.randint(9, (2, 3))
    weights = attention_weights(model, source, target)
    logits = model(source, target, source_lengths=torch.tensor(LENGTHS))
    assert weights.shape == (2, 1, 3, 4 + 3)
    for row, length in enumerate(LENGTHS):
        first, second = words_of(model, row, source, target)
        for newest in range(3):
            context = torch.cat((first, second[: newest + 1]))
            scores = torch.stack([score(model, second[newest], word) for word in context])
            expected = scores.exp() / scores.exp().sum()
            seen = torch.cat((weights[row, 0, newest, :length], weights[row, 0, newest, 4 : 4 + newest + 1]))
            torch.testing.assert_close(seen, expected, **EXACT)
            hidden = (model.input.weight @ (expected @ context) + model.input.bias).relu()
            output = model.output.weight @ hidden + model.output.bias
            torch.testing.assert_close(
                logits[row, newest], model.embed_tokens.weight @ output + model.lm_head_bias, **EXACT
            )


@pytest.mark.parametrize("mixing", MIXINGS)
def test_rows_of_the_attention_matrix_sum_to_one_and_ignore_padding_and_the_future(mixing):
    model = build(mixing)
    source, target = torch.randint(9, (2, 4)), torch.randint(9, (2, 3))
    weights = attention_weights(model, source, target)[:, 0]  # (batch, target words, source and target words)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, dtype=torch.float64), **EXACT)
    assert (weights[1, :, 2:4] == 0).all()
    assert (weights[:, :, 4:].triu(1) == 0).all()
    assert (weights[0, :, :4] > 0).all()


def test_equal_weights_are_equal():
    weights = attention_weights(build("mean"), torch.randint(9, (2, 4)), torch.randint(9, (2, 3)))
    torch.testing.assert_close(weights[0, 0, 1, :6], torch.full((6,), 1 / 6, dtype=torch.float64), **EXACT)


def test_only_cosine_and_query_key_weights_depend_on_the_newest_word():
    source, target = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4]]), torch.tensor([[5, 6, 7], [5, 6, 8]])
    for mixing in MIXINGS:
        model = build(mixing)
        weights = torch.stack([attention_weights(model, source, target)[0, 0, 2, :4]])
        other = attention_weights(model, source, target.flip(0))[0, 0, 2, :4]
        ratios, other_ratios = weights[0] / weights[0, 0], other / other[0]
        same = torch.allclose(ratios, other_ratios, **EXACT)
        assert same == (mixing in ("mean", "learned"))


def test_cached_steps_report_the_weights_of_a_whole_pass():
    model = build("cosine")
    source, target = torch.randint(9, (2, 4)), torch.randint(9, (2, 3))
    whole = attention_weights(model, source, target)
    state = model.start(source, 5, torch.tensor(LENGTHS))
    found: list[Tensor] = []
    for number in range(3):
        model.step(target[:, number : number + 1], state, attention_hook=lambda _, weights: found.append(weights))
        torch.testing.assert_close(found[-1], whole[:, :, number : number + 1, : 4 + number + 1], **EXACT)
