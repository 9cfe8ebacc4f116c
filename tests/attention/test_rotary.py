"""Rotary positions against complex numbers, and each way to slow the angles down against its own paper's formula.

Angles are float32: a frequency and its product with a position are each rounded to 24 bits, so an angle of a radians is
off by up to 2a · 2^-24. The tests allow twice that for every feature of a vector of numbers up to 1.
"""

import cmath
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regard.attention import (
    BandScaling,
    DynamicScaling,
    LinearScaling,
    LongScaling,
    Rotary,
    YarnScaling,
    rotate,
)
from regard.attention.rotary import Scaling
from regard.config import ConfigError
from regard.errors import UserError

from .support import Layout, assert_close, inputs

BASE = 10_000.0
widths = st.integers(1, 16).map(lambda pairs: 2 * pairs)
places = st.integers(0, 4096)
factors = st.floats(1.0, 32.0)


def angle_error(place: int, terms: int) -> float:
    return 4 * (place + 1) * 2**-24 * terms


def turn(vector: list[float], position: float, frequencies: list[float]) -> list[float]:
    """Feature n and n + width/2 as one complex number, turned by position · frequency (Su et al. 2021, §3.2)."""
    half = len(vector) // 2
    turned = [
        complex(vector[pair], vector[pair + half]) * cmath.exp(1j * position * frequencies[pair])
        for pair in range(half)
    ]
    return [number.real for number in turned] + [number.imag for number in turned]


