"""A rolling KV cache, as long as the window, equals a full cache in bounded memory."""

import random

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from regard.attention import (
    Causal,
    Context,
    Dilated,
    Full,
    Global,
    KVCache,
    Lengths,
    MultiHeadConfig,
    Pattern,
    RotaryConfig,
    Sliding,
)
from regard.attention.kv_cache import KVBuffer, LayerState
from regard.attention.multi_head import SelfAttention
from regard.attention.pattern import Lookback
from regard.attention.rolling_kv_cache import RollingKVBuffer
from regard.errors import UserError

WIDTH = 12
PATTERNS: dict[str, tuple[Pattern, Lookback]] = {
    "a window": (Causal() & Sliding(5), Lookback(5, 0)),
    "itself alone": (Causal() & Sliding(1), Lookback(1, 0)),
    "every other": (Causal() & Dilated(3, 2), Lookback(5, 0)),
    "global tokens and a window": (Causal() & (Global(3) | Sliding(4)), Lookback(4, 3)),
    "two windows": ((Causal() & Sliding(6)) & Sliding(4), Lookback(4, 0)),
    "one window or another": (Causal() & (Sliding(2) | Dilated(2, 4)), Lookback(5, 0)),
    "global tokens alone": (Causal() & Global(2), Lookback(1, 2)),
}


@pytest.mark.parametrize(("pattern", "lookback"), PATTERNS.values(), ids=PATTERNS.keys())
def test_lookback_covers_all_visible_keys(pattern: Pattern, lookback: Lookback) -> None:
    assert pattern.lookback() == lookback
    allowed = pattern.dense_mask(40)
    query, key = allowed.nonzero(as_tuple=True)
    assert bool(((query - key < lookback.window) | (key < lookback.sink_tokens)).all())


@pytest.mark.parametrize("pattern", [Causal(), Full(), Causal() & (Full() | Sliding(3)), Lengths(torch.tensor([3]))])
def test_unbounded_patterns_have_no_lookback(pattern: Pattern) -> None:
    assert pattern.lookback() is None


