"""Early stopping, and which weights a run ends with: the last, the best, the average of checkpoints, the EMA."""

import math
from pathlib import Path

import pytest
import torch

from regard.train.policies import FinalWeights
from tests.train.toy import (
    Toy,
    assert_close,
    assert_same,
    log_lines,
    make_trainer,
    record_steps,
    settings,
    trained,
    validation_nll,
    weights_of,
)


@pytest.mark.parametrize(
    ("losses", "patience", "best_step", "steps"),
    [
        ([3.0, 1.0, 2.0, 1.5, 1.0, 0.1], 3, 2, 5),  # as good as the best is not better
        ([3.0, 4.0, 2.0, 4.0, 1.0, 4.0, 0.5, 4.0], 2, 7, 8),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 0, 1, 8),
        ([math.nan, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 0, 2, 8),
    ],
    ids=["out of patience", "improvement restores patience", "no patience", "NaN is never best"],
)
def test_early_stopping(tmp_path: Path, losses: list[float], patience: int, best_step: int, steps: int) -> None:
    task = Toy(losses=dict(enumerate(losses, start=1)))
    trainer = make_trainer(task, settings(validate_every=1, patience=patience), tmp_path)
    result = trainer.run()
    assert (trainer.best.step, result.steps, result.stopped_early) == (best_step, steps, steps < 8)


@pytest.mark.parametrize(("monitor", "best_step"), [("loss", 3), ("score", 6)])
def test_best_is_by_what_is_monitored(tmp_path: Path, monitor: str, best_step: int) -> None:
    losses = {step: abs(step - 3.0) for step in range(1, 9)}
    scores = {step: -abs(step - 6.0) for step in range(1, 9)}
    trainer = make_trainer(Toy(losses=losses, scores=scores), settings(validate_every=1, monitor=monitor), tmp_path)
    trainer.run()
    assert trainer.best.step == best_step


def test_task_without_a_validation_loss_is_monitored_by_its_score(tmp_path: Path) -> None:
    trainer = make_trainer(Toy(validation=False, scores={4: 2.0, 8: 1.0}), settings(), tmp_path)
    trainer.run()
    assert trainer.best.step == 4


def test_best_weights_are_those_of_the_best_step(tmp_path: Path) -> None:
    losses = {step: abs(step - 5.0) for step in range(1, 9)}
    trainer = make_trainer(Toy(losses=losses), settings(validate_every=1, final_weights="best"), tmp_path)
    steps = record_steps(trainer)
    assert trainer.run().final_weights == FinalWeights("best", 5)
    assert_same(weights_of(trainer.model), steps[4])


def test_best_without_a_validation_set_is_the_last(tmp_path: Path) -> None:
    trainer = make_trainer(Toy(validation=False), settings(final_weights="best"), tmp_path)
    steps = record_steps(trainer)
    assert trainer.run().final_weights == FinalWeights("last", 8)
    assert_same(weights_of(trainer.model), steps[-1])


def test_average_is_that_of_the_last_checkpoints(tmp_path: Path) -> None:
    config = settings(steps=12, save_every=3, final_weights="average", average_last=3, keep_checkpoints=4)
    trainer = make_trainer(Toy(), config, tmp_path)
    steps = record_steps(trainer)
    assert trainer.run().final_weights == FinalWeights("average", 12, checkpoints=3)
    assert_close(
        weights_of(trainer.model), {name: (steps[5][name] + steps[8][name] + steps[11][name]) / 3 for name in steps[0]}
    )


@pytest.mark.parametrize(("save_every", "averaged"), [(2, [1, 2]), (8, [2])])
def test_average_after_early_stopping_includes_the_last_step(
    tmp_path: Path, save_every: int, averaged: list[int]
) -> None:
    losses = {step: float(step) for step in range(1, 9)}  # patience runs out after step 3
    config = settings(validate_every=1, save_every=save_every, patience=2, final_weights="average", average_last=3)
    trainer = make_trainer(Toy(losses=losses), config, tmp_path)
    steps = record_steps(trainer)
    assert trainer.run().final_weights == FinalWeights("average", 3, checkpoints=len(averaged))
    expected = {name: sum(steps[index][name] for index in averaged) / len(averaged) for name in steps[0]}
    assert_close(weights_of(trainer.model), expected)  # type: ignore[arg-type]


def test_ema_follows_its_formula(tmp_path: Path) -> None:
    trainer = make_trainer(Toy(), settings(final_weights="ema", ema_decay=0.3), tmp_path)
    expected = weights_of(trainer.model)
    steps = record_steps(trainer)
    assert trainer.run().final_weights == FinalWeights("ema", 8, ema_decay=0.3)
    for step, now in enumerate(steps, start=1):
        decay = min(0.3, (1 + step) / (10 + step))  # below 0.3 in the first two steps only
        expected = {name: decay * expected[name] + (1 - decay) * now[name] for name in expected}
    assert_close(weights_of(trainer.model), expected)


def test_ema_is_validated_if_the_run_ends_with_it(tmp_path: Path) -> None:
    task = Toy()
    trained(task, settings(final_weights="ema", ema_decay=0.9), tmp_path)
    assert log_lines(tmp_path)[-1]["valid/loss"] == pytest.approx(validation_nll(task), rel=1e-12)


def test_ema_does_not_change_the_steps(tmp_path: Path) -> None:
    last = []
    for number, changes in enumerate([{}, {"final_weights": "ema", "ema_decay": 0.9}]):
        trainer = make_trainer(Toy(dropout=0.2), settings(**changes), tmp_path / str(number))
        torch.manual_seed(9)
        steps = record_steps(trainer)
        trainer.run()
        last.append(steps[-1])
    assert_same(*last)
