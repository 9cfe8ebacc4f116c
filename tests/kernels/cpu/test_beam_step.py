"""The compiled steps of greedy and beam search equal those in PyTorch."""

import pytest
import torch

pytest.importorskip("numba")

from tests.decode.toy_models import TensorState

from regard.decode.beam import BeamSearch
from regard.decode.greedy import Greedy
from regard.decode.search import search
from regard.decode.strategy import OutputLimits

pytestmark = pytest.mark.start_early(12)

EOS = 2


class RandomModel:
    """A decoder model with random logits, which depend only on the tokens so far, and with a likely EOS."""

    def __init__(self, seed: int, size: int) -> None:
        self.seed, self.size = seed, size

    def step(self, tokens: torch.Tensor, state: TensorState) -> tuple[torch.Tensor, TensorState]:
        state = TensorState((state.tensors[0] * 31 + tokens[:, 0] + 7) % 1_000_003)
        rows = []
        for number in state.tensors[0].tolist():
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
            logits = 2 * torch.randn(self.size, generator=generator)
            logits[EOS] += 3
            rows.append(logits)
        return torch.stack(rows)[:, None], state


class LiveRowsModel:
    """The same model, which gives the logits of the rows that are needed only."""

    takes_rows = True

    def __init__(self, model: RandomModel) -> None:
        self.model, self.computed = model, []

    def step(
        self, tokens: torch.Tensor, state: TensorState, rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, TensorState]:
        logits, state = self.model.step(tokens, state)
        self.computed.append(1.0 if rows is None else len(rows) / len(tokens))
        return logits if rows is None else logits[rows], state


@pytest.mark.parametrize("size", [1030, 40])  # 40 is too small for the compiled steps
@pytest.mark.parametrize("beam_size", [1, 5])
def test_rows_that_cannot_change_the_output_are_not_computed(beam_size: int, size: int) -> None:
    found = []
    for seed in range(6):
        every = RandomModel(seed, size)
        some = LiveRowsModel(every)
        for model in (every, some):
            strategy = BeamSearch([20] * 6, EOS, beam_size) if beam_size > 1 else Greedy([20] * 6, EOS)
            strategy.nbest = 1
            found.append(search(model, TensorState(torch.arange(6)), torch.ones(6, dtype=torch.long), strategy))
        assert found[-1] == found[-2]
        assert some.computed[0] == 1 / beam_size
    assert size == 40 or min(some.computed[1:]) < 1


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("beam_size", "nbest"), [(2, None), (5, None), (5, 1)])
def test_compiled_beam_step_equals_pytorch(seed: int, beam_size: int, nbest: int | None) -> None:
    limits = [1, 2, 6, 15, 70, 9]

    class Uncompiled(BeamSearch):
        """A subclass does not use the compiled step."""

    actual, steps = [], []
    for kind in (BeamSearch, Uncompiled):
        strategy = kind(limits, EOS, beam_size)
        strategy.nbest = nbest
        rows = TensorState(torch.arange(6)), torch.ones(6, dtype=torch.long)
        actual.append(search(RandomModel(seed, 1030), *rows, strategy))
        steps.append(strategy.steps_taken)
    assert steps[0] == steps[1]
    for compiled, plain in zip(*actual, strict=True):
        assert [one.tokens for one in compiled] == [one.tokens for one in plain]
        assert [one.ended for one in compiled] == [one.ended for one in plain]
        for one, other in zip(compiled, plain, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-5)
            assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_compiled_greedy_step_equals_pytorch(seed: int) -> None:
    class Uncompiled(Greedy):
        plain = False

    limits = [1, 2, 6, 15, 70, 9]
    actual = [
        search(
            RandomModel(seed, 1030), TensorState(torch.arange(6)), torch.ones(6, dtype=torch.long), kind(limits, EOS)
        )
        for kind in (Greedy, Uncompiled)
    ]
    for (compiled,), (plain,) in zip(*actual, strict=True):
        assert (compiled.tokens, compiled.ended) == (plain.tokens, plain.ended)
        assert compiled.token_logprobs == pytest.approx(plain.token_logprobs, abs=1e-5)


class RepetitiveModel:
    """A decoder model that mostly prefers the token two before the last, and otherwise EOS or a random token."""

    def __init__(self, seed: int, size: int) -> None:
        self.noise = torch.randn(97, size, generator=torch.Generator().manual_seed(seed))

    def step(self, tokens: torch.Tensor, state: TensorState) -> tuple[torch.Tensor, TensorState]:
        row, before = state.tensors
        logits = self.noise[(row * 31 + before * 7 + tokens[:, 0]) % 97].clone()
        logits[torch.arange(len(row)), before] += 4
        logits[:, EOS] += 3
        return logits[:, None], TensorState(row, tokens[:, 0])


@pytest.mark.parametrize(
    "limits", [OutputLimits(min_length=3), OutputLimits(max_repeats=2), OutputLimits(5, 3)], ids=str
)
@pytest.mark.parametrize("beam_size", [1, 2, 4])
def test_compiled_steps_apply_the_limits_as_pytorch_does(limits: OutputLimits, beam_size: int) -> None:
    class UncompiledGreedy(Greedy):
        takes_argmax = False

    class UncompiledBeamSearch(BeamSearch):
        """A subclass does not use the compiled step."""

    lengths, changed = [1, 2, 6, 15, 40, 9], 0
    for seed in range(4):
        found = []
        for kind in (BeamSearch, UncompiledBeamSearch) if beam_size > 1 else (Greedy, UncompiledGreedy):
            strategy = kind(lengths, EOS, *([beam_size] if beam_size > 1 else []))
            strategy.limits = limits
            state = TensorState(torch.arange(6), torch.full((6,), 5))
            found.append(search(RepetitiveModel(seed, 200), state, torch.full((6,), 6), strategy))
        for compiled, plain in zip(*found, strict=True):
            assert [(one.tokens, one.ended) for one in compiled] == [(one.tokens, one.ended) for one in plain]
            for one, other in zip(compiled, plain, strict=True):
                assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-5)
                assert len(one.tokens) >= limits.min_length or not one.ended
                changed += limits.max_repeats > 0 and longest_repetition(one.tokens) == limits.max_repeats
                assert not limits.max_repeats or longest_repetition(one.tokens) <= limits.max_repeats
    assert changed or not limits.max_repeats


def longest_repetition(tokens: tuple[int, ...]) -> int:
    """How often an n-gram of at most 8 tokens occurs in a row."""
    best = 1
    for size in range(1, 9):
        for start in range(len(tokens)):
            count = 1
            while len(tokens) >= start + (count + 1) * size and (
                tokens[start + count * size : start + (count + 1) * size] == tokens[start : start + size]
            ):
                count += 1
            best = max(best, count)
    return best
