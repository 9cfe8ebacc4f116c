"""Codes for positions: each against its formula, put in by adding or side by side."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.attention import Binary, Concatenated, Index, Learned, Normalised, Position, Sinusoidal
from regard.errors import UserError

from .support import assert_close

positions = st.lists(st.integers(0, 5000), min_size=1, max_size=8)
widths = st.integers(1, 33)  # odd ones too


def sine_and_cosine(position: int, feature: int, width: int, base: float) -> float:
    """PE(pos, 2i) = sin(pos / base^(2i/width)), PE(pos, 2i+1) = cos of the same (Vaswani et al. 2017, §3.5)."""
    angle = position / base ** (2 * (feature // 2) / width)
    return math.cos(angle) if feature % 2 else math.sin(angle)


@given(positions, widths, st.sampled_from([10_000.0, 100.0]))
def test_sinusoidal_is_the_formula_of_the_paper(places: list[int], width: int, base: float) -> None:
    found = Sinusoidal(width, base).encode(torch.tensor(places))
    for place, line in zip(places, found.tolist(), strict=True):
        # Frequency and product are each rounded to 24 bits, so an angle is off by up to 2 · 2^-24 of itself.
        expected = [sine_and_cosine(place, feature, width, base) for feature in range(width)]
        assert line == pytest.approx(expected, rel=0, abs=(2 * place + 2) * 2**-24)


@given(positions, widths)
def test_the_halves_are_the_sines_then_the_cosines_of_the_interleaved_code(places: list[int], width: int) -> None:
    interleaved = Sinusoidal(width).encode(torch.tensor(places))
    halves = Sinusoidal(width, layout="halves").encode(torch.tensor(places))
    assert torch.equal(halves, torch.cat((interleaved[:, 0::2], interleaved[:, 1::2]), dim=1))


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("width", [1, 2, 7, 8])
def test_a_sinusoidal_code_has_the_width_asked_for(width: int, layout: str) -> None:
    assert Sinusoidal(width, layout=layout).encode(torch.arange(3)).shape == (3, width)


@pytest.mark.parametrize("cast", [nn.Module.bfloat16, nn.Module.half, nn.Module.double], ids=lambda cast: cast.__name__)
def test_a_cast_module_keeps_every_bit_of_its_sinusoids(cast) -> None:
    places = torch.tensor([1, 100, 4095])
    exact = Sinusoidal(64).encode(places)
    assert torch.equal(cast(nn.Sequential(Sinusoidal(64)))[0].encode(places), exact)


def test_sinusoids_built_without_memory_are_exact_once_they_have_some() -> None:
    with torch.device("meta"):
        code = Sinusoidal(16)
    assert code.frequencies.values.is_meta
    assert torch.equal(code.to_empty(device="cpu").encode(torch.arange(9)), Sinusoidal(16).encode(torch.arange(9)))


def test_sinusoids_are_constants_that_no_file_holds() -> None:
    assert Sinusoidal(16).state_dict() == {}


@given(st.integers(1, 9), st.integers(1, 5))
def test_a_learned_code_is_its_line_of_the_table(limit: int, width: int) -> None:
    code = Learned(width, limit)
    assert torch.equal(code.encode(torch.arange(limit)), code.table)


def test_a_learned_code_is_trained() -> None:
    code = Learned(4, 6)
    code.join(torch.zeros(1, 2, 4), torch.tensor([1, 3])).sum().backward()
    assert code.table.grad is not None
    assert code.table.grad.sum(dim=1).tolist() == [0, 4, 0, 4, 0, 0]


@pytest.mark.parametrize("place", [6, 100])
def test_a_position_beyond_the_learned_ones_is_refused_with_both_numbers(place: int) -> None:
    with pytest.raises(UserError, match=rf"positions for 6 tokens and {place + 1} are needed; .*position\.limit"):
        Learned(4, 6).encode(torch.tensor([0, place]))


@given(positions, widths)
def test_an_index_is_the_number_of_the_word_from_one(places: list[int], width: int) -> None:
    assert Index(width).encode(torch.tensor(places)).tolist() == [[place + 1.0] * width for place in places]


@given(st.integers(1, 30), widths)
def test_without_lengths_a_normalised_index_runs_to_one_at_the_last_word(length: int, width: int) -> None:
    found = Normalised(width).encode(torch.arange(length))
    expected = torch.tensor([[(place + 1) / length] * width for place in range(length)])
    assert_close(found, expected, 2**-23)  # one division, rounded to 24 bits


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_with_lengths_a_normalised_index_runs_to_one_at_each_rows_last_word(lengths: list[int]) -> None:
    found = Normalised(1).encode(torch.arange(9), torch.tensor(lengths))[..., 0]
    expected = torch.tensor([[(place + 1) / length for place in range(9)] for length in lengths])
    assert_close(found, expected, 2**-20)  # quotients up to 9


@given(positions, st.integers(1, 70))
def test_a_binary_code_is_the_positions_lowest_bits_highest_first(places: list[int], width: int) -> None:
    found = Binary(width).encode(torch.tensor(places))
    assert found.tolist() == [[float(bit) for bit in format(place, f"0{width}b")[-width:]] for place in places]


ADDED = [Sinusoidal(6), Learned(6, 9), Index(6), Normalised(6), Binary(6)]


@pytest.mark.parametrize("code", ADDED, ids=lambda code: type(code).__name__)
def test_an_added_code_is_the_embedding_plus_the_code(code: Position) -> None:
    x, places = torch.rand(2, 4, 6), torch.tensor([[0, 1, 2, 3], [5, 6, 7, 8]])
    assert torch.equal(code.join(x, places), x + code.encode(places))


@pytest.mark.parametrize("code", ADDED, ids=lambda code: type(code).__name__)
def test_a_concatenated_code_stands_beside_the_embedding(code: Position) -> None:
    x, places = torch.rand(2, 4, 3), torch.arange(4)  # the same places in both rows
    joined = Concatenated(code).join(x, places)
    assert torch.equal(joined[..., :3], x)
    assert torch.equal(joined[..., 3:], code.encode(places).expand(2, 4, 6))


@pytest.mark.parametrize("code", ADDED, ids=lambda code: type(code).__name__)
@pytest.mark.parametrize("wrap", [lambda code: code, Concatenated], ids=["added", "concatenated"])
def test_embeddings_keep_their_dtype(code: Position, wrap) -> None:
    x = torch.rand(2, 4, 6, dtype=torch.bfloat16)
    assert wrap(code).join(x, torch.arange(4)).dtype == torch.bfloat16


def test_a_concatenated_code_passes_lengths_on() -> None:
    x, lengths = torch.rand(2, 4, 3), torch.tensor([2, 4])
    joined = Concatenated(Normalised(1)).join(x, torch.arange(4), lengths)
    assert joined[:, 1, 3].tolist() == [1.0, 0.5]


@pytest.mark.parametrize(("code", "limit"), [(Learned(2, 7), 7), (Sinusoidal(2), None), (Binary(2), None)])
def test_a_concatenated_code_has_the_limit_of_the_code_itself(code: Position, limit: int | None) -> None:
    assert Concatenated(code).limit == limit


def test_no_position_leaves_embeddings_as_they_are() -> None:
    x = torch.rand(2, 4, 6)
    assert Position().join(x, torch.arange(4)) is x


@given(st.lists(st.lists(st.integers(0, 8), min_size=3, max_size=3), min_size=2, max_size=2))
@pytest.mark.parametrize("code", ADDED, ids=lambda code: type(code).__name__)
def test_rows_at_different_places_get_what_each_would_get_alone(code: Position, places: list[list[int]]) -> None:
    together: Tensor = code.encode(torch.tensor(places))
    assert torch.equal(together, torch.stack([code.encode(torch.tensor(row)) for row in places]))
