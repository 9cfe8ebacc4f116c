"""The KV cache: its bookkeeping, and that cached decoding equals uncached.

Equivalences are in float64, where the two differ only in the order of sums of some dozens of numbers up to 10: 1e-12
leaves a margin, and any wrong key would be off by more than 1e-3.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention import (
    Causal,
    Context,
    Dilated,
    Global,
    KVBuffer,
    KVCache,
    LayerState,
    MultiHeadConfig,
    Pattern,
    Rotary,
    SelfAttention,
    Sliding,
)
from regard.attention.positions.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Scaling,
    YarnScaling,
)
from regard.errors import UserError
from tests.attention.support import PatternSpec, assert_close, causal_patterns

ROUNDING = 1e-12
WIDTH, HEAD_DIM = 12, 4
LENGTH, CAPACITY = 12, 60

HEADS = [
    pytest.param(MultiHeadConfig(heads=3, head_dim=HEAD_DIM), id="multi-head"),
    pytest.param(MultiHeadConfig(heads=4, kv_heads=2, head_dim=HEAD_DIM, value_head_dim=3), id="grouped-query"),
    pytest.param(MultiHeadConfig(heads=3, kv_heads=1, head_dim=HEAD_DIM, similarity="cosine"), id="multi-query"),
]
PATTERNS = [
    pytest.param(Causal(), id="causal"),
    pytest.param(Causal() & Sliding(3), id="sliding"),
    pytest.param(Causal() & Dilated(3, 2), id="dilated"),
    pytest.param(Causal() & (Global(2) | Sliding(2)), id="global and sliding"),
]
SCALINGS: dict[str, Scaling | None] = {
    "no positions": None,
    "rotary": Scaling(),
    "linear": LinearScaling(factor=4.0),
    "dynamic": DynamicScaling(factor=4.0, original_max_length=5),
    "yarn": YarnScaling(factor=4.0, original_max_length=40),
    "long": LongRopeScaling(short_factors=(1.0, 2.0), long_factors=(3.0, 5.0), original_max_length=5),
    "band": Llama3Scaling(factor=4.0, original_max_length=40),
}
ROTARIES = [
    pytest.param(None if scaling is None else Rotary(HEAD_DIM, scaling=scaling), id=name)
    for name, scaling in SCALINGS.items()
]


def attention(heads: MultiHeadConfig, pattern: Pattern, rotary: Rotary | None) -> SelfAttention:
    torch.manual_seed(0)
    return SelfAttention(heads, WIDTH, pattern, rotary).double().eval()


def embeddings(rows: int, length: int = LENGTH, seed: int = 1) -> Tensor:
    """Random embeddings.  # (rows, length, width)"""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(rows, length, WIDTH, generator=random, dtype=torch.float64)


def tokens(x: Tensor) -> Tensor:
    """Token ids for these embeddings; only their shape matters.  # (rows, length)"""
    return torch.zeros(x.shape[:2], dtype=torch.long)


@torch.no_grad()
def uncached(layer: SelfAttention, x: Tensor) -> Tensor:
    """One pass over all tokens, without a cache."""
    return layer(x, Context(tokens(x)), LayerState())


def new_cache(rows: int, capacity: int = CAPACITY) -> KVCache:
    return KVCache(rows, capacity, [LayerState(KVBuffer(capacity))])


@torch.no_grad()
def feed(layer: SelfAttention, cache: KVCache, x: Tensor, counts: Tensor | None = None) -> Tensor:
    """Run the layer on the next tokens, of which row r uses the first `counts[r]`; the rest is padding."""
    result = layer(x, Context.after(cache, tokens(x), counts), cache.layers[0])
    cache.advance(x.shape[1], counts)
    return result


def assert_decoding_equals(layer: SelfAttention, x: Tensor, sizes: list[int]) -> None:
    """Decode in chunks of these sizes; each equals the end of an uncached pass over the tokens so far.

    Rotations that depend on the length need the tokens so far; with all others, the full sequence would do.
    """
    cache, start = new_cache(len(x)), 0
    for size in sizes:
        end = start + size
        actual = feed(layer, cache, x[:, start:end])
        assert_close(actual, uncached(layer, x[:, :end])[:, start:end], ROUNDING)
        start = end


# Cached decoding equals uncached.


