"""What is kept while decoding: its bookkeeping, and that decoding with it equals computing everything again.

Equivalences are in float64, where the two ways differ only in the order of sums of some dozens of numbers up to 10:
1e-12 leaves room to spare, and any wrong key would be off by more than 1e-3.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention import (
    Cache,
    Causal,
    Context,
    Dilated,
    Global,
    HeadsConfig,
    LayerState,
    Pattern,
    Rotary,
    SelfAttention,
    Sliding,
    Store,
)
from regard.attention.rotary import (
    BandScaling,
    DynamicScaling,
    LinearScaling,
    LongScaling,
    Scaling,
    YarnScaling,
)
from regard.errors import UserError

from .support import Seen, assert_close, causal_patterns

ROUNDING = 1e-12
WIDTH, HEAD_WIDTH = 12, 4
LENGTH, CAPACITY = 12, 60

HEADS = [
    pytest.param(HeadsConfig(heads=3, head_width=HEAD_WIDTH), id="multi-head"),
    pytest.param(HeadsConfig(heads=4, key_heads=2, head_width=HEAD_WIDTH, value_width=3), id="grouped-query"),
    pytest.param(HeadsConfig(heads=3, key_heads=1, head_width=HEAD_WIDTH, similarity="cosine"), id="multi-query"),
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
    "dynamic": DynamicScaling(factor=4.0, trained=5),
    "yarn": YarnScaling(factor=4.0, trained=40),
    "long": LongScaling(short_factors=(1.0, 2.0), long_factors=(3.0, 5.0), trained=5),
    "band": BandScaling(factor=4.0, trained=40),
}
ROTARIES = [
    pytest.param(None if scaling is None else Rotary(HEAD_WIDTH, scaling=scaling), id=name)
    for name, scaling in SCALINGS.items()
]


def attention(heads: HeadsConfig, pattern: Pattern, rotary: Rotary | None) -> SelfAttention:
    torch.manual_seed(0)
    return SelfAttention(heads, WIDTH, pattern, rotary).double().eval()


def texts(rows: int, length: int = LENGTH, seed: int = 1) -> Tensor:
    """Word vectors.  # (rows, length, width)"""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(rows, length, WIDTH, generator=random, dtype=torch.float64)


def tokens(x: Tensor) -> Tensor:
    """Ids that stand for these vectors: only their shape is looked at.  # (rows, length)"""
    return torch.zeros(x.shape[:2], dtype=torch.long)


@torch.no_grad()
def whole(layer: SelfAttention, x: Tensor) -> Tensor:
    """Everything at once, with no cache."""
    return layer(x, Context(tokens(x)), LayerState())


def fresh(rows: int, capacity: int = CAPACITY) -> Cache:
    return Cache(rows, capacity, [LayerState(Store(capacity))])


@torch.no_grad()
def feed(layer: SelfAttention, cache: Cache, x: Tensor, counts: Tensor | None = None) -> Tensor:
    """The next words, of which the first `counts[r]` are real in row r."""
    result = layer(x, Context.after(cache, tokens(x), counts), cache.layers[0])
    cache.advance(x.shape[1], counts)
    return result


def assert_decoding_equals(layer: SelfAttention, x: Tensor, sizes: list[int]) -> None:
    """Fed in chunks of these sizes, each chunk comes out as from the whole text up to its end.

    Angles that depend on the length of the text make that the text so far; for all others it is the full text's part.
    """
    cache, start = fresh(len(x)), 0
    for size in sizes:
        end = start + size
        found = feed(layer, cache, x[:, start:end])
        assert_close(found, whole(layer, x[:, :end])[:, start:end], ROUNDING)
        start = end


# Decoding with a cache equals computing everything again.


@pytest.mark.parametrize("rotary", ROTARIES)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("heads", HEADS)
def test_step_by_step_equals_without_a_cache(heads: HeadsConfig, pattern: Pattern, rotary: Rotary | None) -> None:
    assert_decoding_equals(attention(heads, pattern, rotary), texts(2), [1] * LENGTH)


