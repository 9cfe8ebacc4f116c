"""The compiled steps of greedy and beam search equal those in PyTorch."""

import pytest
import torch

pytest.importorskip("numba")

from tests.decode.toy_models import TensorState

from regard.decode.beam import BeamSearch
from regard.decode.greedy import Greedy
from regard.decode.search import search

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


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("beam_size", [2, 5])
def test_compiled_beam_step_equals_pytorch(seed: int, beam_size: int) -> None:
    limits = [1, 2, 6, 15, 70, 9]

    class Uncompiled(BeamSearch):
        """A subclass does not use the compiled step."""

    actual = [
        search(
            RandomModel(seed, 1030),
            TensorState(torch.arange(6)),
            torch.ones(6, dtype=torch.long),
            kind(limits, EOS, beam_size),
        )
        for kind in (BeamSearch, Uncompiled)
    ]
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
