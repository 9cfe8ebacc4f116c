"""Requests are put into batches of a bounded number of tokens, whatever else is in the list."""

import pytest
import torch

from regard.attention.positions.config import LearnedConfig
from regard.decode import DecodeConfig, Hypothesis, Request, score_all, score_forced, search_all
from regard.model import LanguageModelConfig
from tests.decode.toy_models import small_stack


def batch_sizes(requests: list[Request], batch_tokens: int, threads: int = 1) -> list[int]:
    sizes = []

    def record(model: object, batch: list[Request], eos: int) -> list[list[Hypothesis]]:
        sizes.append(len(batch))
        return [[] for _ in batch]

    search_all(None, requests, 2, batch_tokens=batch_tokens, threads=threads, search=record)  # type: ignore[arg-type]
    return sizes


def test_a_short_group_does_not_make_later_batches_smaller() -> None:
    short = Request((5,), 9, DecodeConfig(beam_size=2))
    others = [Request((5,) * 9, 9, DecodeConfig(beam_size=1)) for _ in range(20)]
    assert batch_sizes([short, *others], 100) == [1, 10, 10]


def test_every_thread_gets_a_batch_of_each_group() -> None:
    requests = [Request((5,) * 9, 9, DecodeConfig(beam_size=size)) for size in (1, 1, 2, 2, 2, 2)]
    assert sorted(batch_sizes(requests, 100, threads=2)) == [1, 1, 2, 2]


@pytest.mark.parametrize("positions", [None, 12], ids=["batch by batch", "row by row"])
def test_forced_scores_keep_their_order_in_any_batches(positions: int | None) -> None:
    """With 12 positions, the longest prompt leaves no room for the padding of the longest output."""
    torch.manual_seed(0)
    position = {} if positions is None else {"position": LearnedConfig(max_length=positions)}
    model = LanguageModelConfig(vocab_size=9, width=8, decoder=small_stack(), **position).build().double().eval()
    prompts = [(1,), (1, 5, 3, 7, 2, 4, 6, 8), (2, 2), (1, 3, 4)]
    outputs = [(3, 4, 5, 6, 7, 8, 3), (5,), (), (8, 8, 2)]
    done: list[int] = []
    found = score_all(model, prompts, outputs, 2, batch_tokens=18, progress=done.append)
    assert done == [2, 4]
    for prompt, output, logprobs in zip(prompts, outputs, found, strict=True):
        state, start = model.prefill([prompt], len(output) + 1)
        assert logprobs == pytest.approx(score_forced(model, state, start, [output], eos=2)[0], abs=1e-9)
        assert len(logprobs) == len(output) + 1
