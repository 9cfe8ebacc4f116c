"""The compared positional encodings are those of the schemes themselves."""

import threading

import pytest
import torch

from regard import UserError
from regard.attention import Binary, Normalized, Rotary, Sinusoidal, apply_rotary
from regard.look.positions.requirements import REQUIREMENTS, SCHEMES, encode_positions, requirements
from regard.look.positions.schemes import positions


def scheme(name: str, length: int = 12, width: int = 8):
    return next(each for each in positions(length, width).schemes if each.name == name)


def test_every_scheme_is_listed() -> None:
    result = positions(12, 8)
    assert (result.length, result.width, [one.name for one in result.schemes]) == (12, 8, list(SCHEMES))


@pytest.mark.parametrize(
    ("name", "module"), [("sinusoidal", Sinusoidal(8)), ("binary", Binary(8)), ("normalized", Normalized(8))]
)
def test_encodings_are_those_of_the_model(name: str, module) -> None:
    torch.testing.assert_close(torch.tensor(scheme(name).encoding), module.encode(torch.arange(12)))


@pytest.mark.parametrize("name", ["rotary", "none"])
def test_scheme_that_adds_nothing_has_no_encoding(name: str) -> None:
    assert scheme(name).encoding == []


def test_similarity_is_the_dot_product() -> None:
    encoding = Sinusoidal(8).encode(torch.arange(12))
    torch.testing.assert_close(torch.tensor(scheme("sinusoidal").similarity), encoding @ encoding.T / 8)


def test_rotary_similarity_is_the_score_of_ones() -> None:
    ones, rotary = torch.ones(1, 1, 12, 8), Rotary(8)
    rotated = apply_rotary(ones, rotary.rotation(torch.arange(12), 12))[0, 0]
    torch.testing.assert_close(torch.tensor(scheme("rotary").similarity), rotated @ rotated.T / 8)


@pytest.mark.parametrize("name", SCHEMES)
def test_requirements_are_those_of_the_library(name: str) -> None:
    result = scheme(name).requirements
    assert tuple(one.name for one in result) == REQUIREMENTS
    assert {one.name: one.holds for one in result} == requirements(SCHEMES[name])
    assert all(one.evidence.endswith(".") for one in result)


def test_learned_encodings_do_not_depend_on_the_global_generator() -> None:
    """The server responds in threads, which share PyTorch's global generator."""
    single, done = encode_positions(SCHEMES["learned"], 64), threading.Event()

    def draw_numbers() -> None:
        while not done.is_set():
            torch.rand(100)

    other = threading.Thread(target=draw_numbers)
    other.start()
    try:
        concurrent = [encode_positions(SCHEMES["learned"], 64) for _ in range(2000)]
    finally:
        done.set()
        other.join()
    assert all(torch.equal(encoding, single) for encoding in concurrent)


@pytest.mark.parametrize(("length", "width"), [(1, 8), (513, 8), (8, 3), (8, 0), (8, 514)])
def test_invalid_size_is_refused(length: int, width: int) -> None:
    with pytest.raises(UserError, match="found"):
        positions(length, width)


@pytest.mark.parametrize("length", [2, 7, 512])
def test_every_valid_length_works(length: int) -> None:
    for one in positions(length, 4).schemes:
        assert len(one.similarity) == len(one.similarity[0]) == length
        assert len(one.encoding) in (0, length)


def test_global_generator_is_not_used() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    positions(8, 4)
    assert torch.equal(torch.rand(2), expected)