@pytest.mark.parametrize("rotary", ROTARIES)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("heads", HEADS)
def test_in_one_chunk_equals_without_a_cache(heads: HeadsConfig, pattern: Pattern, rotary: Rotary | None) -> None:
    assert_decoding_equals(attention(heads, pattern, rotary), texts(2), [LENGTH])


@pytest.mark.parametrize("rotary", ROTARIES)
@pytest.mark.parametrize("heads", HEADS)
@given(seen=causal_patterns(), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5))
@settings(max_examples=10)
def test_in_uneven_chunks_equals_without_a_cache(
    heads: HeadsConfig, rotary: Rotary | None, seen: Seen, sizes: list[int]
) -> None:
    assert_decoding_equals(attention(heads, seen.pattern, rotary), texts(2, sum(sizes)), sizes)


@pytest.mark.parametrize("rotary", [rotary for rotary in ROTARIES if rotary.id not in ("dynamic", "long")])
@given(seen=causal_patterns(), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5))
@settings(max_examples=10)
def test_where_angles_are_fixed_the_chunks_make_up_the_whole_text(
    rotary: Rotary | None, seen: Seen, sizes: list[int]
) -> None:
    layer, x = attention(HeadsConfig(heads=3), seen.pattern, rotary), texts(2, sum(sizes))
    cache = fresh(2)
    found = torch.cat([feed(layer, cache, chunk) for chunk in x.split(sizes, dim=1)], dim=1)
    assert_close(found, whole(layer, x), ROUNDING)


@st.composite
def rounds(draw, rows: int) -> list[list[int]]:
    """For several rounds, how many words each row brings."""
    return draw(st.lists(st.lists(st.integers(0, 4), min_size=rows, max_size=rows).filter(any), min_size=1, max_size=5))


class Rows:
    """Rows being decoded beside plain lists of the words each has been given, to be computed again from the start."""

    def __init__(self, layer: SelfAttention, rows: int, seed: int) -> None:
        self.layer, self.cache = layer, fresh(rows, 400)
        self.words: list[Tensor] = [torch.zeros(0, WIDTH, dtype=torch.float64)] * rows
        self.random = torch.Generator().manual_seed(seed)

    def new(self, *shape: int) -> Tensor:
        return torch.randn(*shape, WIDTH, generator=self.random, dtype=torch.float64)

    def feed(self, counts: list[int]) -> None:
        """Give every row so many new words, padded with noise to a common width, and check what comes out."""
        x = self.new(len(counts), max(counts))
        result = feed(self.layer, self.cache, x, torch.tensor(counts))
        self.check(x, counts, result)

    def feed_all(self, count: int) -> None:
        """Give every row the same number of new words, and check what comes out."""
        x = self.new(len(self.words), count)
        self.check(x, [count] * len(self.words), feed(self.layer, self.cache, x))

    def check(self, x: Tensor, counts: list[int], result: Tensor) -> None:
        for row, count in enumerate(counts):
            self.words[row] = torch.cat((self.words[row], x[row, :count]))
            if count:
                expected = whole(self.layer, self.words[row][None])[0, -count:]
                assert_close(result[row, :count], expected, ROUNDING)

    def reorder(self, rows: list[int]) -> None:
        self.cache.reorder(torch.tensor(rows))
        self.words = [self.words[row] for row in rows]

    def rewind(self, lengths: list[int]) -> None:
        self.cache.rewind(torch.tensor(lengths))
        self.words = [words[:length] for words, length in zip(self.words, lengths, strict=True)]

    def rewind_all(self, length: int) -> None:
        length = min(length, *(len(words) for words in self.words))
        self.cache.rewind(length)
        self.words = [words[:length] for words in self.words]


