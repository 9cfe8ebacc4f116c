"""Greedy and beam search against trying everything, and against each other."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard import UserError
from regard.attention import HeadsConfig
from regard.decode import NoPenalty, PaperPenalty, PowerPenalty, beam_search, greedy_search
from regard.model import EncoderDecoderConfig, FeedForwardConfig, LanguageModelConfig, StackConfig

END = 0
PENALTIES = [NoPenalty(), PaperPenalty(0.6), PaperPenalty(2.0), PowerPenalty(1.0)]


class Table:
    """The simplest stepper: scores depend on the row and on the last two tokens. Its state is what was written."""

    def __init__(self, rows: int, size: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.scores = 2 * torch.randn(rows, size, size, size, generator=random, dtype=torch.float64)

    def start(self) -> tuple[Tensor, Tensor]:
        rows = self.scores.shape[0]
        return torch.arange(rows), torch.zeros(rows, dtype=torch.long)

    def step(self, tokens: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        row, before = state
        return self.scores[row, before, tokens[:, 0]][:, None], (row, tokens[:, 0])

    def reorder(self, state: tuple[Tensor, Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
        return state[0][rows], state[1][rows]

    def log_probability(self, row: int, tokens: tuple[int, ...], ended: bool) -> float:
        total, before, last = 0.0, 0, 1
        for token in [*tokens, *([END] if ended else [])]:
            total += float(self.scores[row, before, last].log_softmax(dim=-1)[token])
            before, last = last, token
        return total

    def everything(self, row: int, limit: int, penalty) -> list[tuple[float, tuple[int, ...]]]:
        """Every output there is, best first."""
        words = range(1, self.scores.shape[-1])
        found = []
        for length in range(limit + 1):
            for tokens in itertools.product(words, repeat=length):
                ended = length < limit
                total = self.log_probability(row, tokens, ended)
                found.append((total / penalty.at(length + 1 if ended else length), tokens))
        return sorted(found, reverse=True)


def start(rows: int) -> Tensor:
    return torch.ones(rows, dtype=torch.long)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), size=st.integers(2, 4), limit=st.integers(1, 4), penalty=st.sampled_from(PENALTIES))
def test_a_beam_wide_enough_finds_what_trying_everything_finds(seed: int, size: int, limit: int, penalty) -> None:
    table = Table(2, size, seed)
    beams = size**limit
    found = beam_search(table, table.start(), start(2), end=END, limit=limit, beams=beams, penalty=penalty)
    for row in range(2):
        wanted = table.everything(row, limit, penalty)
        assert [one.score for one in found[row]] == pytest.approx([score for score, _ in wanted])
        assert found[row][0].tokens == wanted[0][1]


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), size=st.integers(2, 5), limit=st.integers(1, 6))
def test_one_beam_without_penalty_never_ranks_below_greedy(seed: int, size: int, limit: int) -> None:
    table = Table(3, size, seed)
    greedy = greedy_search(table, table.start(), start(3), end=END, limit=limit)
    beam = beam_search(table, table.start(), start(3), end=END, limit=limit, beams=1, penalty=NoPenalty())
    for one, (other,) in zip(greedy, beam, strict=True):
        assert other.log_probability >= one.log_probability - 1e-9


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), beams=st.integers(1, 5), penalty=st.sampled_from(PENALTIES))
def test_every_score_is_that_of_its_own_tokens(seed: int, beams: int, penalty) -> None:
    table = Table(2, 4, seed)
    found = beam_search(table, table.start(), start(2), end=END, limit=5, beams=beams, penalty=penalty)
    for row, hypotheses in enumerate(found):
        assert len({one.tokens for one in hypotheses}) == len(hypotheses) == beams
        for one in hypotheses:
            assert one.log_probability == pytest.approx(table.log_probability(row, one.tokens, one.ended))
            assert one.score == pytest.approx(one.log_probability / penalty.at(len(one.tokens) + one.ended))
        assert [one.score for one in hypotheses] == sorted((one.score for one in hypotheses), reverse=True)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), beams=st.integers(1, 4))
def test_a_row_alone_gets_what_it_gets_in_company(seed: int, beams: int) -> None:
    together = Table(3, 4, seed)
    found = beam_search(together, together.start(), start(3), end=END, limit=6, beams=beams)
    for row in range(3):
        alone = Table(3, 4, seed)
        alone.scores = alone.scores[row : row + 1]
        assert beam_search(alone, alone.start(), start(1), end=END, limit=6, beams=beams) == [found[row]]


def test_stopping_early_misses_nothing_that_going_on_would_have_found() -> None:
    """A strong penalty makes long outputs catch up; the first to end must not close the search."""
    for seed in range(50):
        table = Table(1, 3, seed)
        (found,) = beam_search(table, table.start(), start(1), end=END, limit=5, beams=81, penalty=PaperPenalty(3.0))
        assert found[0].score == pytest.approx(table.everything(0, 5, PaperPenalty(3.0))[0][0])


def test_greedy_takes_the_likeliest_token_at_each_step() -> None:
    table = Table(1, 4, 3)
    (found,) = greedy_search(table, table.start(), start(1), end=END, limit=6)
    before, last, wanted = 0, 1, []
    for _ in range(6):
        best = int(table.scores[0, before, last].argmax())
        if best == END:
            break
        wanted.append(best)
        before, last = last, best
    assert found.tokens == tuple(wanted)
    assert found.log_probability == pytest.approx(table.log_probability(0, found.tokens, found.ended))


def small_stack() -> StackConfig:
    return StackConfig(layers=2, attention=HeadsConfig(heads=2), feed_forward=FeedForwardConfig(hidden=16), dropout=0.0)


def test_a_translator_decodes_from_its_cache_what_it_scores_at_once() -> None:
    torch.manual_seed(0)
    config = EncoderDecoderConfig(vocabulary=9, width=8, encoder=small_stack(), decoder=small_stack())
    model = config.build().double().eval()
    source, lengths = torch.randint(1, 9, (3, 6)), torch.tensor([6, 2, 4])
    found = beam_search(model, model.start(source, 7, lengths), start(3), end=END, limit=7, beams=3)
    for row, hypotheses in enumerate(found):
        for one in hypotheses:
            target = torch.tensor([[1, *one.tokens, *([END] if one.ended else [])]])
            logits = model(source[row : row + 1, : lengths[row]], target[:, :-1])
            gains = logits.log_softmax(dim=-1).gather(2, target[:, 1:, None])
            assert one.log_probability == pytest.approx(float(gains.sum().detach()), abs=1e-9)


def test_a_language_model_is_decoded_by_the_same_search() -> None:
    torch.manual_seed(0)
    model = LanguageModelConfig(vocabulary=9, width=8, decoder=small_stack()).build().double().eval()
    (greedy,) = greedy_search(model, model.start(1, 6), start(1), end=END, limit=6)
    tokens = [1]
    while len(tokens) <= 6:
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
        if tokens[-1] == END:
            break
    assert greedy.tokens == tuple(token for token in tokens[1:] if token != END)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_no_penalty_falls_as_outputs_grow(penalty) -> None:
    divisors = [penalty.at(length) for length in range(1, 50)]
    assert divisors == sorted(divisors)


def test_the_papers_penalty_is_its_formula() -> None:
    assert PaperPenalty(0.6).at(7) == pytest.approx(math.pow(12 / 6, 0.6))


@pytest.mark.parametrize(
    ("values", "message"), [({"beams": 0}, "at least one beam; found 0"), ({"limit": 0}, "limit is 0 tokens")]
)
def test_searches_that_cannot_be_are_refused(values: dict, message: str) -> None:
    table = Table(1, 3, 0)
    with pytest.raises(UserError, match=message):
        beam_search(table, table.start(), start(1), **{"end": END, "limit": 3, "beams": 2} | values)


def test_a_start_of_another_shape_is_refused_with_it() -> None:
    table = Table(1, 3, 0)
    with pytest.raises(UserError, match=r"expected the shape \(rows,\), found \(1, 1\)"):
        greedy_search(table, table.start(), torch.ones(1, 1, dtype=torch.long), end=END, limit=3)


@pytest.mark.parametrize("beams", [1, 3])
def test_every_row_has_its_own_limit(beams: int) -> None:
    table = Table(4, 5, seed=3)
    table.scores[..., END] = -30  # nothing ends by itself
    limits = [2, 5, 1, 4]
    found = beam_search(table, table.start(), start(4), end=END, limit=limits, beams=beams)
    assert [len(row[0].tokens) for row in found] == limits
    greedy = greedy_search(table, table.start(), start(4), end=END, limit=limits)
    assert [len(one.tokens) for one in greedy] == limits


@pytest.mark.parametrize("beams", [2, 4])
def test_a_row_with_its_own_limit_gets_what_it_gets_alone(beams: int) -> None:
    limits = [6, 2, 4]
    table = Table(3, 5, seed=11)
    together = beam_search(table, table.start(), start(3), end=END, limit=limits, beams=beams)
    for row, limit in enumerate(limits):
        alone = Table(3, 5, seed=11)
        alone.scores = alone.scores[row : row + 1]
        (found,) = beam_search(alone, alone.start(), start(1), end=END, limit=limit, beams=beams)
        assert [one.tokens for one in found] == [one.tokens for one in together[row]]


def test_limits_that_do_not_fit_the_rows_are_refused() -> None:
    table = Table(2, 4, seed=0)
    with pytest.raises(UserError, match="3 limits for 2 rows"):
        beam_search(table, table.start(), start(2), end=END, limit=[1, 2, 3])


class Counting(Table):
    """Notes how many rows each step is asked for."""

    def __init__(self, rows: int, size: int, seed: int) -> None:
        super().__init__(rows, size, seed)
        self.asked: list[int] = []

    def step(self, tokens: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        self.asked.append(len(tokens))
        return super().step(tokens, state)


@pytest.mark.parametrize("beams", [1, 3])
def test_rows_that_have_ended_are_no_longer_asked_for(beams: int) -> None:
    table = Counting(8, 5, seed=3)
    table.scores[..., END] = -30  # nothing ends by itself
    beam_search(table, table.start(), start(8), end=END, limit=[1, 2, 2, 2, 2, 3, 3, 6], beams=beams)
    assert table.asked == [8 * beams, 8 * beams, 3 * beams, beams, beams, beams]


def test_greedy_search_no_longer_asks_for_rows_that_have_ended() -> None:
    table = Counting(8, 5, seed=3)
    table.scores[..., END] = -30
    greedy_search(table, table.start(), start(8), end=END, limit=[1, 2, 2, 2, 2, 3, 3, 6])
    assert table.asked == [8, 8, 3, 1, 1, 1]