@pytest.mark.parametrize("rotary", ROTARIES)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("heads", HEADS)
def test_step_by_step_decoding_equals_uncached(heads: MultiHeadConfig, pattern: Pattern, rotary: Rotary | None) -> None:
    assert_decoding_equals(attention(heads, pattern, rotary), embeddings(2), [1] * LENGTH)


@pytest.mark.parametrize("rotary", ROTARIES)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("heads", HEADS)
def test_one_chunk_equals_uncached(heads: MultiHeadConfig, pattern: Pattern, rotary: Rotary | None) -> None:
    assert_decoding_equals(attention(heads, pattern, rotary), embeddings(2), [LENGTH])


@pytest.mark.parametrize("rotary", ROTARIES)
@pytest.mark.parametrize("heads", HEADS)
@given(spec=causal_patterns(), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5))
@settings(max_examples=10)
def test_uneven_chunks_equal_uncached(
    heads: MultiHeadConfig, rotary: Rotary | None, spec: PatternSpec, sizes: list[int]
) -> None:
    assert_decoding_equals(attention(heads, spec.pattern, rotary), embeddings(2, sum(sizes)), sizes)


@pytest.mark.parametrize("rotary", [rotary for rotary in ROTARIES if rotary.id not in ("dynamic", "long")])
@given(spec=causal_patterns(), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5))
@settings(max_examples=10)
def test_chunks_with_static_rotary_equal_the_full_sequence(
    rotary: Rotary | None, spec: PatternSpec, sizes: list[int]
) -> None:
    layer, x = attention(MultiHeadConfig(heads=3), spec.pattern, rotary), embeddings(2, sum(sizes))
    cache = new_cache(2)
    actual = torch.cat([feed(layer, cache, chunk) for chunk in x.split(sizes, dim=1)], dim=1)
    assert_close(actual, uncached(layer, x), ROUNDING)


@st.composite
def token_counts(draw, rows: int) -> list[list[int]]:
    """The number of new tokens of each row, for several steps."""
    return draw(st.lists(st.lists(st.integers(0, 4), min_size=rows, max_size=rows).filter(any), min_size=1, max_size=5))


class Rows:
    """A cache, and the tokens of each row in a plain list for an uncached pass."""

    def __init__(self, layer: SelfAttention, rows: int, seed: int) -> None:
        self.layer, self.cache = layer, new_cache(rows, 400)
        self.tokens: list[Tensor] = [torch.zeros(0, WIDTH, dtype=torch.float64)] * rows
        self.random = torch.Generator().manual_seed(seed)

    def new(self, *shape: int) -> Tensor:
        return torch.randn(*shape, WIDTH, generator=self.random, dtype=torch.float64)

    def feed(self, counts: list[int]) -> None:
        """Decode this many new tokens of each row, padded with noise to a common length, and check the output."""
        x = self.new(len(counts), max(counts))
        result = feed(self.layer, self.cache, x, torch.tensor(counts))
        self.check(x, counts, result)

    def feed_all(self, count: int) -> None:
        """Decode the same number of new tokens in every row, and check the output."""
        x = self.new(len(self.tokens), count)
        self.check(x, [count] * len(self.tokens), feed(self.layer, self.cache, x))

    def check(self, x: Tensor, counts: list[int], result: Tensor) -> None:
        for row, count in enumerate(counts):
            self.tokens[row] = torch.cat((self.tokens[row], x[row, :count]))
            if count:
                expected = uncached(self.layer, self.tokens[row][None])[0, -count:]
                assert_close(result[row, :count], expected, ROUNDING)

    def reorder(self, rows: list[int]) -> None:
        self.cache.reorder(torch.tensor(rows))
        self.tokens = [self.tokens[row] for row in rows]

    def truncate(self, lengths: list[int]) -> None:
        self.cache.truncate(torch.tensor(lengths))
        self.tokens = [tokens[:length] for tokens, length in zip(self.tokens, lengths, strict=True)]

    def truncate_all(self, length: int) -> None:
        length = min(length, *(len(tokens) for tokens in self.tokens))
        self.cache.truncate(length)
        self.tokens = [tokens[:length] for tokens in self.tokens]