@pytest.mark.parametrize("rotary", ROTARIES)
@pytest.mark.parametrize("heads", HEADS)
@given(seen=causal_patterns(), brought=rounds(3), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_rows_of_different_length_each_equal_themselves_alone(
    heads: HeadsConfig, rotary: Rotary | None, seen: Seen, brought: list[list[int]], seed: int
) -> None:
    rows = Rows(attention(heads, seen.pattern, rotary), 3, seed)
    for counts in brought:
        rows.feed(counts)


@pytest.mark.parametrize("rotary", ROTARIES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_after_a_rewind_of_all_rows_decoding_goes_on_as_if_the_rest_had_never_been(
    pattern: Pattern, rotary: Rotary | None
) -> None:
    rows = Rows(attention(HeadsConfig(heads=3), pattern, rotary), 2, 0)
    rows.feed_all(7)
    rows.rewind_all(3)
    rows.feed_all(2)
    rows.feed_all(1)


@pytest.mark.parametrize("rotary", ROTARIES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_after_a_rewind_of_each_row_decoding_goes_on_as_if_the_rest_had_never_been(
    pattern: Pattern, rotary: Rotary | None
) -> None:
    rows = Rows(attention(HeadsConfig(heads=3), pattern, rotary), 3, 0)
    rows.feed_all(7)
    rows.rewind([0, 4, 7])
    rows.feed_all(2)
    rows.feed_all(1)


@pytest.mark.parametrize("rotary", ROTARIES)
@pytest.mark.parametrize("order", [[1, 0, 2], [2, 2, 0], [1], [0, 1, 2, 0, 1]], ids=str)
def test_after_a_reorder_each_row_goes_on_from_the_row_it_was(order: list[int], rotary: Rotary | None) -> None:
    rows = Rows(attention(HeadsConfig(heads=3), Causal(), rotary), 3, 0)
    rows.feed([4, 1, 7])
    rows.reorder(order)
    rows.feed_all(2)


operations = st.one_of(
    st.tuples(st.just("feed"), st.lists(st.integers(0, 4), min_size=4, max_size=4)),
    st.tuples(st.just("feed_all"), st.integers(1, 4)),
    st.tuples(st.just("rewind"), st.lists(st.integers(0, 12), min_size=4, max_size=4)),
    st.tuples(st.just("rewind_all"), st.integers(0, 12)),
    st.tuples(st.just("reorder"), st.lists(st.integers(0, 3), min_size=1, max_size=4)),
    st.tuples(st.just("tighten"), st.none()),
)


@pytest.mark.parametrize("rotary", ROTARIES)
@given(seen=causal_patterns(), script=st.lists(operations, min_size=3, max_size=10), seed=st.integers(0, 99))
@settings(max_examples=50)
def test_whatever_is_done_to_a_cache_the_next_words_come_out_as_from_the_start(
    rotary: Rotary | None, seen: Seen, script: list, seed: int
) -> None:
    rows = Rows(attention(HeadsConfig(heads=2, key_heads=1, head_width=HEAD_WIDTH), seen.pattern, rotary), 3, seed)
    for name, value in [*script, ("feed_all", 2)]:
        count = len(rows.words)
        match name:
            case "feed" if any(value[:count]):
                rows.feed(value[:count])
            case "feed_all":
                rows.feed_all(value)
            case "rewind":
                rows.rewind([min(wanted, len(words)) for wanted, words in zip(value, rows.words, strict=False)])
            case "rewind_all":
                rows.rewind_all(value)
            case "reorder":
                rows.reorder([number % count for number in value])
            case "tighten":
                rows.cache.tighten()
        assert rows.cache.lengths.tolist() == [len(words) for words in rows.words]


# Stores.


def passing(rows: int, tokens: int, start: int | Tensor, extent: int | None = None) -> Context:
    """A pass of tokens that begins at `start`."""
    if extent is None:
        assert isinstance(start, int)
        extent = start + tokens
    return Context(torch.zeros(rows, tokens, dtype=torch.long), start=start, extent=extent)


def pair(rows: int, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Keys and values of two heads, of width 3 and 5."""
    random = torch.Generator().manual_seed(seed)
    key, value = (torch.rand(rows, 2, count, width, generator=random) for width in (3, 5))
    return key, value


def test_a_store_gives_back_all_that_was_written() -> None:
    store, (key, value) = Store(9), pair(2, 5)
    store.append(key[:, :, :3], value[:, :, :3], passing(2, 3, 0))
    kept = store.append(key[:, :, 3:], value[:, :, 3:], passing(2, 2, 3))
    assert torch.equal(kept[0], key)
    assert torch.equal(kept[1], value)


def test_a_store_writes_each_row_at_its_own_place() -> None:
    store, (key, value) = Store(9), pair(2, 2)
    kept = store.append(key, value, passing(2, key.shape[2], torch.tensor([1, 4]), 6))
    for found, new in zip(kept, (key, value), strict=True):
        expected = torch.zeros(2, 2, 6, new.shape[3])
        expected[0, :, 1:3], expected[1, :, 4:6] = new[0], new[1]
        assert torch.equal(found, expected)


def test_a_store_sets_its_room_aside_once() -> None:
    store = Store(9)
    store.append(*pair(2, 3), passing(2, 3, 0))
    assert store.tensors is not None
    places = [tensor.data_ptr() for tensor in store.tensors]
    kept = store.append(*pair(2, 3, seed=1), passing(2, 3, 3))
    assert [tensor.data_ptr() for tensor in kept] == places
    assert [tensor.shape[2] for tensor in store.tensors] == [9, 9]


def test_a_store_holds_nothing_before_the_first_words() -> None:
    store = Store(9)
    store.reorder(torch.tensor([0]))
    assert store.tensors is None


@pytest.mark.parametrize("order", [[1, 0], [0], [1, 1, 0]], ids=str)
def test_a_reordered_store_holds_the_chosen_rows(order: list[int]) -> None:
    store, (key, value) = Store(4), pair(2, 3)
    store.append(key, value, passing(2, 3, 0))
    store.reorder(torch.tensor(order))
    assert store.tensors is not None
    assert torch.equal(store.tensors[0][:, :, :3], key[order])
    assert torch.equal(store.tensors[1][:, :, :3], value[order])


# The bookkeeping.


def test_an_empty_cache_begins_at_the_first_position() -> None:
    cache = fresh(3)
    assert (cache.rows, cache.start, cache.extent, cache.lengths.tolist()) == (3, 0, 0, [0, 0, 0])


def test_rows_that_advance_together_have_one_start() -> None:
    cache = fresh(3)
    cache.advance(4)
    cache.advance(1)
    assert (cache.start, cache.extent, cache.lengths.tolist()) == (5, 5, [5, 5, 5])


def test_rows_that_advance_apart_have_a_start_each() -> None:
    cache = fresh(3)
    cache.advance(4, torch.tensor([4, 0, 2]))
    cache.advance(1)
    assert isinstance(cache.start, Tensor)
    assert cache.start.tolist() == [5, 1, 3]


def test_the_extent_is_never_less_than_the_longest_row() -> None:
    cache = fresh(2)
    cache.advance(4, torch.tensor([1, 2]))
    cache.advance(3, torch.tensor([3, 0]))
    assert cache.extent >= int(cache.lengths.max())


def test_tightening_brings_the_extent_to_the_longest_row() -> None:
    cache = fresh(2)
    cache.advance(6, torch.tensor([1, 4]))
    cache.tighten()
    assert cache.extent == 4
    assert isinstance(cache.start, Tensor)


def test_tightening_finds_that_rows_are_equally_long_again() -> None:
    cache = fresh(2)
    cache.advance(6, torch.tensor([4, 4]))
    cache.tighten()
    assert (cache.start, cache.extent) == (4, 4)


def test_tightening_makes_room() -> None:
    cache = fresh(2, capacity=8)
    cache.advance(6, torch.tensor([1, 2]))
    cache.tighten()
    assert cache.room_for(6) == 8


def test_rewinding_all_rows_to_one_length_gives_them_one_start() -> None:
    cache = fresh(2)
    cache.advance(6, torch.tensor([5, 6]))
    cache.rewind(3)
    assert (cache.start, cache.extent, cache.lengths.tolist()) == (3, 3, [3, 3])


def test_rewinding_each_row_never_makes_one_longer() -> None:
    cache = fresh(3)
    cache.advance(6, torch.tensor([2, 4, 6]))
    cache.rewind(torch.tensor([3, 3, 0]))
    assert cache.lengths.tolist() == [2, 3, 0]


def test_a_reorder_moves_lengths_of_rows_and_of_the_encoders_rows() -> None:
    cache = Cache(3, 9, [], memory_lengths=torch.tensor([7, 8, 9]))
    cache.advance(4, torch.tensor([1, 2, 3]))
    cache.reorder(torch.tensor([2, 0]))
    assert cache.rows == 2
    assert cache.lengths.tolist() == [3, 1]
    assert cache.memory_lengths is not None
    assert cache.memory_lengths.tolist() == [9, 7]


def test_a_reorder_moves_the_memory_of_each_layer() -> None:
    memories = [pair(2, 3, seed) for seed in range(2)]
    cache = Cache(2, 9, [LayerState(memory=memory) for memory in memories])
    cache.reorder(torch.tensor([1, 1, 0]))
    for layer, (key, value) in zip(cache.layers, memories, strict=True):
        assert layer.memory is not None
        assert torch.equal(layer.memory[0], key[[1, 1, 0]])
        assert torch.equal(layer.memory[1], value[[1, 1, 0]])


def test_a_memory_shared_by_all_layers_stays_shared_after_a_reorder() -> None:
    shared = pair(2, 3)
    cache = Cache(2, 9, [LayerState(memory=shared), LayerState(memory=pair(2, 3)), LayerState(memory=shared)])
    cache.reorder(torch.tensor([1, 0]))
    first, other, last = (layer.memory for layer in cache.layers)
    assert first is last
    assert first is not other


def test_bytes_count_a_shared_memory_once_and_the_room_set_aside() -> None:
    shared = pair(2, 3)
    cache = Cache(2, 9, [LayerState(Store(9), shared), LayerState(Store(9), shared)])
    assert cache.layers[0].own is not None
    cache.layers[0].own.append(*pair(2, 1), passing(2, 1, 0))  # the second store is still empty
    numbers = 2 * 2 * 3 * (3 + 5) + 2 * 2 * 9 * (3 + 5)  # rows × heads × positions × widths
    assert cache.bytes() == 4 * numbers


# Wrong input.


@pytest.mark.parametrize(("rows", "capacity"), [(0, 4), (4, 0), (-1, 4)])
def test_a_cache_for_nothing_is_refused_with_what_was_found(rows: int, capacity: int) -> None:
    with pytest.raises(UserError, match=f"found {rows} and {capacity}"):
        Cache(rows, capacity, [])


def test_words_beyond_the_capacity_are_refused_with_both_numbers() -> None:
    cache = fresh(2, capacity=4)
    cache.advance(3)
    with pytest.raises(UserError, match=r"room for 4 positions and 5 are needed; start with a larger capacity"):
        Context.after(cache, torch.zeros(2, 2, dtype=torch.long))


def test_advancing_beyond_the_capacity_is_refused_and_changes_nothing() -> None:
    cache = fresh(2, capacity=4)
    cache.advance(3)
    with pytest.raises(UserError, match="5 are needed"):
        cache.advance(2)
    assert (cache.start, cache.extent) == (3, 3)


def test_a_cache_can_be_filled_to_the_last_position() -> None:
    layer, x = attention(HeadsConfig(heads=3), Causal(), None), texts(1, 4)
    cache = fresh(1, capacity=4)
    feed(layer, cache, x[:, :3])
    assert_close(feed(layer, cache, x[:, 3:]), whole(layer, x)[:, 3:], ROUNDING)


@pytest.mark.parametrize("length", [-1, 3, 5])
def test_rewinding_to_where_a_row_has_never_been_is_refused_with_the_lengths(length: int) -> None:
    cache = fresh(2)
    cache.advance(4, torch.tensor([2, 4]))
    with pytest.raises(UserError, match=rf"rewound to length {length}: it holds \[2, 4\]"):
        cache.rewind(length)


def test_rewinding_with_lengths_for_other_rows_is_refused_with_both_numbers() -> None:
    with pytest.raises(UserError, match=r"one length a row: 2 of them, found \(3,\)"):
        fresh(2).rewind(torch.tensor([0, 0, 0]))
