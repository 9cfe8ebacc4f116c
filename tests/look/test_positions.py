"""The numbers behind the view of positions are those of the schemes themselves."""

import threading

import pytest
import torch

from regard import UserError
from regard.attention import Binary, Normalised, Rotary, Sinusoidal, rotate
from regard.look.positions import positions
from regard.look.requirements import REQUIREMENTS, SCHEMES, codes, requirements


def scheme(name: str, length: int = 12, width: int = 8):
    return next(one for one in positions(length, width).schemes if one.name == name)


def test_every_scheme_is_there() -> None:
    found = positions(12, 8)
    assert (found.length, found.width, [one.name for one in found.schemes]) == (12, 8, list(SCHEMES))


@pytest.mark.parametrize(
    ("name", "code"), [("sinusoidal", Sinusoidal(8)), ("binary", Binary(8)), ("normalised", Normalised(8))]
)
def test_codes_are_the_models_own(name: str, code) -> None:
    torch.testing.assert_close(torch.tensor(scheme(name).encoding), code.encode(torch.arange(12)))


@pytest.mark.parametrize("name", ["rotary", "none"])
def test_a_scheme_that_adds_nothing_has_no_code(name: str) -> None:
    assert scheme(name).encoding == []


def test_likeness_of_codes_is_their_product() -> None:
    code = Sinusoidal(8).encode(torch.arange(12))
    torch.testing.assert_close(torch.tensor(scheme("sinusoidal").similarity), code @ code.T / 8)


def test_likeness_of_turned_positions_is_the_score_of_ones() -> None:
    ones, rotary = torch.ones(1, 1, 12, 8), Rotary(8)
    turned = rotate(ones, rotary.rotation(torch.arange(12), 12))[0, 0]
    torch.testing.assert_close(torch.tensor(scheme("rotary").similarity), turned @ turned.T / 8)


@pytest.mark.parametrize("name", SCHEMES)
def test_requirements_are_those_of_the_table(name: str) -> None:
    found = scheme(name).requirements
    assert tuple(one.name for one in found) == REQUIREMENTS
    assert {one.name: one.holds for one in found} == requirements(SCHEMES[name])
    assert all(one.found.endswith(".") for one in found)


def test_learned_codes_are_the_same_while_another_thread_draws() -> None:
    """A server answers in threads, and PyTorch's dice are shared between them."""
    alone, done = codes(SCHEMES["learned"], 64), threading.Event()

    def draw() -> None:
        while not done.is_set():
            torch.rand(100)

    other = threading.Thread(target=draw)
    other.start()
    try:
        beside = [codes(SCHEMES["learned"], 64) for _ in range(2000)]
    finally:
        done.set()
        other.join()
    assert all(torch.equal(one, alone) for one in beside)


@pytest.mark.parametrize(("length", "width"), [(1, 8), (513, 8), (8, 3), (8, 0), (8, 514)])
def test_what_cannot_be_shown_is_refused(length: int, width: int) -> None:
    with pytest.raises(UserError, match="found"):
        positions(length, width)


@pytest.mark.parametrize("length", [2, 7, 512])
def test_any_length_can_be_asked_for(length: int) -> None:
    for one in positions(length, 4).schemes:
        assert len(one.similarity) == len(one.similarity[0]) == length
        assert len(one.encoding) in (0, length)


def test_asking_draws_no_random_number() -> None:
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    positions(8, 4)
    assert torch.equal(torch.rand(2), wanted)