def attention(pattern: Pattern, rotary: bool = False, **settings: int) -> SelfAttention:
    torch.manual_seed(0)
    rope = RotaryConfig().rotary(WIDTH // 2) if rotary else None
    return SelfAttention(MultiHeadConfig(heads=2, **settings), WIDTH, pattern, rope).double().eval()


class CachePair:
    """A full and a rolling cache of the same tokens."""

    def __init__(self, layer: SelfAttention, rows: int, capacity: int) -> None:
        lookback = layer.pattern.lookback()
        assert lookback is not None
        self.layer = layer
        self.full, self.rolling = (
            KVCache(rows, capacity, [LayerState(buffer)])
            for buffer in (KVBuffer(capacity), RollingKVBuffer(capacity, lookback))
        )

    @torch.no_grad()
    def feed(self, x: Tensor, counts: Tensor | None = None) -> None:
        ids = torch.zeros(x.shape[:2], dtype=torch.long)
        actual = []
        for cache in (self.full, self.rolling):
            actual.append(self.layer(x, Context.after(cache, ids, counts), cache.layers[0]))
            cache.advance(x.shape[1], counts)
        real = torch.ones(x.shape[:2], dtype=torch.bool)
        if counts is not None:
            real = torch.arange(x.shape[1]) < counts[:, None]
        assert_close(actual[1][real], actual[0][real], rtol=1e-12, atol=1e-12)

    def each(self, method: str, *args: object) -> None:
        for cache in (self.full, self.rolling):
            getattr(cache, method)(*args)


@pytest.mark.parametrize("rotary", [False, True], ids=["", "rotary"])
@pytest.mark.parametrize("pattern", [pattern for pattern, _ in PATTERNS.values()], ids=PATTERNS.keys())
@pytest.mark.parametrize("seed", range(3))
def test_rolling_cache_equals_full_cache(pattern: Pattern, rotary: bool, seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    pair, capacity = CachePair(attention(pattern, rotary), 3, 8), 8
    for _ in range(25):
        size = rng.choice([1, 1, 1, 2, 3, 7, 11])
        while pair.full.extent + size > capacity:
            capacity *= 2
            pair.each("reserve", capacity)
        ragged = rng.random() < 0.4
        counts = torch.tensor([rng.randint(0, size) for _ in range(3)]) if ragged else None
        pair.feed(torch.randn(3, size, WIDTH, dtype=torch.float64), counts)
        if rng.random() < 0.2:
            pair.each("reorder", torch.tensor([rng.randrange(3) for _ in range(3)]))
    assert pair.full.extent > 20


def test_scattered_rows_equal_those_of_a_full_cache() -> None:
    torch.manual_seed(1)
    layer = attention(Causal() & (Global(2) | Sliding(4)))
    pair, other = CachePair(layer, 3, 32), CachePair(layer, 1, 8)
    pair.feed(torch.randn(3, 17, WIDTH, dtype=torch.float64))
    other.feed(torch.randn(1, 5, WIDTH, dtype=torch.float64))
    pair.full.scatter_rows(torch.tensor([1]), other.full)
    pair.rolling.scatter_rows(torch.tensor([1]), other.rolling)
    for size in (1, 3, 1, 1):
        pair.feed(torch.randn(3, size, WIDTH, dtype=torch.float64))


def test_memory_is_bounded_by_the_window() -> None:
    torch.manual_seed(1)
    layer = attention(Causal() & (Global(4) | Sliding(16)), kv_heads=1)
    capacity = 100_000
    buffer = layer.new_buffer(capacity)
    assert isinstance(buffer, RollingKVBuffer)
    cache = KVCache(2, capacity, [LayerState(buffer)])
    x = torch.randn(2, 1, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(300):
            layer(x, Context.after(cache, torch.zeros(2, 1, dtype=torch.long)), cache.layers[0])
            cache.advance(1)
            assert cache.nbytes() == 2 * (16 + 4) * 2 * (WIDTH // 2) * 8  # rows × slots × (key, value) × width × bytes


def test_small_capacity_allocates_less_than_the_window() -> None:
    layer = attention(Causal() & Sliding(4096))
    cache = KVCache(1, 8, [LayerState(layer.new_buffer(8))])
    layer(
        torch.randn(1, 3, WIDTH, dtype=torch.float64), Context.after(cache, torch.zeros(1, 3).long()), cache.layers[0]
    )
    assert cache.nbytes() == 8 * 2 * WIDTH * 8


def test_truncating_after_the_window_has_moved_is_an_error() -> None:
    pair = CachePair(attention(Causal() & Sliding(4)), 1, 32)
    pair.feed(torch.randn(1, 3, WIDTH, dtype=torch.float64))
    pair.each("truncate", 2)
    pair.feed(torch.randn(1, 6, WIDTH, dtype=torch.float64))
    pair.each("truncate", 8)  # drops nothing
    message = "cannot be truncated: of 8 positions, those before the window of 4 are no longer stored"
    with pytest.raises(UserError, match=message):
        pair.rolling.truncate(6)


def test_hook_receives_weights_in_the_order_of_positions() -> None:
    layer = attention(Causal() & Sliding(3))
    cache = KVCache(1, 32, [LayerState(layer.new_buffer(32))])
    shown: list[Tensor] = []
    for size in (5, 1):
        x = torch.randn(1, size, WIDTH, dtype=torch.float64)
        context = Context.after(
            cache, torch.zeros(1, size).long(), attention_hook=lambda _, weights: shown.append(weights)
        )
        layer(x, context, cache.layers[0])
        cache.advance(size)
    assert shown[0].shape == (1, 2, 5, 5)
    assert shown[1].shape == (1, 2, 1, 6)  # by position, not by slot
    assert bool((shown[1][..., :3] == 0).all())
    assert bool((shown[1][..., 3:] > 0).all())
    assert_close(shown[1].sum(dim=-1), torch.ones(1, 2, 1, dtype=torch.float64))
