"""A buffer as long as the window gives what a cache of everything gives, in bounded memory."""

import random

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from regard.attention import (
    Cache,
    Causal,
    Context,
    Dilated,
    Full,
    Global,
    HeadsConfig,
    Lengths,
    Pattern,
    RotaryConfig,
    Sliding,
)
from regard.attention.cache import LayerState, Store
from regard.attention.heads import SelfAttention
from regard.attention.pattern import Horizon
from regard.attention.ring import RingStore
from regard.errors import UserError

WIDTH = 12
PATTERNS: dict[str, tuple[Pattern, Horizon]] = {
    "a window": (Causal() & Sliding(5), Horizon(5, 0)),
    "itself alone": (Causal() & Sliding(1), Horizon(1, 0)),
    "every other": (Causal() & Dilated(3, 2), Horizon(5, 0)),
    "global tokens and a window": (Causal() & (Global(3) | Sliding(4)), Horizon(4, 3)),
    "two windows": ((Causal() & Sliding(6)) & Sliding(4), Horizon(4, 0)),
    "one window or another": (Causal() & (Sliding(2) | Dilated(2, 4)), Horizon(5, 0)),
    "global tokens alone": (Causal() & Global(2), Horizon(1, 2)),
}


@pytest.mark.parametrize(("pattern", "horizon"), PATTERNS.values(), ids=PATTERNS.keys())
def test_how_far_back_a_pattern_looks(pattern: Pattern, horizon: Horizon) -> None:
    assert pattern.horizon() == horizon
    seen = pattern.mask(40)
    query, key = seen.nonzero(as_tuple=True)
    assert bool(((query - key < horizon.window) | (key < horizon.kept)).all())


@pytest.mark.parametrize("pattern", [Causal(), Full(), Causal() & (Full() | Sliding(3)), Lengths(torch.tensor([3]))])
def test_patterns_without_a_bound_say_so(pattern: Pattern) -> None:
    assert pattern.horizon() is None


def attention(pattern: Pattern, rotary: bool = False, **settings: int) -> SelfAttention:
    torch.manual_seed(0)
    turned = RotaryConfig().rotary(WIDTH // 2) if rotary else None
    return SelfAttention(HeadsConfig(heads=2, **settings), WIDTH, pattern, turned).double().eval()


class Both:
    """The same text fed to a cache of everything and to one as long as the window."""

    def __init__(self, layer: SelfAttention, rows: int, capacity: int) -> None:
        horizon = layer.pattern.horizon()
        assert horizon is not None
        self.layer = layer
        self.full, self.ring = (
            Cache(rows, capacity, [LayerState(store)]) for store in (Store(capacity), RingStore(capacity, horizon))
        )

    @torch.no_grad()
    def feed(self, x: Tensor, counts: Tensor | None = None) -> None:
        ids = torch.zeros(x.shape[:2], dtype=torch.long)
        found = []
        for cache in (self.full, self.ring):
            found.append(self.layer(x, Context.after(cache, ids, counts), cache.layers[0]))
            cache.advance(x.shape[1], counts)
        real = torch.ones(x.shape[:2], dtype=torch.bool)
        if counts is not None:
            real = torch.arange(x.shape[1]) < counts[:, None]
        assert_close(found[1][real], found[0][real], rtol=1e-12, atol=1e-12)

    def each(self, change: str, *given: object) -> None:
        for cache in (self.full, self.ring):
            getattr(cache, change)(*given)


@pytest.mark.parametrize("rotary", [False, True], ids=["", "rotary"])
@pytest.mark.parametrize("pattern", [pattern for pattern, _ in PATTERNS.values()], ids=PATTERNS.keys())
@pytest.mark.parametrize("seed", range(3))
def test_it_gives_what_a_cache_of_everything_gives(pattern: Pattern, rotary: bool, seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    both, room = Both(attention(pattern, rotary), 3, 8), 8
    for _ in range(25):
        size = chance.choice([1, 1, 1, 2, 3, 7, 11])
        while both.full.extent + size > room:
            room *= 2
            both.each("grow", room)
        ragged = chance.random() < 0.4
        counts = torch.tensor([chance.randint(0, size) for _ in range(3)]) if ragged else None
        both.feed(torch.randn(3, size, WIDTH, dtype=torch.float64), counts)
        if chance.random() < 0.2:
            both.each("reorder", torch.tensor([chance.randrange(3) for _ in range(3)]))
    assert both.full.extent > 20


def test_rows_join_and_leave() -> None:
    torch.manual_seed(1)
    layer = attention(Causal() & (Global(2) | Sliding(4)))
    both, other = Both(layer, 3, 32), Both(layer, 1, 8)
    both.feed(torch.randn(3, 17, WIDTH, dtype=torch.float64))
    other.feed(torch.randn(1, 5, WIDTH, dtype=torch.float64))
    both.full.put(torch.tensor([1]), other.full)
    both.ring.put(torch.tensor([1]), other.ring)
    for size in (1, 3, 1, 1):
        both.feed(torch.randn(3, size, WIDTH, dtype=torch.float64))


def test_memory_is_that_of_the_window_whatever_the_length() -> None:
    torch.manual_seed(1)
    layer = attention(Causal() & (Global(4) | Sliding(16)), key_heads=1)
    capacity = 100_000
    store = layer.store(capacity)
    assert isinstance(store, RingStore)
    cache = Cache(2, capacity, [LayerState(store)])
    x = torch.randn(2, 1, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(300):
            layer(x, Context.after(cache, torch.zeros(2, 1, dtype=torch.long)), cache.layers[0])
            cache.advance(1)
            assert cache.bytes() == 2 * (16 + 4) * 2 * (WIDTH // 2) * 8  # rows × slots × (key, value) × width × bytes


def test_little_room_is_taken_for_a_short_text() -> None:
    layer = attention(Causal() & Sliding(4096))
    cache = Cache(1, 8, [LayerState(layer.store(8))])
    layer(
        torch.randn(1, 3, WIDTH, dtype=torch.float64), Context.after(cache, torch.zeros(1, 3).long()), cache.layers[0]
    )
    assert cache.bytes() == 8 * 2 * WIDTH * 8


def test_what_the_window_let_go_of_does_not_come_back() -> None:
    both = Both(attention(Causal() & Sliding(4)), 1, 32)
    both.feed(torch.randn(1, 3, WIDTH, dtype=torch.float64))
    both.each("rewind", 2)
    both.feed(torch.randn(1, 6, WIDTH, dtype=torch.float64))
    both.each("rewind", 8)  # which forgets nothing
    with pytest.raises(UserError, match="cannot be rewound: of 8 positions a window of 4 has let go"):
        both.ring.rewind(6)


def test_weights_are_shown_where_their_keys_belong() -> None:
    layer = attention(Causal() & Sliding(3))
    cache = Cache(1, 32, [LayerState(layer.store(32))])
    shown: list[Tensor] = []
    for size in (5, 1):
        x = torch.randn(1, size, WIDTH, dtype=torch.float64)
        context = Context.after(cache, torch.zeros(1, size).long(), watch=lambda _, weights: shown.append(weights))
        layer(x, context, cache.layers[0])
        cache.advance(size)
    assert shown[0].shape == (1, 2, 5, 5)
    assert shown[1].shape == (1, 2, 1, 6)  # by position, not by slot
    assert bool((shown[1][..., :3] == 0).all())
    assert bool((shown[1][..., 3:] > 0).all())
    assert_close(shown[1].sum(dim=-1), torch.ones(1, 2, 1, dtype=torch.float64))
