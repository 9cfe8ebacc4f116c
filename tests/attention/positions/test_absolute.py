"""Absolute position encodings: each against its formula, added or concatenated."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.attention import Binary, Concatenated, Index, Learned, Normalized, Position, Sinusoidal
from regard.errors import UserError
from tests.attention.support import assert_close

positions = st.lists(st.integers(0, 5000), min_size=1, max_size=8)
widths = st.integers(1, 33)  # including odd ones


def sine_and_cosine(position: int, feature: int, width: int, base: float) -> float:
    """PE(pos, 2i) = sin(pos / base^(2i/width)), PE(pos, 2i+1) = cos of the same (Vaswani et al. 2017, §3.5)."""
    angle = position / base ** (2 * (feature // 2) / width)
    return math.cos(angle) if feature % 2 else math.sin(angle)


@given(positions, widths, st.sampled_from([10_000.0, 100.0]))
def test_sinusoidal_encoding_equals_the_paper_s_formula(positions: list[int], width: int, base: float) -> None:
    actual = Sinusoidal(width, base).encode(torch.tensor(positions))
    for position, line in zip(positions, actual.tolist(), strict=True):
        # Frequency and product are each rounded to 24 bits, so an angle has a relative error of up to 2 · 2^-24.
        expected = [sine_and_cosine(position, feature, width, base) for feature in range(width)]
        assert line == pytest.approx(expected, rel=0, abs=(2 * position + 2) * 2**-24)


@given(positions, widths)
def test_halves_layout_is_sines_then_cosines(positions: list[int], width: int) -> None:
    interleaved = Sinusoidal(width).encode(torch.tensor(positions))
    halves = Sinusoidal(width, layout="halves").encode(torch.tensor(positions))
    assert torch.equal(halves, torch.cat((interleaved[:, 0::2], interleaved[:, 1::2]), dim=1))


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("width", [1, 2, 7, 8])
def test_sinusoidal_encoding_has_the_given_width(width: int, layout: str) -> None:
    assert Sinusoidal(width, layout=layout).encode(torch.arange(3)).shape == (3, width)


@pytest.mark.parametrize("cast", [nn.Module.bfloat16, nn.Module.half, nn.Module.double], ids=lambda cast: cast.__name__)
def test_cast_module_keeps_float32_sinusoids(cast) -> None:
    positions = torch.tensor([1, 100, 4095])
    exact = Sinusoidal(64).encode(positions)
    assert torch.equal(cast(nn.Sequential(Sinusoidal(64)))[0].encode(positions), exact)


def test_sinusoids_built_on_meta_are_exact_after_materialization() -> None:
    with torch.device("meta"):
        encoding = Sinusoidal(16)
    assert encoding.frequencies.values.is_meta
    assert torch.equal(encoding.to_empty(device="cpu").encode(torch.arange(9)), Sinusoidal(16).encode(torch.arange(9)))


def test_sinusoids_are_not_in_the_state_dict() -> None:
    assert Sinusoidal(16).state_dict() == {}


@given(st.integers(1, 9), st.integers(1, 5))
def test_learned_encoding_is_a_row_of_the_weight(max_length: int, width: int) -> None:
    encoding = Learned(width, max_length)
    assert torch.equal(encoding.encode(torch.arange(max_length)), encoding.weight)


def test_learned_encoding_receives_a_gradient() -> None:
    encoding = Learned(4, 6)
    encoding.combine(torch.zeros(1, 2, 4), torch.tensor([1, 3])).sum().backward()
    assert encoding.weight.grad is not None
    assert encoding.weight.grad.sum(dim=1).tolist() == [0, 4, 0, 4, 0, 0]


@pytest.mark.parametrize("position", [6, 100])
def test_position_beyond_the_learned_ones_is_refused(position: int) -> None:
    with pytest.raises(
        UserError, match=rf"positions for 6 tokens, but {position + 1} are needed; .*position\.max_length"
    ):
        Learned(4, 6).encode(torch.tensor([0, position]))


@given(positions, widths)
def test_index_counts_from_one(positions: list[int], width: int) -> None:
    assert Index(width).encode(torch.tensor(positions)).tolist() == [[position + 1.0] * width for position in positions]


@given(st.integers(1, 30), widths)
def test_normalized_index_is_one_at_the_last_token(length: int, width: int) -> None:
    actual = Normalized(width).encode(torch.arange(length))
    expected = torch.tensor([[(position + 1) / length] * width for position in range(length)])
    assert_close(actual, expected, 2**-23)  # one division, rounded to 24 bits


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_normalized_index_is_one_at_the_last_token_of_each_row(lengths: list[int]) -> None:
    actual = Normalized(1).encode(torch.arange(9), torch.tensor(lengths))[..., 0]
    expected = torch.tensor([[(position + 1) / length for position in range(9)] for length in lengths])
    assert_close(actual, expected, 2**-20)  # quotients up to 9


@given(positions, st.integers(1, 70))
def test_binary_encoding_is_the_lowest_bits_highest_first(positions: list[int], width: int) -> None:
    actual = Binary(width).encode(torch.tensor(positions))
    assert actual.tolist() == [
        [float(bit) for bit in format(position, f"0{width}b")[-width:]] for position in positions
    ]


ADDED = [Sinusoidal(6), Learned(6, 9), Index(6), Normalized(6), Binary(6)]


@pytest.mark.parametrize("encoding", ADDED, ids=lambda encoding: type(encoding).__name__)
def test_added_encoding_is_the_sum(encoding: Position) -> None:
    x, positions = torch.rand(2, 4, 6), torch.tensor([[0, 1, 2, 3], [5, 6, 7, 8]])
    assert torch.equal(encoding.combine(x, positions), x + encoding.encode(positions))


@pytest.mark.parametrize("encoding", ADDED, ids=lambda encoding: type(encoding).__name__)
def test_concatenated_encoding_follows_the_embedding(encoding: Position) -> None:
    x, positions = torch.rand(2, 4, 3), torch.arange(4)  # the same positions in both rows
    combined = Concatenated(encoding).combine(x, positions)
    assert torch.equal(combined[..., :3], x)
    assert torch.equal(combined[..., 3:], encoding.encode(positions).expand(2, 4, 6))


@pytest.mark.parametrize("encoding", ADDED, ids=lambda encoding: type(encoding).__name__)
@pytest.mark.parametrize("wrap", [lambda encoding: encoding, Concatenated], ids=["added", "concatenated"])
def test_embeddings_keep_their_dtype(encoding: Position, wrap) -> None:
    x = torch.rand(2, 4, 6, dtype=torch.bfloat16)
    assert wrap(encoding).combine(x, torch.arange(4)).dtype == torch.bfloat16


def test_concatenated_encoding_passes_lengths_on() -> None:
    x, lengths = torch.rand(2, 4, 3), torch.tensor([2, 4])
    combined = Concatenated(Normalized(1)).combine(x, torch.arange(4), lengths)
    assert combined[:, 1, 3].tolist() == [1.0, 0.5]


@pytest.mark.parametrize(("encoding", "max_length"), [(Learned(2, 7), 7), (Sinusoidal(2), None), (Binary(2), None)])
def test_concatenated_encoding_keeps_max_length(encoding: Position, max_length: int | None) -> None:
    assert Concatenated(encoding).max_length == max_length


def test_no_position_leaves_embeddings_unchanged() -> None:
    x = torch.rand(2, 4, 6)
    assert Position().combine(x, torch.arange(4)) is x


@given(st.lists(st.lists(st.integers(0, 8), min_size=3, max_size=3), min_size=2, max_size=2))
@pytest.mark.parametrize("encoding", ADDED, ids=lambda encoding: type(encoding).__name__)
def test_rows_at_different_positions_equal_single_rows(encoding: Position, positions: list[list[int]]) -> None:
    batched: Tensor = encoding.encode(torch.tensor(positions))
    assert torch.equal(batched, torch.stack([encoding.encode(torch.tensor(row)) for row in positions]))
