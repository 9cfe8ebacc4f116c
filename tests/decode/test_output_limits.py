"""Limits on an output hold in every strategy, in `Engine`, with an ensemble and with a shortlist."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.decode import (
    BeamSearch,
    Constraints,
    DecodeConfig,
    Engine,
    Ensemble,
    Hypothesis,
    LengthPenalty,
    OutputLimits,
    Request,
    make_strategy,
    search,
    search_batch,
)
from regard.decode.logits_processors import repeated_tokens
from regard.decode.shortlist import Shortlist, search_batch_shortlisted
from regard.decode.strategy import GeneratedTokens
from tests.decode.test_cuda_graphs import EOS as MODEL_EOS
from tests.decode.test_cuda_graphs import make_decoder, make_model, random_sources
from tests.decode.toy_models import EOS, TableModel, start_tokens

CONFIGS: dict[str, dict[str, Any]] = {
    "greedy": {"beam_size": 1},
    "sampling": {"beam_size": 1, "sample": True},
    "beam": {"beam_size": 3},
    "diverse": {"beam_size": 4, "beam_groups": 2},
    "constrained": {"beam_size": 3},
}
every_config = pytest.mark.parametrize("name", CONFIGS)


def decode(model: TableModel, name: str, constraints: Constraints | None = None, **more: Any) -> list[list[Hypothesis]]:
    rows = len(model.logits)
    required = Constraints(required=((2,),)) if name == "constrained" else Constraints()
    config = DecodeConfig(**CONFIGS[name], **more)
    strategy = make_strategy(config, [12] * rows, EOS, constraints=[constraints or required] * rows)
    return search(model, model.start(), start_tokens(rows), strategy)


@every_config
@pytest.mark.parametrize("min_length", [1, 4])
def test_no_output_ends_before_the_min_length(name: str, min_length: int) -> None:
    model = TableModel(6, 6, 2)
    model.logits[..., EOS] += 6  # otherwise outputs would not end at once
    if name != "constrained":
        assert any(not one.tokens for row in decode(model, name, min_length=0) for one in row)
    for hypotheses in decode(model, name, min_length=min_length):
        assert len(hypotheses) >= min(2, CONFIGS[name]["beam_size"])
        assert all(len(one.tokens) >= min_length for one in hypotheses)


def test_outputs_are_not_empty_by_default() -> None:
    assert DecodeConfig().min_length == 1


@every_config
def test_no_output_loops(name: str) -> None:
    model = TableModel(4, 6, 3)
    model.logits[..., 3, 4] += 7
    model.logits[..., 4, 3] += 7
    model.logits[..., 1, 3] += 7
    model.logits[..., EOS] -= 4
    loop = (3, 4, 3, 4, 3, 4)
    assert any(loops(one.tokens, loop) for row in decode(model, name) for one in row)
    assert not any(loops(one.tokens, loop) for row in decode(model, name, max_repeats=2) for one in row)


def loops(tokens: tuple[int, ...], loop: tuple[int, ...]) -> bool:
    return any(tokens[start : start + len(loop)] == loop for start in range(len(tokens)))


@settings(max_examples=100)
@given(tokens=st.lists(st.integers(0, 2), max_size=24), max_repeats=st.integers(2, 4))
def test_repeated_token_is_that_of_the_shortest_ngram(tokens: list[int], max_repeats: int) -> None:
    expected = -1
    for size in range(8, 0, -1):
        count = size * max_repeats
        if len(tokens) >= count and tokens[-count:] == tokens[-size:] * max_repeats:
            expected = tokens[-size]
    buffer = torch.tensor([[*tokens, *[0] * (30 - len(tokens))]])
    found = repeated_tokens(max_repeats, GeneratedTokens(buffer, torch.tensor([len(tokens)])))
    assert found.tolist() == [[expected]]


def test_beam_search_keeps_all_beams_where_eos_is_excluded() -> None:
    model = TableModel(3, 6, 2)
    model.logits[..., EOS] += 6
    strategy = BeamSearch([9] * 3, EOS, 3, length_penalty=LengthPenalty(kind="none"))
    strategy.limits = OutputLimits(min_length=1)
    state, tokens = model.start(), start_tokens(3)
    state.reorder_beams(torch.arange(3).repeat_interleave(3))
    logits, _ = model.step(tokens.repeat_interleave(3)[:, None], state)
    strategy.choose(logits[:, -1])
    assert torch.isfinite(strategy.alive.logprobs).all()
    assert (strategy.alive.tokens[:, :, 0] != EOS).all()


@pytest.mark.parametrize("beam_size", [1, 2])
def test_limits_hold_everywhere(beam_size: int) -> None:
    model = make_model()
    with torch.no_grad():
        model.lm_head_bias[MODEL_EOS] += 40  # otherwise outputs would not end at once
    config = DecodeConfig(beam_size=beam_size, min_length=0)
    requests = [Request(source, 9, config) for source in random_sources(5)]
    assert all(not best.tokens for best, *_ in search_batch(model, requests, MODEL_EOS))
    requests = [Request(source, 9, config.updated({"min_length": 2})) for source in random_sources(5)]
    expected = [[len(one.tokens) for one in each] for each in search_batch(model, requests, MODEL_EOS)]
    assert {length for each in expected for length in each} <= {2, 3}
    every = Shortlist(torch.arange(60), torch.full((60, 1), -1), torch.zeros(2, 32, dtype=torch.uint8))
    found = {
        "graphs": search_batch(make_decoder(model), requests, MODEL_EOS),
        "ensemble": search_batch(Ensemble([model, model]), requests, MODEL_EOS),
        "shortlist": search_batch_shortlisted(model, requests, MODEL_EOS, every),
    }
    engine = Engine(model, MODEL_EOS, max_rows=4)
    futures = [engine.submit(request) for request in requests]
    engine.run()
    found["engine"] = [future.result(0) for future in futures]
    for name, hypotheses in found.items():
        assert [[len(one.tokens) for one in each] for each in hypotheses] == expected, name
