"""How often a batch goes through the model in a step: once, or twice with other dropout (R-Drop, Liang et al. 2021).

The second pass lies behind the first in one batch of twice the rows, so that it costs one call and not two.
"""

from torch import Tensor

from regard.fast.unscored import Unscored
from regard.train.loss import Loss, LossConfig, consistent_word_loss, word_loss
from regard.train.settings import TrainConfig


def passes(config: TrainConfig) -> int:
    """How often each row goes through the model at once."""
    return 2 if config.loss.consistency else 1


def step_loss(scores: Tensor | Unscored, wanted: Tensor, lengths: Tensor | None, settings: LossConfig) -> Loss:
    """What a step is taken on, by the recipe's settings. The scores are not needed any more.

    scores: # (passes · rows, length, classes); wanted: # (rows, length); lengths: # (rows,)
    """
    if settings.consistency:
        weights = settings.smoothing, settings.consistency
        return consistent_word_loss(scores, wanted, lengths, *weights, overwrite=True)
    return word_loss(scores, wanted, lengths, settings.smoothing, overwrite=True)
