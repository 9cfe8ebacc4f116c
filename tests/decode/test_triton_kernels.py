"""Steps of beam search in Triton are those in plain PyTorch, and equal scores go by their order."""

import pytest

pytest.importorskip("triton")

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.decode import triton_kernels
from regard.decode.beam import Beams
from regard.decode.search import Choice
from regard.decode.single import Single

NEVER = float("-inf")


@dataclass
class Slot:
    """A slot of a beam search in lists: totals with their tokens and gains, and scores with what was found."""

    limit: int
    alive: list[tuple[float, list[int], list[float]]] = field(default_factory=lambda: [(0.0, [], [])])
    found: list[tuple[float, bool, list[int], list[float]]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def step(self, rows: list[list[tuple[float, int]]], chooser: Beams) -> None:
        """rows: gains and tokens of the candidates of each row, best first"""
        width, length = chooser.width, len(self.alive[0][1]) + 1 if self.alive else 0
        candidates = [
            (total + gain, place, [*tokens, token], [*gains, gain])
            for place, (total, tokens, gains) in enumerate(self.alive)
            for gain, token in rows[place]
            if total + gain > NEVER
        ]
        candidates = sorted(candidates, key=lambda each: -each[0])[: 2 * width]  # equal ones stay in order
        over = [each for each in candidates if each[2][-1] == chooser.end]
        lives = [each for each in candidates if each[2][-1] != chooser.end][:width]
        cut = lives if length >= self.limit else []
        penalty = chooser.penalty.at(length)
        new = [
            (total / penalty, each in over, tokens, gains)
            for each in (*over, *cut)
            for total, _, tokens, gains in [each]
        ]
        self.found = sorted([*self.found, *new], key=lambda each: -each[0])[:width]
        self.rows = [place for _, place, _, _ in lives]
        self.alive = [] if cut else [(total, tokens, gains) for total, _, tokens, gains in lives]


def topk(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """What the kernel finds, in less time than the interpreter takes."""
    scores, tokens = logits.sort(dim=1, descending=True, stable=True)
    return scores[:, :count], tokens[:, :count], logits.logsumexp(dim=1, keepdim=True)


def step_of_kernel(chooser: Beams | Single, logits: Tensor) -> Choice:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("regard.fast.triton_switch.INTERPRETED", True)
        patched.setattr(triton_kernels, "best_tokens", lambda *given: tuple(each.contiguous() for each in topk(*given)))
        return chooser.choose(logits)


def step_in_the_open(chooser: Beams, logits: Tensor) -> Choice:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("regard.decode.beam.has_kernel", lambda logits: False)
        return chooser.choose(logits)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("width", [1, 2, 4, 5])
def test_steps_of_beams_are_the_same(width: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.decode.beam.ROOM", 4)  # so that there must be more room on the way
    torch.manual_seed(seed)
    chance = random.Random(seed)
    size, end, limits = chance.choice([width + 1, 2 * width, 30]), 1, [9, chance.randint(1, 8), 1]
    fast, plain = (Beams(limits, end, width) for _ in range(2))
    for _ in range(max(limits)):
        logits = 2 * torch.randn(3 * width, size)
        logits[:, end] += chance.choice([-3.0, 0.0, 4.0])
        logits[torch.rand_like(logits) < 0.2 * seed] = NEVER
        logits[:, 0] = 0.0
        mine, theirs = step_of_kernel(fast, logits), step_in_the_open(plain, logits)
        alive = plain.alive.totals > NEVER
        assert torch.equal(fast.alive.totals > NEVER, alive)
        assert torch.allclose(fast.alive.totals, plain.alive.totals, atol=1e-5)
        assert mine.rows is not None
        assert theirs.rows is not None
        assert torch.equal(mine.rows[alive.flatten()], theirs.rows[alive.flatten()])
        assert torch.equal(mine.tokens[alive.flatten()], theirs.tokens[alive.flatten()])
        assert torch.equal(fast.settled(), plain.settled())
        assert torch.equal(fast.lengths, plain.lengths)
        for slot in range(3):
            if alive[slot, 0]:
                assert fast.so_far(slot) == plain.so_far(slot)
            for one, other in zip(fast.results(slot), plain.results(slot), strict=True):
                assert (one.tokens, one.ended) == (other.tokens, other.ended)
                assert one.score == pytest.approx(other.score, abs=1e-5)
                assert one.steps == pytest.approx(other.steps, abs=1e-5)
                assert one.log_probability == pytest.approx(sum(one.steps), abs=1e-5)
    assert fast.room == plain.room > 4
    assert bool(fast.settled().all())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("width", [1, 2, 4, 5])
def test_of_equal_candidates_the_first_is_taken(width: int, seed: int) -> None:
    chance = random.Random(seed)
    limits = [4, 7]
    chooser, slots = Beams(limits, 1, width), [Slot(limit) for limit in limits]
    count = 2 * width
    for _ in range(7):
        best = torch.tensor(
            [sorted(chance.choices((0, -1, -2, NEVER), k=count), reverse=True) for _ in range(2 * width)]
        )
        tokens = torch.tensor([chance.sample(range(4 * width), count) for _ in range(2 * width)])
        normaliser = torch.tensor([[float(chance.choice((0, 1)))] for _ in range(2 * width)])
        rows, over = torch.zeros_like(chooser.chosen), chooser.over
        triton_kernels.advance_beams(
            (best, tokens, normaliser), chooser._facts(), chooser.end, (rows, chooser.chosen, over)
        )
        gains = (best - normaliser).tolist()
        for number, slot in enumerate(slots):
            mine = slice(number * width, (number + 1) * width)
            each = [list(zip(*both, strict=True)) for both in zip(gains[mine], tokens[mine].tolist(), strict=True)]
            slot.step(each, chooser)
            alive = len(slot.alive)
            assert chooser.alive.totals[number].tolist() == [
                *(total for total, _, _ in slot.alive),
                *[NEVER] * (width - alive),
            ]
            assert (rows[number] - number * width).tolist()[: len(slot.rows)] == slot.rows
            for place, (_, words, steps) in enumerate(slot.alive):
                assert chooser.alive.tokens[number, place, : len(words)].tolist() == words
                assert chooser.alive.gains[number, place, : len(words)].tolist() == steps
                assert chooser.chosen[number, place] == words[-1]
            found = chooser.results(number)
            assert [(one.score, one.ended) for one in found] == [(score, ended) for score, ended, _, _ in slot.found]
            assert [list(one.steps) for one in found] == [steps for _, _, _, steps in slot.found]
            assert [[*one.tokens, *[1] * one.ended] for one in found] == [words for _, _, words, _ in slot.found]


@pytest.mark.parametrize("seed", range(4))
def test_steps_of_greedy_search_are_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.decode.single.ROOM", 4)
    monkeypatch.setattr("regard.decode.single.has_kernel", lambda logits: False)
    torch.manual_seed(seed)
    limits = [9, 6, 1, 0]
    fast, plain = (Single(limits, 1) for _ in range(2))
    for _ in range(max(limits)):
        logits = 2 * torch.randn(4, 12)
        mine, theirs = step_of_kernel(fast, logits), plain.choose(logits)
        assert torch.equal(mine.tokens, theirs.tokens)
        assert torch.equal(fast.settled(), plain.settled())
        for one, other in zip(fast.all_results(), plain.all_results(), strict=True):
            assert (one[0].tokens, one[0].ended) == (other[0].tokens, other[0].ended)
            assert one[0].steps == pytest.approx(other[0].steps, abs=1e-5)
        assert fast.all_results() == [fast.results(slot) for slot in range(4)]
    assert bool(fast.settled().all())


def test_a_step_leaves_every_tensor_where_it_is() -> None:
    torch.manual_seed(0)
    chooser = Beams([5, 5], 1, 2)
    before = chooser.held()
    choice = step_of_kernel(chooser, torch.randn(4, 9))
    assert all(new is old for new, old in zip(chooser.held(), before, strict=True))
    assert choice.tokens.data_ptr() == chooser.chosen.data_ptr()
    assert chooser.settled() is chooser.over
    greedy = Single([5, 5], 1)
    before = greedy.held()
    choice = step_of_kernel(greedy, torch.randn(2, 9))
    assert all(new is old for new, old in zip(greedy.held(), before, strict=True))
    assert choice.tokens is greedy.chosen


def test_results_of_all_slots_are_those_of_each() -> None:
    torch.manual_seed(0)
    for alternatives in (0, 2):
        chooser = Beams([5, 3, 1], 1, 3, alternatives=alternatives)
        assert chooser.all_results() == [[], [], []]
        for _ in range(5):
            chooser.choose(torch.randn(9, 12))
        assert chooser.all_results() == [chooser.results(slot) for slot in range(3)]
        assert [len(found) for found in chooser.all_results()] == [3, 3, 3]


@pytest.mark.filterwarnings("ignore:divide by zero encountered in log")
@pytest.mark.parametrize("many", [1, 100], ids=["many rows", "few rows"])
@pytest.mark.parametrize(("size", "count"), [(40, 32), (64, 1), (65, 2), (130, 8), (1100, 10), (4100, 3)])
def test_the_greatest_scores_come_in_order(size: int, count: int, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernels, "_MANY_ROWS", many)
    torch.manual_seed(size)
    logits = 3 * torch.randn(5, size)
    logits[1] = logits[1].round()  # many alike
    logits[2] = 1.0
    logits[3] = NEVER
    logits[4, torch.randperm(size)[: size - count // 2]] = NEVER
    scores, tokens, normaliser = triton_kernels.best_tokens(logits, count)
    wanted, order = logits.sort(dim=1, descending=True, stable=True)
    assert torch.equal(scores, wanted[:, :count])
    assert torch.equal(tokens, order[:, :count])
    assert torch.allclose(normaliser, logits.logsumexp(dim=1, keepdim=True), atol=1e-5)