@pytest.mark.parametrize("rotary", ROTARIES)
@pytest.mark.parametrize("heads", HEADS)
@given(spec=causal_patterns(), counts_per_step=token_counts(3), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_ragged_rows_equal_each_row_alone(
    heads: MultiHeadConfig, rotary: Rotary | None, spec: PatternSpec, counts_per_step: list[list[int]], seed: int
) -> None:
    rows = Rows(attention(heads, spec.pattern, rotary), 3, seed)
    for counts in counts_per_step:
        rows.feed(counts)


@pytest.mark.parametrize("rotary", ROTARIES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_decoding_after_truncating_all_rows_equals_uncached(pattern: Pattern, rotary: Rotary | None) -> None:
    rows = Rows(attention(MultiHeadConfig(heads=3), pattern, rotary), 2, 0)
    rows.feed_all(7)
    rows.truncate_all(3)
    rows.feed_all(2)
    rows.feed_all(1)


@pytest.mark.parametrize("rotary", ROTARIES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_decoding_after_truncating_each_row_equals_uncached(pattern: Pattern, rotary: Rotary | None) -> None:
    rows = Rows(attention(MultiHeadConfig(heads=3), pattern, rotary), 3, 0)
    rows.feed_all(7)
    rows.truncate([0, 4, 7])
    rows.feed_all(2)
    rows.feed_all(1)


@pytest.mark.parametrize("rotary", ROTARIES)
@pytest.mark.parametrize("order", [[1, 0, 2], [2, 2, 0], [1], [0, 1, 2, 0, 1]], ids=str)
def test_decoding_after_a_reorder_equals_uncached(order: list[int], rotary: Rotary | None) -> None:
    rows = Rows(attention(MultiHeadConfig(heads=3), Causal(), rotary), 3, 0)
    rows.feed([4, 1, 7])
    rows.reorder(order)
    rows.feed_all(2)


operations = st.one_of(
    st.tuples(st.just("feed"), st.lists(st.integers(0, 4), min_size=4, max_size=4)),
    st.tuples(st.just("feed_all"), st.integers(1, 4)),
    st.tuples(st.just("truncate"), st.lists(st.integers(0, 12), min_size=4, max_size=4)),
    st.tuples(st.just("truncate_all"), st.integers(0, 12)),
    st.tuples(st.just("reorder"), st.lists(st.integers(0, 3), min_size=1, max_size=4)),
    st.tuples(st.just("tighten"), st.none()),
)


@pytest.mark.parametrize("rotary", ROTARIES)
@given(spec=causal_patterns(), script=st.lists(operations, min_size=3, max_size=10), seed=st.integers(0, 99))
@settings(max_examples=50)
def test_decoding_after_any_operations_equals_uncached(
    rotary: Rotary | None, spec: PatternSpec, script: list, seed: int
) -> None:
    rows = Rows(attention(MultiHeadConfig(heads=2, kv_heads=1, head_dim=HEAD_DIM), spec.pattern, rotary), 3, seed)
    for name, value in [*script, ("feed_all", 2)]:
        count = len(rows.tokens)
        match name:
            case "feed" if any(value[:count]):
                rows.feed(value[:count])
            case "feed_all":
                rows.feed_all(value)
            case "truncate":
                rows.truncate([min(length, len(tokens)) for length, tokens in zip(value, rows.tokens, strict=False)])
            case "truncate_all":
                rows.truncate_all(value)
            case "reorder":
                rows.reorder([number % count for number in value])
            case "tighten":
                rows.cache.tighten()
        assert rows.cache.lengths.tolist() == [len(tokens) for tokens in rows.tokens]


# Buffers.


def context(rows: int, tokens: int, start: int | Tensor, extent: int | None = None) -> Context:
    """The context of a pass that starts at position `start`."""
    if extent is None:
        assert isinstance(start, int)
        extent = start + tokens
    return Context(torch.zeros(rows, tokens, dtype=torch.long), start=start, extent=extent)


def random_kv(rows: int, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Keys and values of two heads, of width 3 and 5."""
    random = torch.Generator().manual_seed(seed)
    key, value = (torch.rand(rows, 2, count, width, generator=random) for width in (3, 5))
    return key, value


def test_buffer_returns_all_appended_keys_and_values() -> None:
    buffer, (key, value) = KVBuffer(9), random_kv(2, 5)
    buffer.append(key[:, :, :3], value[:, :, :3], context(2, 3, 0))
    cached = buffer.append(key[:, :, 3:], value[:, :, 3:], context(2, 2, 3))
    assert torch.equal(cached[0], key)
    assert torch.equal(cached[1], value)


def test_buffer_appends_at_each_row_s_start() -> None:
    buffer, (key, value) = KVBuffer(9), random_kv(2, 2)
    cached = buffer.append(key, value, context(2, key.shape[2], torch.tensor([1, 4]), 6))
    for actual, new in zip(cached, (key, value), strict=True):
        expected = torch.zeros(2, 2, 6, new.shape[3])
        expected[0, :, 1:3], expected[1, :, 4:6] = new[0], new[1]
        assert torch.equal(actual, expected)


def test_buffer_is_allocated_once() -> None:
    buffer = KVBuffer(9)
    buffer.append(*random_kv(2, 3), context(2, 3, 0))
    assert buffer.tensors is not None
    addresses = [tensor.data_ptr() for tensor in buffer.tensors]
    cached = buffer.append(*random_kv(2, 3, seed=1), context(2, 3, 3))
    assert [tensor.data_ptr() for tensor in cached] == addresses
    assert [tensor.shape[2] for tensor in buffer.tensors] == [9, 9]


def test_buffer_allocates_nothing_before_the_first_append() -> None:
    buffer = KVBuffer(9)
    buffer.reorder(torch.tensor([0]))
    assert buffer.tensors is None


@pytest.mark.parametrize("order", [[1, 0], [0], [1, 1, 0]], ids=str)
def test_reordered_buffer_holds_the_chosen_rows(order: list[int]) -> None:
    buffer, (key, value) = KVBuffer(4), random_kv(2, 3)
    buffer.append(key, value, context(2, 3, 0))
    buffer.reorder(torch.tensor(order))
    assert buffer.tensors is not None
    assert torch.equal(buffer.tensors[0][:, :, :3], key[order])
    assert torch.equal(buffer.tensors[1][:, :, :3], value[order])


# The bookkeeping.


def test_empty_cache_starts_at_position_0() -> None:
    cache = new_cache(3)
    assert (cache.rows, cache.start, cache.extent, cache.lengths.tolist()) == (3, 0, 0, [0, 0, 0])


def test_equally_long_rows_have_one_start() -> None:
    cache = new_cache(3)
    cache.advance(4)
    cache.advance(1)
    assert (cache.start, cache.extent, cache.lengths.tolist()) == (5, 5, [5, 5, 5])


def test_ragged_rows_have_one_start_each() -> None:
    cache = new_cache(3)
    cache.advance(4, torch.tensor([4, 0, 2]))
    cache.advance(1)
    assert isinstance(cache.start, Tensor)
    assert cache.start.tolist() == [5, 1, 3]


def test_extent_is_at_least_the_longest_row() -> None:
    cache = new_cache(2)
    cache.advance(4, torch.tensor([1, 2]))
    cache.advance(3, torch.tensor([3, 0]))
    assert cache.extent >= int(cache.lengths.max())


def test_tighten_lowers_the_extent_to_the_longest_row() -> None:
    cache = new_cache(2)
    cache.advance(6, torch.tensor([1, 4]))
    cache.tighten()
    assert cache.extent == 4
    assert isinstance(cache.start, Tensor)


def test_tighten_detects_equally_long_rows() -> None:
    cache = new_cache(2)
    cache.advance(6, torch.tensor([4, 4]))
    cache.tighten()
    assert (cache.start, cache.extent) == (4, 4)


def test_tighten_frees_capacity() -> None:
    cache = new_cache(2, capacity=8)
    cache.advance(6, torch.tensor([1, 2]))
    cache.tighten()
    assert cache.extent_after(6) == 8


def test_truncating_all_rows_to_one_length_gives_one_start() -> None:
    cache = new_cache(2)
    cache.advance(6, torch.tensor([5, 6]))
    cache.truncate(3)
    assert (cache.start, cache.extent, cache.lengths.tolist()) == (3, 3, [3, 3])


def test_truncating_never_lengthens_a_row() -> None:
    cache = new_cache(3)
    cache.advance(6, torch.tensor([2, 4, 6]))
    cache.truncate(torch.tensor([3, 3, 0]))
    assert cache.lengths.tolist() == [2, 3, 0]


def test_reorder_moves_lengths_and_memory_lengths() -> None:
    cache = KVCache(3, 9, [], memory_lengths=torch.tensor([7, 8, 9]))
    cache.advance(4, torch.tensor([1, 2, 3]))
    cache.reorder(torch.tensor([2, 0]))
    assert cache.rows == 2
    assert cache.lengths.tolist() == [3, 1]
    assert cache.memory_lengths is not None
    assert cache.memory_lengths.tolist() == [9, 7]


def test_reorder_moves_cross_kv_of_each_layer() -> None:
    memories = [random_kv(2, 3, seed) for seed in range(2)]
    cache = KVCache(2, 9, [LayerState(cross_kv=memory) for memory in memories])
    cache.reorder(torch.tensor([1, 1, 0]))
    for layer, (key, value) in zip(cache.layers, memories, strict=True):
        assert layer.cross_kv is not None
        assert torch.equal(layer.cross_kv[0], key[[1, 1, 0]])
        assert torch.equal(layer.cross_kv[1], value[[1, 1, 0]])


def test_shared_cross_kv_stays_shared_after_a_reorder() -> None:
    shared = random_kv(2, 3)
    cache = KVCache(
        2, 9, [LayerState(cross_kv=shared), LayerState(cross_kv=random_kv(2, 3)), LayerState(cross_kv=shared)]
    )
    cache.reorder(torch.tensor([1, 0]))
    first, other, last = (layer.cross_kv for layer in cache.layers)
    assert first is last
    assert first is not other


def test_nbytes_counts_shared_cross_kv_once_and_allocated_capacity() -> None:
    shared = random_kv(2, 3)
    cache = KVCache(2, 9, [LayerState(KVBuffer(9), shared), LayerState(KVBuffer(9), shared)])
    assert cache.layers[0].self_kv is not None
    cache.layers[0].self_kv.append(*random_kv(2, 1), context(2, 1, 0))  # the second buffer is still empty
    numbers = 2 * 2 * 3 * (3 + 5) + 2 * 2 * 9 * (3 + 5)  # rows × heads × positions × widths
    assert cache.nbytes() == 4 * numbers


# Errors.


@pytest.mark.parametrize(("rows", "capacity"), [(0, 4), (4, 0), (-1, 4)])
def test_empty_batch_or_capacity_is_an_error(rows: int, capacity: int) -> None:
    with pytest.raises(UserError, match=f"found {rows} and {capacity}"):
        KVCache(rows, capacity, [])


def test_tokens_beyond_the_capacity_are_an_error() -> None:
    cache = new_cache(2, capacity=4)
    cache.advance(3)
    with pytest.raises(UserError, match=r"capacity of 4 positions, but 5 are needed; create it with a larger capacity"):
        Context.after(cache, torch.zeros(2, 2, dtype=torch.long))


def test_advancing_beyond_the_capacity_is_an_error_and_changes_nothing() -> None:
    cache = new_cache(2, capacity=4)
    cache.advance(3)
    with pytest.raises(UserError, match="5 are needed"):
        cache.advance(2)
    assert (cache.start, cache.extent) == (3, 3)


def test_cache_can_be_filled_to_its_capacity() -> None:
    layer, x = attention(MultiHeadConfig(heads=3), Causal(), None), embeddings(1, 4)
    cache = new_cache(1, capacity=4)
    feed(layer, cache, x[:, :3])
    assert_close(feed(layer, cache, x[:, 3:]), uncached(layer, x)[:, 3:], ROUNDING)


@pytest.mark.parametrize("length", [-1, 3, 5])
def test_truncating_beyond_a_row_s_length_is_an_error(length: int) -> None:
    cache = new_cache(2)
    cache.advance(4, torch.tensor([2, 4]))
    with pytest.raises(UserError, match=rf"truncated to {length}: its lengths are \[2, 4\]"):
        cache.truncate(length)


def test_truncating_with_the_wrong_number_of_lengths_is_an_error() -> None:
    with pytest.raises(UserError, match=r"one length per row: 2, found \(3,\)"):
        new_cache(2).truncate(torch.tensor([0, 0, 0]))
