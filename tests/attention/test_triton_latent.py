"""The kernel for steps of latent attention gives what two products give. It runs here in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from regard.attention import LatentConfig, RotaryConfig, latent
from regard.model import FeedForwardConfig, LanguageModelConfig, StackConfig


def by_products(query: Tensor, turned: Tensor, kept: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """As the formula says, in float64."""
    group = len(query) // len(kept)
    turned, kept = (each.double().repeat_interleave(group, dim=0) for each in (turned, kept))
    scores = scale * query.double() @ torch.cat((kept, turned), dim=-1).mT
    if mask is not None:
        seen = mask.expand(len(kept) // group, -1).repeat_interleave(group, dim=0)[:, None]
        scores = scores.masked_fill(~seen, float("-inf"))
    return (scores.softmax(dim=-1).nan_to_num(0.0) @ kept).float()


def given(rows: int, memories: int, heads: int, keys: int, size: int, turns: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(keys)
    query = torch.randn(rows, heads, size + turns)
    # More room than is used, as in a cache.
    turned, kept = (torch.randn(memories, keys + 3, width)[:, :keys] for width in (turns, size))
    return query, turned, kept


@pytest.mark.parametrize("keys", [1, 63, 700])
@pytest.mark.parametrize(
    ("rows", "memories", "heads", "size", "turns"),
    [(2, 2, 4, 16, 8), (1, 1, 3, 48, 0), (2, 1, 20, 24, 4), (6, 2, 40, 16, 16)],
    ids=["plain", "nothing turned, odd sizes", "shared memory", "many heads"],
)
@pytest.mark.parametrize("seen", ["all", "ragged", "none in a row", "alike"])
def test_it_is_softmax_and_sum(
    rows: int, memories: int, heads: int, size: int, turns: int, keys: int, seen: str
) -> None:
    from regard.attention.triton_latent import look

    query, turned, kept = given(rows, memories, heads, keys, size, turns)
    lengths = torch.arange(memories) + (0 if seen == "none in a row" else 1)
    mask = None if seen == "all" else torch.arange(keys) < (keys * lengths // (memories + 1)).clamp(max=keys)[:, None]
    if seen == "alike":
        mask = (torch.arange(keys) % 3 != 1)[None]
    if seen == "ragged":
        assert mask is not None
        mask[:, 0] = True
    found = look(query, turned, kept, mask, 0.3)
    assert torch.allclose(found, by_products(query, turned, kept, mask, 0.3), atol=1e-5)


def test_steps_of_a_model_are_the_same_by_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    attention = LatentConfig(heads=3, latent=20, rotary_width=4)
    stack = StackConfig(layers=2, attention=attention, feed_forward=FeedForwardConfig(hidden=16), dropout=0.0)
    config = LanguageModelConfig(vocabulary=11, width=12, decoder=stack, position=RotaryConfig())
    model = config.build().eval()
    tokens = torch.randint(3, 11, (2, 9))
    taken = []

    def steps() -> Tensor:
        with torch.inference_mode():
            cache = model.start(2, 12)
            first, cache = model.step(tokens[:, :4], cache, torch.tensor([4, 2]))  # rows of different length
            rest = []
            for place in range(4, 9):
                logits, cache = model.step(tokens[:, place : place + 1], cache)
                rest.append(logits)
            return torch.cat((first[:, -1:], *rest), dim=1)

    wanted = steps()
    monkeypatch.setattr(latent, "_at_once", lambda query, scope: query.shape[2] == 1 and not taken.append(scope))
    found = steps()
    assert len(taken) == 2 * 5
    assert torch.allclose(found[:, 1:], wanted[:, 1:], atol=1e-5)
