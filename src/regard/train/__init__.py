"""The one training loop and its parts. So far: losses, optimisers, schedules and checkpoints."""

from regard.train.loss import Loss, word_loss
from regard.train.optimiser import Optimiser, OptimiserConfig
from regard.train.schedule import ScheduleConfig

__all__ = ["Loss", "Optimiser", "OptimiserConfig", "ScheduleConfig", "word_loss"]
