"""The decode step of latent attention equals the softmax formula. The kernel runs in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from regard.attention import LatentAttentionConfig, RotaryConfig, latent
from regard.model import FeedForwardConfig, LanguageModelConfig, StackConfig

pytestmark = pytest.mark.start_early(13)


def reference(query: Tensor, rotary_key: Tensor, latents: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The formula, in float64."""
    group = len(query) // len(latents)
    rotary_key, latents = (each.double().repeat_interleave(group, dim=0) for each in (rotary_key, latents))
    scores = scale * query.double() @ torch.cat((latents, rotary_key), dim=-1).mT
    if mask is not None:
        visible = mask.expand(len(latents) // group, -1).repeat_interleave(group, dim=0)[:, None]
        scores = scores.masked_fill(~visible, float("-inf"))
    return (scores.softmax(dim=-1).nan_to_num(0.0) @ latents).float()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("keys", [1, 63, 700])
@pytest.mark.parametrize(
    ("rows", "sources", "heads", "latent_dim", "rope_dim"),
    [(2, 2, 4, 16, 8), (1, 1, 3, 48, 0), (2, 1, 20, 24, 4), (6, 2, 40, 16, 16)],
    ids=["plain", "no rotary, odd sizes", "shared source", "many heads"],
)
@pytest.mark.parametrize("visible", ["all", "ragged", "none in a row", "the same in all rows"])
def test_mla_decode_equals_the_formula(
    rows: int, sources: int, heads: int, latent_dim: int, rope_dim: int, keys: int, visible: str
) -> None:
    from regard.kernels.cuda.mla_decode import mla_decode

    torch.manual_seed(keys)
    query = torch.randn(rows, heads, latent_dim + rope_dim)
    # More capacity than is used, as in a cache.
    rotary_key, latents = (torch.randn(sources, keys + 3, width)[:, :keys] for width in (rope_dim, latent_dim))
    lengths = torch.arange(sources) + (0 if visible == "none in a row" else 1)
    mask = None
    if visible != "all":
        mask = torch.arange(keys) < (keys * lengths // (sources + 1)).clamp(max=keys)[:, None]
    if visible == "the same in all rows":
        mask = (torch.arange(keys) % 3 != 1)[None]
    if visible == "ragged":
        assert mask is not None
        mask[:, 0] = True
    actual = mla_decode(query, rotary_key, latents, mask, 0.3)
    assert torch.allclose(actual, reference(query, rotary_key, latents, mask, 0.3), atol=1e-5)


def test_decode_steps_with_the_kernel_equal_those_without(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    attention = LatentAttentionConfig(heads=3, kv_latent=20, rope_head_dim=4)
    stack = StackConfig(layers=2, attention=attention, feed_forward=FeedForwardConfig(hidden=16), dropout=0.0)
    config = LanguageModelConfig(vocab_size=11, width=12, decoder=stack, position=RotaryConfig())
    model = config.build().eval()
    tokens = torch.randint(3, 11, (2, 9))
    used = []

    def steps() -> Tensor:
        with torch.inference_mode():
            cache = model.start(2, 12)
            first, cache = model.step(tokens[:, :4], cache, torch.tensor([4, 2]))  # rows of different length
            others = []
            for position in range(4, 9):
                logits, cache = model.step(tokens[:, position : position + 1], cache)
                others.append(logits)
            return torch.cat((first[:, -1:], *others), dim=1)

    expected = steps()
    monkeypatch.setattr(latent, "_has_decode_kernel", lambda query, mask: query.shape[2] == 1 and not used.append(mask))
    actual = steps()
    assert len(used) == 2 * 5
    assert torch.allclose(actual[:, 1:], expected[:, 1:], atol=1e-5)
