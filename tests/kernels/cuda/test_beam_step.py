"""Search steps in Triton equal those in PyTorch, and ties go to the first candidate. Run in the interpreter."""

import pytest

pytest.importorskip("triton")

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.decode.beam import BeamSearch
from regard.decode.greedy import Greedy
from regard.decode.logits_processors import apply_limits
from regard.decode.strategy import MAX_PERIOD, Choice, GeneratedTokens, OutputLimits
from regard.kernels.cuda.beam_step import beam_step, exclude

pytestmark = pytest.mark.start_early(13)

NEG_INF = float("-inf")


@dataclass
class Slot:
    """A beam search slot in plain lists: live hypotheses (total, tokens, logprobs), and finished ones with scores."""

    max_length: int
    alive: list[tuple[float, list[int], list[float]]] = field(default_factory=lambda: [(0.0, [], [])])
    finished: list[tuple[float, bool, list[int], list[float]]] = field(default_factory=list)
    beam_indices: list[int] = field(default_factory=list)

    def step(self, rows: list[list[tuple[float, int]]], strategy: BeamSearch) -> None:
        """rows: logprobs and tokens of each row's candidates, best first"""
        beam_size, length = strategy.beam_size, len(self.alive[0][1]) + 1 if self.alive else 0
        candidates = [
            (total + logprob, beam, [*tokens, token], [*logprobs, logprob])
            for beam, (total, tokens, logprobs) in enumerate(self.alive)
            for logprob, token in rows[beam]
            if total + logprob > NEG_INF
        ]
        candidates = sorted(candidates, key=lambda each: -each[0])[: 2 * beam_size]  # ties stay in order
        ended = [each for each in candidates if each[2][-1] == strategy.eos]
        live = [each for each in candidates if each[2][-1] != strategy.eos][:beam_size]
        cut = live if length >= self.max_length else []
        penalty = strategy.length_penalty.at(length)
        new = [
            (total / penalty, each in ended, tokens, logprobs)
            for each in (*ended, *cut)
            for total, _, tokens, logprobs in [each]
        ]
        self.finished = sorted([*self.finished, *new], key=lambda each: -each[0])[:beam_size]
        self.beam_indices = [beam for _, beam, _, _ in live]
        self.alive = [] if cut else [(total, tokens, logprobs) for total, _, tokens, logprobs in live]


def topk_logsumexp(logits: Tensor, k: int) -> tuple[Tensor, ...]:
    """The kernel's result, faster than the interpreter."""
    values, tokens = logits.sort(dim=1, descending=True, stable=True)
    outputs = (values[:, :k], tokens[:, :k], logits.logsumexp(dim=1, keepdim=True))
    return tuple(each.contiguous() for each in outputs)


def step_with_kernel(strategy: BeamSearch | Greedy, logits: Tensor) -> Choice:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("regard.kernels.dispatch.runs_triton", lambda device: True)
        patched.setattr("regard.kernels.cuda.topk.topk_logsumexp", topk_logsumexp)
        return strategy.choose(logits)


def step_in_pytorch(strategy: BeamSearch, logits: Tensor) -> Choice:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("regard.decode.beam.uses_numba", lambda logits: False)
        return strategy.choose(logits)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("beam_size", [1, 2, 4, 5])
def test_beam_steps_equal_pytorch(beam_size: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.decode.beam.INITIAL_CAPACITY", 4)  # so that the capacity must grow
    torch.manual_seed(seed)
    rng = random.Random(seed)
    vocab_size, eos, max_lengths = rng.choice([beam_size + 1, 2 * beam_size, 30]), 1, [9, rng.randint(1, 8), 1]
    fused, plain = (BeamSearch(max_lengths, eos, beam_size) for _ in range(2))
    fused.nbest = plain.nbest = rng.choice([None, 1, beam_size])
    for _ in range(max(max_lengths)):
        logits = 2 * torch.randn(3 * beam_size, vocab_size)
        logits[:, eos] += rng.choice([-3.0, 0.0, 4.0])
        logits[torch.rand_like(logits) < 0.2 * seed] = NEG_INF
        logits[:, 0] = 0.0
        actual, expected = step_with_kernel(fused, logits), step_in_pytorch(plain, logits)
        alive = plain.alive.logprobs > NEG_INF
        assert torch.equal(fused.alive.logprobs > NEG_INF, alive)
        assert torch.allclose(fused.alive.logprobs, plain.alive.logprobs, atol=1e-5)
        assert actual.beam_indices is not None
        assert expected.beam_indices is not None
        assert torch.equal(actual.beam_indices[alive.flatten()], expected.beam_indices[alive.flatten()])
        assert torch.equal(actual.tokens[alive.flatten()], expected.tokens[alive.flatten()])
        assert torch.equal(fused.finished(), plain.finished())
        assert torch.equal(fused.lengths, plain.lengths)
        for slot in range(3):
            if alive[slot, 0]:
                assert fused.best_tokens(slot) == plain.best_tokens(slot)
            for one, other in zip(fused.results(slot), plain.results(slot), strict=True):
                assert (one.tokens, one.ended) == (other.tokens, other.ended)
                assert one.score == pytest.approx(other.score, abs=1e-5)
                assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-5)
                assert one.logprob == pytest.approx(sum(one.token_logprobs), abs=1e-5)
    assert fused.capacity == plain.capacity > 4
    assert bool(fused.finished().all())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("beam_size", [1, 2, 4, 5])
