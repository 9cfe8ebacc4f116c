"""Training: the trainer and its parts (losses, optimizers, schedules, checkpoints, metrics, distribution)."""

import sys
from types import ModuleType
from typing import Any

from regard.train.config import TrainConfig
from regard.train.loss import Loss, cross_entropy
from regard.train.optimizer import Optimizer, OptimizerConfig, ScheduleConfig
from regard.train.policies import TrainResult
from regard.train.trainer import Trainer

__all__ = [
    "Loss",
    "Optimizer",
    "OptimizerConfig",
    "ScheduleConfig",
    "TrainConfig",
    "TrainResult",
    "Trainer",
    "cross_entropy",
]


class _TrainPackage(ModuleType):
    """Makes `regard.train(recipe)` work although `regard.train` is also the name of this package."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        import regard

        return regard.train_recipe(*args, **settings)


sys.modules[__name__].__class__ = _TrainPackage
