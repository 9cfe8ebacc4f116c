"""The one training loop and its parts: losses, optimisers, schedules, checkpoints, what is written down on the way."""

from regard.train.loop import Loop, Outcome
from regard.train.loss import Loss, word_loss
from regard.train.optimiser import Optimiser, OptimiserConfig
from regard.train.schedule import ScheduleConfig
from regard.train.settings import TrainConfig

__all__ = [
    "Loop",
    "Loss",
    "Optimiser",
    "OptimiserConfig",
    "Outcome",
    "ScheduleConfig",
    "TrainConfig",
    "word_loss",
]