def plain_frequencies(width: int, base: float = BASE) -> list[float]:
    return [base ** (-2 * pair / width) for pair in range(width // 2)]


def found_frequencies(width: int, scaling: Scaling, length: int = 1) -> list[float]:
    """The frequencies in use, read off the angles at position 1 of a text of `length`."""
    cosine, sine = Rotary(width, BASE, scaling).rotation(torch.tensor([1]), length)
    return torch.atan2(sine, cosine)[0].tolist()


def same(found: list[float], expected: list[float]) -> bool:
    # Frequency, cosine and sine are each rounded to 24 bits: at most 2^-22 = 2.4e-7 of the frequency together.
    return found == pytest.approx(expected, rel=1e-6, abs=0)


@given(widths, st.lists(places, min_size=1, max_size=4), st.sampled_from([BASE, 500_000.0]))
def test_a_rotation_is_a_product_with_a_complex_number(width: int, positions: list[int], base: float) -> None:
    x, _, _ = inputs(Layout(2, 2, width, 1), 2, len(positions), 1)
    found = rotate(x, Rotary(width, base).rotation(torch.tensor(positions), 1))
    for row in range(2):
        for head in range(2):
            for number, place in enumerate(positions):
                expected = turn(x[row, head, number].tolist(), place, plain_frequencies(width, base))
                assert found[row, head, number].tolist() == pytest.approx(expected, rel=0, abs=angle_error(place, 1))


@given(widths, st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 3000))
def test_the_product_of_query_and_key_depends_on_their_distance_alone(
    width: int, first: int, second: int, shift: int
) -> None:
    query, key, _ = inputs(Layout(1, 1, width, 1), 1, 1, 1)
    rotary = Rotary(width)

    def score(query_place: int, key_place: int) -> float:
        return float(
            (
                rotate(query, rotary.rotation(torch.tensor([query_place]), 1))
                * rotate(key, rotary.rotation(torch.tensor([key_place]), 1))
            ).sum()
        )

    error = 2 * angle_error(max(first, second) + shift, width)
    assert score(first, second) == pytest.approx(score(first + shift, second + shift), rel=0, abs=error)


@given(widths, places)
def test_a_rotation_keeps_the_length_of_a_vector(width: int, place: int) -> None:
    x, _, _ = inputs(Layout(1, 1, width, 1), 1, 1, 1)
    turned = rotate(x, Rotary(width).rotation(torch.tensor([place]), 1))
    assert_close(turned.norm(), x.norm(), 4 * width * 2**-24)  # cosine and sine are rounded to 24 bits


def test_the_first_position_is_not_turned() -> None:
    x, _, _ = inputs(Layout(2, 2, 8, 1), 2, 1, 1)
    assert torch.equal(rotate(x, Rotary(8).rotation(torch.tensor([0]), 1)), x)


def test_rows_at_different_places_are_turned_each_by_its_own() -> None:
    x, _, _ = inputs(Layout(2, 2, 8, 1), 2, 3, 1)
    positions = torch.tensor([[0, 1, 2], [7, 8, 9]])
    together = rotate(x, Rotary(8).rotation(positions, 1))
    alone = [rotate(x[row : row + 1], Rotary(8).rotation(positions[row], 1)) for row in range(2)]
    assert torch.equal(together, torch.cat(alone))


def test_a_turned_vector_keeps_its_dtype() -> None:
    x, _, _ = inputs(Layout(2, 2, 8, 1), 2, 3, 1, torch.bfloat16)
    assert rotate(x, Rotary(8).rotation(torch.arange(3), 3)).dtype == torch.bfloat16


def test_a_head_of_odd_width_is_refused_with_the_width() -> None:
    with pytest.raises(ConfigError, match="must be even; found 7"):
        Rotary(7)


# Ways to slow the angles down.


@given(widths, factors)
def test_linear_scaling_divides_positions_by_the_factor(width: int, factor: float) -> None:
    # Position interpolation (Chen et al. 2023): f'(x, m) = f(x, m · L / L').
    expected = [frequency / factor for frequency in plain_frequencies(width)]
    assert same(found_frequencies(width, LinearScaling(factor=factor)), expected)


@given(st.integers(2, 16).map(lambda pairs: 2 * pairs), factors, st.integers(1, 100), st.integers(1, 400))
def test_dynamic_scaling_enlarges_the_base_as_the_text_outgrows_training(
    width: int, factor: float, trained: int, length: int
) -> None:
    # b' = b · (s·l/L − (s − 1))^(d/(d − 2)) for l > L, as transformers has it; at s = 1 it is Peng et al. 2023, §3.3.
    stretch = factor * length / trained - (factor - 1) if length > trained else 1.0
    expected = plain_frequencies(width, BASE * stretch ** (width / (width - 2)))
    assert same(found_frequencies(width, DynamicScaling(factor=factor, trained=trained), length), expected)


def yarn_as_released(width: int, factor: float, trained: int, fast: float, slow: float, truncate: bool) -> list[float]:
    """As in the authors' code (github.com/jquesnelle/yarn): the ramp of Peng et al. 2023, §3.2, over pair numbers."""

    def pair_with(turns: float) -> float:
        return width * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(BASE))

    low, high = pair_with(fast), pair_with(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    span = high - low or 0.001
    ramp = [min(1.0, max(0.0, (pair - low) / span)) for pair in range(width // 2)]
    extrapolated = plain_frequencies(width)
    return [(1 - share) * own + share * own / factor for share, own in zip(ramp, extrapolated, strict=True)]


@given(widths, factors, st.integers(64, 8192), st.sampled_from([(32.0, 1.0), (8.0, 2.0)]), st.booleans())
def test_yarn_ramps_from_kept_to_divided_as_its_authors_code_does(
    width: int, factor: float, trained: int, turns: tuple[float, float], truncate: bool
) -> None:
    fast, slow = turns
    scaling = YarnScaling(factor=factor, trained=trained, fast=fast, slow_turns=slow, truncate=truncate)
    assert same(found_frequencies(width, scaling), yarn_as_released(width, factor, trained, fast, slow, truncate))


@given(widths, factors, st.integers(256, 8192))
def test_yarn_keeps_what_turns_often_and_divides_what_hardly_turns(width: int, factor: float, trained: int) -> None:
    # Peng et al. 2023, §3.2: with r turns over the trained length, kept if r > β = 32, divided by s if r < α = 1.
    found = found_frequencies(width, YarnScaling(factor=factor, trained=trained))
    for own, new in zip(plain_frequencies(width), found, strict=True):
        turns = trained * own / (2 * math.pi)
        if turns > 32:
            assert same([new], [own])
        elif turns < 1:
            assert same([new], [own / factor])


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        # Peng et al. 2023, §3.4: √(1/t) = 0.1 ln(s) + 1, on queries and keys alike.
        (YarnScaling(factor=8.0, trained=64), 0.1 * math.log(8.0) + 1),
        (YarnScaling(factor=0.5, trained=64), 1.0),
        (YarnScaling(factor=8.0, trained=64, sharpness=1.5), 1.5),
        (LongScaling(short_factors=(1.0,) * 4, long_factors=(2.0,) * 4, trained=64, sharpness=1.25), 1.25),
        (LinearScaling(factor=8.0), 1.0),
        (DynamicScaling(factor=8.0, trained=64), 1.0),
        (BandScaling(factor=8.0, trained=64), 1.0),
        (Scaling(), 1.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_turned_vectors_are_as_much_longer_as_the_scaling_says(scaling: Scaling, expected: float) -> None:
    x, _, _ = inputs(Layout(1, 1, 8, 1), 1, 5, 1)
    turned = rotate(x, Rotary(8, BASE, scaling).rotation(torch.arange(5), 5))
    assert_close(turned.norm(dim=-1), expected * x.norm(dim=-1), 1e-6)


@given(widths, factors, st.integers(16, 8192), st.sampled_from([(1.0, 4.0), (2.0, 16.0)]))
def test_band_scaling_is_that_of_llama_3(width: int, factor: float, trained: int, bands: tuple[float, float]) -> None:
    # Meta's apply_scaling (github.com/meta-llama/llama-models), which compares wavelengths.
    low, high = bands
    expected = []
    for own in plain_frequencies(width):
        wavelength = 2 * math.pi / own
        if wavelength < trained / high:
            expected.append(own)
        elif wavelength > trained / low:
            expected.append(own / factor)
        else:
            smooth = (trained / wavelength - low) / (high - low)
            expected.append((1 - smooth) * own / factor + smooth * own)
    assert same(found_frequencies(width, BandScaling(factor=factor, trained=trained, low=low, high=high)), expected)


@given(widths, st.integers(1, 50), st.integers(1, 100), st.randoms(use_true_random=False))
def test_long_scaling_divides_each_pair_by_its_own_factor(width: int, trained: int, length: int, random) -> None:
    # LongRoPE (Ding et al. 2024): λ_i for each pair; two sets as in the Phi-3 models that use it.
    short, long = ([random.uniform(1, 40) for _ in range(width // 2)] for _ in range(2))
    scaling = LongScaling(short_factors=tuple(short), long_factors=tuple(long), trained=trained)
    chosen = long if length > trained else short
    expected = [own / factor for own, factor in zip(plain_frequencies(width), chosen, strict=True)]
    assert same(found_frequencies(width, scaling, length), expected)


SCALINGS: list[Scaling] = [
    Scaling(),
    LinearScaling(factor=4.0),
    DynamicScaling(factor=4.0, trained=6),
    YarnScaling(factor=4.0, trained=64),
    LongScaling(short_factors=(1.0, 1.5, 2.0, 3.0), long_factors=(2.0, 4.0, 6.0, 8.0), trained=6),
    BandScaling(factor=4.0, trained=64),
]
each_scaling = pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: type(scaling).__name__)


@each_scaling
def test_only_angles_that_depend_on_the_length_are_not_fixed(scaling: Scaling) -> None:
    rotary = Rotary(8, BASE, scaling)
    short, long = (rotary.rotation(torch.tensor([3]), length)[0] for length in (4, 60))
    assert torch.equal(short, long) == rotary.fixed


@each_scaling
@given(lengths=st.lists(st.integers(1, 20), min_size=3, max_size=3))
@settings(max_examples=10)
def test_rows_of_different_length_get_the_angles_each_would_get_alone(scaling: Scaling, lengths: list[int]) -> None:
    rotary = Rotary(8, BASE, scaling)
    x, _, _ = inputs(Layout(2, 2, 8, 1), 3, 5, 1)
    together = rotate(x, rotary.rotation(torch.arange(5), torch.tensor(lengths)))
    alone = [rotate(x[row : row + 1], rotary.rotation(torch.arange(5), length)) for row, length in enumerate(lengths)]
    assert torch.equal(together, torch.cat(alone))


CASTS: list[Callable[[nn.Module], nn.Module]] = [nn.Module.bfloat16, nn.Module.half, nn.Module.double]


@each_scaling
@pytest.mark.parametrize("cast", CASTS, ids=lambda cast: cast.__name__)
def test_a_cast_module_keeps_every_bit_of_its_angles(cast: Callable[[nn.Module], nn.Module], scaling: Scaling) -> None:
    positions = torch.tensor([1, 100, 4095])
    exact = Rotary(8, BASE, scaling).rotation(positions, 4096)
    found = cast(Rotary(8, BASE, scaling)).rotation(positions, 4096)
    assert all(torch.equal(one, other) for one, other in zip(found, exact, strict=True))


@each_scaling
def test_angles_built_without_memory_are_exact_once_they_have_some(scaling: Scaling) -> None:
    with torch.device("meta"):
        rotary = Rotary(8, BASE, scaling)
    assert rotary.frequencies.values.is_meta
    found = rotary.to_empty(device="cpu").rotation(torch.arange(9), 9)
    exact = Rotary(8, BASE, scaling).rotation(torch.arange(9), 9)
    assert all(torch.equal(one, other) for one, other in zip(found, exact, strict=True))


@each_scaling
def test_angles_are_constants_that_no_file_holds(scaling: Scaling) -> None:
    assert Rotary(8, BASE, scaling).state_dict() == {}


# Wrong settings.


@pytest.mark.parametrize(("short", "long"), [(3, 4), (4, 3)], ids=["short", "long"])
def test_long_scaling_with_factors_for_another_width_is_refused_when_built(short: int, long: int) -> None:
    scaling = LongScaling(short_factors=(1.0,) * short, long_factors=(1.0,) * long, trained=6)
    with pytest.raises(ConfigError, match="each of the 4 pairs of a head; found 3"):
        Rotary(8, BASE, scaling)


@pytest.mark.parametrize("which", ["short_factors", "long_factors"])
@pytest.mark.parametrize("wrong", [0.0, -1.0])
def test_long_scaling_refuses_a_factor_that_is_not_positive(which: str, wrong: float) -> None:
    values = {"short_factors": (1.0, 1.0), "long_factors": (1.0, 1.0), "trained": 6, which: (1.0, wrong)}
    with pytest.raises(ConfigError, match=which):
        LongScaling(**values)


@pytest.mark.parametrize(("low", "high"), [(4.0, 4.0), (4.0, 1.0)])
def test_band_scaling_refuses_bands_that_are_no_range(low: float, high: float) -> None:
    with pytest.raises(ConfigError, match="high"):
        BandScaling(factor=8.0, trained=64, low=low, high=high)


def test_dynamic_scaling_of_a_single_pair_is_refused() -> None:
    # Its exponent is d / (d − 2).
    with pytest.raises(UserError, match="width"):
        Rotary(2, BASE, DynamicScaling(factor=4.0, trained=6))
