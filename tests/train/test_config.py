"""The [train] table: defaults are filled in, and invalid values are refused by the name of their key."""

from typing import Any

import pytest

from regard import UserError
from regard.config import ConfigError
from regard.train.config import TrainConfig

LEAST: dict[str, Any] = {"steps": 100, "schedule": {"lr": 0.001}}


def refusal(**changes: Any) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        TrainConfig(**(LEAST | changes))
    return error.value


@pytest.mark.parametrize("key", ["steps", "schedule"])
def test_required_keys(key: str) -> None:
    with pytest.raises(UserError, match=f"^{key}: this key is required"):
        TrainConfig(**{name: value for name, value in LEAST.items() if name != key})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", -1),
        ("seed", 1 << 63),
        ("steps", 0),
        ("steps", "many"),
        ("batch_tokens", 0),
        ("length_buckets", 0),
        ("grad_accumulation", 0),
        ("max_grad_norm", -0.1),
        ("max_grad_norm", float("nan")),
        ("precision", "fp16"),
        ("save_dtype", "bfloat16"),
        ("validate_every", 0),
        ("save_every", 0),
        ("log_every", 0),
        ("keep_checkpoints", 0),
        ("final_weights", "first"),
        ("average_last", 0),
        ("ema_decay", 1.0),
        ("ema_decay", -0.1),
        ("monitor", "bleu"),
        ("patience", -1),
        ("deterministic", "yes"),
    ],
)
def test_value_out_of_range_names_its_key(key: str, value: Any) -> None:
    error = refusal(**{key: value})
    assert (error.key, f"found {value!r}" in error.problem) == (key, True)


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [("loss", "label_smoothing", 1.0), ("loss", "r_drop", -1.0), ("optimizer", "kind", "sgd"), ("schedule", "lr", 0)],
)
def test_value_out_of_range_names_its_nested_key(group: str, key: str, value: Any) -> None:
    assert refusal(**{group: {"lr": 0.001} | {key: value} if group == "schedule" else {key: value}}).key == (
        f"{group}.{key}"
    )


def test_final_weights_ema_needs_ema_decay() -> None:
    assert refusal(final_weights="ema").key == "ema_decay"


def test_average_needs_enough_kept_checkpoints() -> None:
    error = refusal(final_weights="average", average_last=4, keep_checkpoints=3)
    assert str(error) == "keep_checkpoints: found 3; averaging the last 4 checkpoints needs as many."


def test_fewer_checkpoints_may_be_kept_without_an_average() -> None:
    assert TrainConfig(**LEAST, final_weights="last", average_last=4, keep_checkpoints=3).keep_checkpoints == 3


def test_linear_schedule_shorter_than_the_run_is_refused() -> None:
    schedule = {"kind": "linear", "lr": 0.1, "warmup_steps": 5, "steps": 60}
    error = refusal(schedule=schedule)
    assert str(error) == "schedule.steps: the learning rate is zero after 60 of 100 steps; leave this key out."


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_schedule_ends_with_the_run(kind: str) -> None:
    config = TrainConfig(steps=100, schedule={"kind": kind, "lr": 0.1, "warmup_steps": 5})
    assert config.schedule.steps == 100


def test_schedule_may_be_longer_than_the_run() -> None:
    config = TrainConfig(steps=100, schedule={"kind": "linear", "lr": 0.1, "warmup_steps": 5, "steps": 200})
    assert config.schedule.steps == 200


def test_cosine_schedule_may_end_before_the_run() -> None:
    schedule = {"kind": "cosine", "lr": 0.1, "warmup_steps": 5, "steps": 60, "min_lr_ratio": 0.1}
    assert TrainConfig(steps=100, schedule=schedule).schedule.steps == 60


def test_warmup_as_long_as_the_run_is_refused() -> None:
    assert refusal(schedule={"kind": "cosine", "lr": 0.1, "warmup_steps": 100}).key == "schedule.warmup_steps"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patiance": 3}, "patiance: unknown key; did you mean 'patience'?"),
        (
            {"schedule": {"lr": 0.1, "warmup_step": 3}},
            "schedule.warmup_step: unknown key; did you mean 'warmup_steps'?",
        ),
        ({"loss": {"label_smothing": 0.1}}, "loss.label_smothing: unknown key; did you mean 'label_smoothing'?"),
    ],
)
def test_unknown_key_suggests_the_nearest(changes: dict[str, Any], message: str) -> None:
    assert str(refusal(**changes)) == message


def test_config_round_trips() -> None:
    config = TrainConfig(
        **LEAST, grad_accumulation=2, final_weights="ema", ema_decay=0.99, optimizer={"betas": [0.9, 0.95]}
    )
    assert TrainConfig.read(config.plain()) == config
