"""Rotary positions against complex multiplication, and each RoPE scaling against the formula of its paper.

Angles are float32: a frequency and its product with a position are each rounded to 24 bits, so an angle of a radians
has an error of up to 2a · 2^-24. The tests allow twice that per feature of a vector of numbers up to 1.
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
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rotary,
    YarnScaling,
    apply_rotary,
)
from regard.attention.positions.rotary import Scaling
from regard.config import ConfigError
from regard.errors import UserError
from tests.attention.support import Layout, assert_close, inputs

BASE = 10_000.0
widths = st.integers(1, 16).map(lambda pairs: 2 * pairs)
places = st.integers(0, 4096)
factors = st.floats(1.0, 32.0)


def angle_error(position: int, terms: int) -> float:
    return 4 * (position + 1) * 2**-24 * terms


def rotate_complex(vector: list[float], position: float, frequencies: list[float]) -> list[float]:
    """Features n and n + width/2 as one complex number, rotated by position · frequency (Su et al. 2021, §3.2)."""
    half = len(vector) // 2
    rotated = [
        complex(vector[pair], vector[pair + half]) * cmath.exp(1j * position * frequencies[pair])
        for pair in range(half)
    ]
    return [number.real for number in rotated] + [number.imag for number in rotated]


def plain_frequencies(width: int, base: float = BASE) -> list[float]:
    return [base ** (-2 * pair / width) for pair in range(width // 2)]


def used_frequencies(width: int, scaling: Scaling, length: int = 1) -> list[float]:
    """The frequencies in use: the angles at position 1 of a text of this length."""
    cosine, sine = Rotary(width, BASE, scaling).rotation(torch.tensor([1]), length)
    return torch.atan2(sine, cosine)[0].tolist()


def approx_equal(actual: list[float], expected: list[float]) -> bool:
    # Frequency, cosine and sine are each rounded to 24 bits: a relative error of at most 2^-22 = 2.4e-7 in all.
    return actual == pytest.approx(expected, rel=1e-6, abs=0)


@given(widths, st.lists(places, min_size=1, max_size=4), st.sampled_from([BASE, 500_000.0]))
def test_rotation_is_complex_multiplication(width: int, positions: list[int], base: float) -> None:
    x, _, _ = inputs(Layout(2, 2, width, 1), 2, len(positions), 1)
    actual = apply_rotary(x, Rotary(width, base).rotation(torch.tensor(positions), 1))
    for row in range(2):
        for head in range(2):
            for number, position in enumerate(positions):
                expected = rotate_complex(x[row, head, number].tolist(), position, plain_frequencies(width, base))
                assert actual[row, head, number].tolist() == pytest.approx(
                    expected, rel=0, abs=angle_error(position, 1)
                )


@given(widths, st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 3000))
def test_dot_product_depends_only_on_the_distance(width: int, first: int, second: int, shift: int) -> None:
    query, key, _ = inputs(Layout(1, 1, width, 1), 1, 1, 1)
    rotary = Rotary(width)

    def score(query_place: int, key_place: int) -> float:
        return float(
            (
                apply_rotary(query, rotary.rotation(torch.tensor([query_place]), 1))
                * apply_rotary(key, rotary.rotation(torch.tensor([key_place]), 1))
            ).sum()
        )

    error = 2 * angle_error(max(first, second) + shift, width)
    assert score(first, second) == pytest.approx(score(first + shift, second + shift), rel=0, abs=error)


@given(widths, places)
def test_rotation_preserves_the_norm(width: int, position: int) -> None:
    x, _, _ = inputs(Layout(1, 1, width, 1), 1, 1, 1)
    rotated = apply_rotary(x, Rotary(width).rotation(torch.tensor([position]), 1))
    assert_close(rotated.norm(), x.norm(), 4 * width * 2**-24)  # cosine and sine are rounded to 24 bits


def test_position_zero_is_not_rotated() -> None:
    x, _, _ = inputs(Layout(2, 2, 8, 1), 2, 1, 1)
    assert torch.equal(apply_rotary(x, Rotary(8).rotation(torch.tensor([0]), 1)), x)


def test_rows_at_different_positions_are_rotated_separately() -> None:
    x, _, _ = inputs(Layout(2, 2, 8, 1), 2, 3, 1)
    positions = torch.tensor([[0, 1, 2], [7, 8, 9]])
    batched = apply_rotary(x, Rotary(8).rotation(positions, 1))
    alone = [apply_rotary(x[row : row + 1], Rotary(8).rotation(positions[row], 1)) for row in range(2)]
    assert torch.equal(batched, torch.cat(alone))


def test_rotation_keeps_the_dtype() -> None:
    x, _, _ = inputs(Layout(2, 2, 8, 1), 2, 3, 1, torch.bfloat16)
    assert apply_rotary(x, Rotary(8).rotation(torch.arange(3), 3)).dtype == torch.bfloat16


def test_odd_head_dim_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be even; found 7"):
        Rotary(7)


# RoPE scaling.


@given(widths, factors)
def test_linear_scaling_divides_positions_by_the_factor(width: int, factor: float) -> None:
    # Position interpolation (Chen et al. 2023): f'(x, m) = f(x, m · L / L').
    expected = [frequency / factor for frequency in plain_frequencies(width)]
    assert approx_equal(used_frequencies(width, LinearScaling(factor=factor)), expected)


@given(st.integers(2, 16).map(lambda pairs: 2 * pairs), factors, st.integers(1, 100), st.integers(1, 400))
def test_dynamic_scaling_raises_theta_beyond_the_original_length(
    width: int, factor: float, trained: int, length: int
) -> None:
    # b' = b · (s·l/L − (s − 1))^(d/(d − 2)) for l > L, as in transformers; s = 1 gives Peng et al. 2023, §3.3.
    stretch = factor * length / trained - (factor - 1) if length > trained else 1.0
    expected = plain_frequencies(width, BASE * stretch ** (width / (width - 2)))
    assert approx_equal(
        used_frequencies(width, DynamicScaling(factor=factor, original_max_length=trained), length), expected
    )


def yarn_as_released(
    width: int, factor: float, trained: int, fast: float, scale_frequencies: float, truncate: bool
) -> list[float]:
    """As in the authors' code (github.com/jquesnelle/yarn): the ramp of Peng et al. 2023, §3.2, over pair numbers."""

    def pair_with(rotations: float) -> float:
        return width * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(BASE))

    low, high = pair_with(fast), pair_with(scale_frequencies)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    span = high - low or 0.001
    ramp = [min(1.0, max(0.0, (pair - low) / span)) for pair in range(width // 2)]
    extrapolated = plain_frequencies(width)
    return [
        (1 - weight) * frequency + weight * frequency / factor
        for weight, frequency in zip(ramp, extrapolated, strict=True)
    ]


@given(widths, factors, st.integers(64, 8192), st.sampled_from([(32.0, 1.0), (8.0, 2.0)]), st.booleans())
def test_yarn_equals_the_authors_code(
    width: int, factor: float, trained: int, rotations: tuple[float, float], truncate: bool
) -> None:
    fast, scale_frequencies = rotations
    scaling = YarnScaling(
        factor=factor, original_max_length=trained, beta_fast=fast, beta_slow=scale_frequencies, truncate=truncate
    )
    assert approx_equal(
        used_frequencies(width, scaling), yarn_as_released(width, factor, trained, fast, scale_frequencies, truncate)
    )


@given(widths, factors, st.integers(256, 8192))
def test_yarn_keeps_high_and_divides_low_frequencies(width: int, factor: float, trained: int) -> None:
    # Peng et al. 2023, §3.2: a frequency of r rotations over the trained length is unchanged if r > β = 32, and divided
    # by s if r < α = 1.
    actual = used_frequencies(width, YarnScaling(factor=factor, original_max_length=trained))
    for frequency, new in zip(plain_frequencies(width), actual, strict=True):
        rotations = trained * frequency / (2 * math.pi)
        if rotations > 32:
            assert approx_equal([new], [frequency])
        elif rotations < 1:
            assert approx_equal([new], [frequency / factor])


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        # Peng et al. 2023, §3.4: √(1/t) = 0.1 ln(s) + 1, on queries and keys alike.
        (YarnScaling(factor=8.0, original_max_length=64), 0.1 * math.log(8.0) + 1),
        (YarnScaling(factor=0.5, original_max_length=64), 1.0),
        (YarnScaling(factor=8.0, original_max_length=64, attention_factor=1.5), 1.5),
        (
            LongRopeScaling(
                short_factors=(1.0,) * 4, long_factors=(2.0,) * 4, original_max_length=64, attention_factor=1.25
            ),
            1.25,
        ),
        (LinearScaling(factor=8.0), 1.0),
        (DynamicScaling(factor=8.0, original_max_length=64), 1.0),
        (Llama3Scaling(factor=8.0, original_max_length=64), 1.0),
        (Scaling(), 1.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_attention_scaling_scales_the_norm(scaling: Scaling, expected: float) -> None:
    x, _, _ = inputs(Layout(1, 1, 8, 1), 1, 5, 1)
    rotated = apply_rotary(x, Rotary(8, BASE, scaling).rotation(torch.arange(5), 5))
    assert_close(rotated.norm(dim=-1), expected * x.norm(dim=-1), 1e-6)


@given(widths, factors, st.integers(16, 8192), st.sampled_from([(1.0, 4.0), (2.0, 16.0)]))
def test_llama3_scaling_equals_the_published_code(
    width: int, factor: float, trained: int, bands: tuple[float, float]
) -> None:
    # Meta's apply_scaling (github.com/meta-llama/llama-models), which compares wavelengths.
    low, high = bands
    expected = []
    for frequency in plain_frequencies(width):
        wavelength = 2 * math.pi / frequency
        if wavelength < trained / high:
            expected.append(frequency)
        elif wavelength > trained / low:
            expected.append(frequency / factor)
        else:
            smooth = (trained / wavelength - low) / (high - low)
            expected.append((1 - smooth) * frequency / factor + smooth * frequency)
    assert approx_equal(
        used_frequencies(
            width, Llama3Scaling(factor=factor, original_max_length=trained, low_freq_factor=low, high_freq_factor=high)
        ),
        expected,
    )


@given(widths, st.integers(1, 50), st.integers(1, 100), st.randoms(use_true_random=False))
def test_longrope_divides_each_pair_by_its_factor(width: int, trained: int, length: int, random) -> None:
    # LongRoPE (Ding et al. 2024): λ_i for each pair; two sets as in the Phi-3 models that use it.
    short, long = ([random.uniform(1, 40) for _ in range(width // 2)] for _ in range(2))
    scaling = LongRopeScaling(short_factors=tuple(short), long_factors=tuple(long), original_max_length=trained)
    chosen = long if length > trained else short
    expected = [frequency / factor for frequency, factor in zip(plain_frequencies(width), chosen, strict=True)]
    assert approx_equal(used_frequencies(width, scaling, length), expected)


SCALINGS: list[Scaling] = [
    Scaling(),
    LinearScaling(factor=4.0),
    DynamicScaling(factor=4.0, original_max_length=6),
    YarnScaling(factor=4.0, original_max_length=64),
    LongRopeScaling(short_factors=(1.0, 1.5, 2.0, 3.0), long_factors=(2.0, 4.0, 6.0, 8.0), original_max_length=6),
    Llama3Scaling(factor=4.0, original_max_length=64),
]
each_scaling = pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: type(scaling).__name__)


@each_scaling
def test_only_length_dependent_scalings_are_not_static(scaling: Scaling) -> None:
    rotary = Rotary(8, BASE, scaling)
    short, long = (rotary.rotation(torch.tensor([3]), length)[0] for length in (4, 60))
    assert torch.equal(short, long) == rotary.is_static


@each_scaling
@given(lengths=st.lists(st.integers(1, 20), min_size=3, max_size=3))
@settings(max_examples=10)
def test_rows_of_different_lengths_have_their_own_rotation(scaling: Scaling, lengths: list[int]) -> None:
    rotary = Rotary(8, BASE, scaling)
    x, _, _ = inputs(Layout(2, 2, 8, 1), 3, 5, 1)
    batched = apply_rotary(x, rotary.rotation(torch.arange(5), torch.tensor(lengths)))
    alone = [
        apply_rotary(x[row : row + 1], rotary.rotation(torch.arange(5), length)) for row, length in enumerate(lengths)
    ]
    assert torch.equal(batched, torch.cat(alone))


CASTS: list[Callable[[nn.Module], nn.Module]] = [nn.Module.bfloat16, nn.Module.half, nn.Module.double]


@each_scaling
@pytest.mark.parametrize("cast", CASTS, ids=lambda cast: cast.__name__)
def test_cast_module_keeps_float32_frequencies(cast: Callable[[nn.Module], nn.Module], scaling: Scaling) -> None:
    positions = torch.tensor([1, 100, 4095])
    exact = Rotary(8, BASE, scaling).rotation(positions, 4096)
    actual = cast(Rotary(8, BASE, scaling)).rotation(positions, 4096)
    assert all(torch.equal(one, other) for one, other in zip(actual, exact, strict=True))


@each_scaling
def test_frequencies_built_on_meta_are_exact_after_materialization(scaling: Scaling) -> None:
    with torch.device("meta"):
        rotary = Rotary(8, BASE, scaling)
    assert rotary.frequencies.values.is_meta
    actual = rotary.to_empty(device="cpu").rotation(torch.arange(9), 9)
    exact = Rotary(8, BASE, scaling).rotation(torch.arange(9), 9)
    assert all(torch.equal(one, other) for one, other in zip(actual, exact, strict=True))


@each_scaling
def test_frequencies_are_not_in_the_state_dict(scaling: Scaling) -> None:
    assert Rotary(8, BASE, scaling).state_dict() == {}


# Invalid settings.


@pytest.mark.parametrize(("short", "long"), [(3, 4), (4, 3)], ids=["short", "long"])
def test_longrope_factors_of_wrong_number_are_refused(short: int, long: int) -> None:
    scaling = LongRopeScaling(short_factors=(1.0,) * short, long_factors=(1.0,) * long, original_max_length=6)
    with pytest.raises(ConfigError, match="each of the 4 pairs of a head; found 3"):
        Rotary(8, BASE, scaling)


@pytest.mark.parametrize("which", ["short_factors", "long_factors"])
@pytest.mark.parametrize("wrong", [0.0, -1.0])
def test_longrope_refuses_nonpositive_factors(which: str, wrong: float) -> None:
    values = {"short_factors": (1.0, 1.0), "long_factors": (1.0, 1.0), "original_max_length": 6, which: (1.0, wrong)}
    with pytest.raises(ConfigError, match=which):
        LongRopeScaling(**values)


@pytest.mark.parametrize(("low", "high"), [(4.0, 4.0), (4.0, 1.0)])
def test_llama3_scaling_refuses_an_empty_band(low: float, high: float) -> None:
    with pytest.raises(ConfigError, match="high"):
        Llama3Scaling(factor=8.0, original_max_length=64, low_freq_factor=low, high_freq_factor=high)


def test_dynamic_scaling_of_a_single_pair_is_refused() -> None:
    # Its exponent is d / (d − 2).
    with pytest.raises(UserError, match="head_dim"):
        Rotary(2, BASE, DynamicScaling(factor=4.0, original_max_length=6))
