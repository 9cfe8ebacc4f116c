"""The learning rate at every step."""

import pytest

from regard import UserError
from regard.train import ScheduleConfig


def test_the_papers_schedule_is_the_inverse_square_root_at_its_own_peak() -> None:
    width, warmup = 512, 4000
    schedule = ScheduleConfig(rate=(width * warmup) ** -0.5, warmup=warmup)
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)  # Vaswani et al. 2017, eq. 3
        assert schedule.at(step) == pytest.approx(paper, rel=1e-12)


@pytest.mark.parametrize("kind", ["inverse-square-root", "cosine", "linear", "constant"])
def test_every_schedule_rises_in_a_straight_line_to_its_peak(kind: str) -> None:
    schedule = ScheduleConfig(kind=kind, rate=0.5, warmup=10, steps=100)
    assert [schedule.at(step) for step in (1, 5, 10)] == pytest.approx([0.05, 0.25, 0.5])


@pytest.mark.parametrize("kind", ["inverse-square-root", "cosine", "linear", "constant"])
def test_no_schedule_rises_again_after_the_peak(kind: str) -> None:
    schedule = ScheduleConfig(kind=kind, rate=0.5, warmup=10, steps=100)
    rates = [schedule.at(step) for step in range(10, 130)]
    assert rates == sorted(rates, reverse=True)


def test_a_linear_schedule_still_moves_at_its_last_step_and_not_after() -> None:
    schedule = ScheduleConfig(kind="linear", rate=0.9, warmup=1, steps=9)
    assert schedule.at(9) == pytest.approx(0.1)
    assert schedule.at(10) == 0


def test_a_cosine_schedule_is_half_way_down_in_the_middle_and_ends_at_its_floor() -> None:
    schedule = ScheduleConfig(kind="cosine", rate=1.0, warmup=0, steps=100, floor=0.1)
    assert schedule.at(50) == pytest.approx(0.55)
    assert schedule.at(100) == pytest.approx(0.1)


@pytest.mark.parametrize("kind", ["inverse-square-root", "cosine", "linear", "constant"])
def test_without_warm_up_the_first_step_is_at_the_peak(kind: str) -> None:
    rate = ScheduleConfig(kind=kind, rate=0.5, warmup=0, steps=1000).at(1)
    assert rate == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "linear", "rate": 1.0}, "steps: a linear schedule ends with the run"),
        ({"kind": "cosine", "rate": 1.0, "warmup": 10, "steps": 10}, "warmup: found 10; it must end before"),
        ({"rate": 0.0}, "rate: found 0.0; expected greater than 0"),
        ({"rate": 1.0, "floor": 0.1}, "floor: only a cosine schedule has one"),
    ],
)
def test_settings_that_make_no_schedule_are_named(settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ScheduleConfig(**settings)
