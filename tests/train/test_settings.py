"""Settings of a run: filled in where they may be left out, refused by name where they make no sense."""

from typing import Any

import pytest

from regard import UserError
from regard.config import ConfigError
from regard.train.settings import TrainConfig

LEAST: dict[str, Any] = {"steps": 100, "schedule": {"rate": 0.001}}


def refusal(**changes: Any) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        TrainConfig(**(LEAST | changes))
    return error.value


@pytest.mark.parametrize("key", ["steps", "schedule"])
def test_what_cannot_be_guessed_is_required(key: str) -> None:
    with pytest.raises(UserError, match=f"^{key}: this key is required"):
        TrainConfig(**{name: value for name, value in LEAST.items() if name != key})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", -1),
        ("seed", 1 << 63),
        ("steps", 0),
        ("steps", "many"),
        ("tokens", 0),
        ("shapes", 0),
        ("accumulate", 0),
        ("clip", -0.1),
        ("clip", float("nan")),
        ("precision", "fp16"),
        ("store", "bf16"),
        ("validate_every", 0),
        ("save_every", 0),
        ("log_every", 0),
        ("keep", 0),
        ("final", "first"),
        ("average", 0),
        ("moving", 1.0),
        ("moving", -0.1),
        ("watch", "bleu"),
        ("patience", -1),
        ("deterministic", "yes"),
    ],
)
def test_a_value_out_of_range_is_named(key: str, value: Any) -> None:
    error = refusal(**{key: value})
    assert (error.key, f"found {value!r}" in error.problem) == (key, True)


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [("loss", "smoothing", 1.0), ("loss", "consistency", -1.0), ("optimiser", "kind", "sgd"), ("schedule", "rate", 0)],
)
def test_a_value_out_of_range_is_named_with_its_group(group: str, key: str, value: Any) -> None:
    assert refusal(**{group: {"rate": 0.001} | {key: value} if group == "schedule" else {key: value}}).key == (
        f"{group}.{key}"
    )


def test_a_moving_average_to_end_with_must_be_kept() -> None:
    assert refusal(final="moving").key == "moving"


def test_a_mean_of_more_checkpoints_than_are_kept_is_refused() -> None:
    error = refusal(final="mean", average=4, keep=3)
    assert str(error) == "keep: found 3; the mean of the last 4 checkpoints needs as many kept."


def test_fewer_may_be_kept_where_no_mean_is_wanted() -> None:
    assert TrainConfig(**LEAST, final="last", average=4, keep=3).keep == 3


def test_a_line_that_is_at_zero_before_the_run_ends_is_refused() -> None:
    schedule = {"kind": "linear", "rate": 0.1, "warmup": 5, "steps": 60}
    error = refusal(schedule=schedule)
    assert str(error) == "schedule.steps: the rate is zero after 60 of 100 steps; leave this key out."


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_a_schedule_ends_with_the_run(kind: str) -> None:
    config = TrainConfig(steps=100, schedule={"kind": kind, "rate": 0.1, "warmup": 5})
    assert config.schedule.steps == 100


def test_a_schedule_may_be_longer_than_the_run() -> None:
    config = TrainConfig(steps=100, schedule={"kind": "linear", "rate": 0.1, "warmup": 5, "steps": 200})
    assert config.schedule.steps == 200


def test_a_cosine_may_reach_its_floor_before_the_run_ends() -> None:
    schedule = {"kind": "cosine", "rate": 0.1, "warmup": 5, "steps": 60, "floor": 0.1}
    assert TrainConfig(steps=100, schedule=schedule).schedule.steps == 60


def test_a_warm_up_as_long_as_the_run_is_named_with_its_group() -> None:
    assert refusal(schedule={"kind": "cosine", "rate": 0.1, "warmup": 100}).key == "schedule.warmup"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patiance": 3}, "patiance: unknown key; did you mean 'patience'?"),
        ({"schedule": {"rate": 0.1, "warm_up": 3}}, "schedule.warm_up: unknown key; did you mean 'warmup'?"),
        ({"loss": {"smothing": 0.1}}, "loss.smothing: unknown key; did you mean 'smoothing'?"),
    ],
)
def test_an_unknown_key_suggests_the_nearest(changes: dict[str, Any], message: str) -> None:
    assert str(refusal(**changes)) == message


def test_what_is_written_down_is_read_back() -> None:
    config = TrainConfig(**LEAST, accumulate=2, final="moving", moving=0.99, optimiser={"betas": [0.9, 0.95]})
    assert TrainConfig.read(config.plain()) == config