def test_ties_go_to_the_first_candidate(beam_size: int, seed: int) -> None:
    rng = random.Random(seed)
    max_lengths = [4, 7]
    strategy, slots = BeamSearch(max_lengths, 1, beam_size), [Slot(length) for length in max_lengths]
    k = 2 * beam_size
    for _ in range(7):
        values = torch.tensor(
            [sorted(rng.choices((0, -1, -2, NEG_INF), k=k), reverse=True) for _ in range(2 * beam_size)]
        )
        tokens = torch.tensor([rng.sample(range(4 * beam_size), k) for _ in range(2 * beam_size)])
        logsumexps = torch.tensor([[float(rng.choice((0, 1)))] for _ in range(2 * beam_size)])
        beam_indices = torch.zeros_like(strategy.next_tokens)
        outputs = (beam_indices, strategy.next_tokens, strategy.done)
        beam_step((values, tokens, logsumexps), strategy._kernel_state(), strategy.eos, beam_size, outputs)
        logprobs = (values - logsumexps).tolist()
        for number, slot in enumerate(slots):
            rows = slice(number * beam_size, (number + 1) * beam_size)
            pairs = zip(logprobs[rows], tokens[rows].tolist(), strict=True)
            slot.step([list(zip(*pair, strict=True)) for pair in pairs], strategy)
            alive = len(slot.alive)
            assert strategy.alive.logprobs[number].tolist() == [
                *(total for total, _, _ in slot.alive),
                *[NEG_INF] * (beam_size - alive),
            ]
            indices = (beam_indices[number] - number * beam_size).tolist()
            assert indices[: len(slot.beam_indices)] == slot.beam_indices
            for beam, (_, expected, expected_logprobs) in enumerate(slot.alive):
                assert strategy.alive.tokens[number, beam, : len(expected)].tolist() == expected
                assert strategy.alive.token_logprobs[number, beam, : len(expected)].tolist() == expected_logprobs
                assert strategy.next_tokens[number, beam] == expected[-1]
            results = strategy.results(number)
            assert [(one.score, one.ended) for one in results] == [each[:2] for each in slot.finished]
            assert [[*one.tokens, *[1] * one.ended] for one in results] == [each[2] for each in slot.finished]
            assert [list(one.token_logprobs) for one in results] == [each[3] for each in slot.finished]


@pytest.mark.parametrize("seed", range(4))
def test_greedy_steps_equal_pytorch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.decode.greedy.INITIAL_CAPACITY", 4)
    monkeypatch.setattr("regard.decode.greedy.uses_numba", lambda logits: False)
    torch.manual_seed(seed)
    max_lengths = [9, 6, 1, 0]
    fused, plain = (Greedy(max_lengths, 1) for _ in range(2))
    for _ in range(max(max_lengths)):
        logits = 2 * torch.randn(4, 12)
        actual, expected = step_with_kernel(fused, logits), plain.choose(logits)
        assert torch.equal(actual.tokens, expected.tokens)
        assert torch.equal(fused.finished(), plain.finished())
        for one, other in zip(fused.all_results(), plain.all_results(), strict=True):
            assert (one[0].tokens, one[0].ended) == (other[0].tokens, other[0].ended)
            assert one[0].token_logprobs == pytest.approx(other[0].token_logprobs, abs=1e-5)
        assert fused.all_results() == [fused.results(slot) for slot in range(4)]
    assert bool(fused.finished().all())


def test_step_keeps_the_addresses_of_all_tensors() -> None:
    torch.manual_seed(0)
    strategy = BeamSearch([5, 5], 1, 2)
    before = strategy.tensors()
    choice = step_with_kernel(strategy, torch.randn(4, 9))
    assert all(new is old for new, old in zip(strategy.tensors(), before, strict=True))
    assert choice.tokens.data_ptr() == strategy.next_tokens.data_ptr()
    assert strategy.finished() is strategy.done
    greedy = Greedy([5, 5], 1)
    before = greedy.tensors()
    choice = step_with_kernel(greedy, torch.randn(2, 9))
    assert all(new is old for new, old in zip(greedy.tensors(), before, strict=True))
    assert choice.tokens is greedy.next_tokens


def test_all_results_equal_the_results_of_each_slot() -> None:
    torch.manual_seed(0)
    for alternatives in (0, 2):
        strategy = BeamSearch([5, 3, 1], 1, 3, alternatives=alternatives)
        assert strategy.all_results() == [[], [], []]
        for _ in range(5):
            strategy.choose(torch.randn(9, 12))
        assert strategy.all_results() == [strategy.results(slot) for slot in range(3)]
        assert [len(results) for results in strategy.all_results()] == [3, 3, 3]


@pytest.mark.parametrize("limits", [OutputLimits(3, 0), OutputLimits(0, 2), OutputLimits(9, 3)], ids=str)
def test_exclude_equals_apply_limits(limits: OutputLimits) -> None:
    rng, vocab_size, eos, rows = random.Random(4), 5, 2, 12
    tokens = torch.tensor([[rng.choice((1, 3)) for _ in range(16)] for _ in range(rows)])
    tokens[:4] = tokens[:4, :1]  # a single token again and again
    tokens[4:8] = tokens[4:8, :3].repeat(1, 6)[:, :16]
    lengths = torch.tensor([rng.randint(0, 16) for _ in range(rows // 2)])
    logits = torch.randn(rows, vocab_size)
    values, candidates, normalizer = topk_logsumexp(logits, 4)
    exclude((values, candidates, normalizer), tokens.view(rows // 2, 2, 16), lengths, eos, limits, MAX_PERIOD)
    allowed = apply_limits(limits, eos, logits, GeneratedTokens(tokens, lengths.repeat_interleave(2)))
    assert torch.equal(values, allowed.gather(1, candidates))
    assert values.isinf().any()
    assert not values.isinf().all(dim=1).any()
