"""The loss on the validation set, which is computed for every task."""

from collections.abc import Callable
from typing import Any

import torch

from regard.progress import phase
from regard.train.distributed.process_group import ProcessGroup
from regard.train.loss import Loss
from regard.train.task import Forward, Task


@torch.no_grad()
def validation_loss(
    task: Task[Any], forward: Forward, to_device: Callable[[Any], Any], process_group: ProcessGroup
) -> dict[str, float]:
    """The means of the loss, with the label smoothing of training, and of the negative log-likelihood, which is without
    it: perplexity is exp(nll). Empty if there is no validation set.

    Each process computes its shard of the batches.
    """
    total: Loss | None = None
    with phase("Computing the loss", "batches") as computing:
        for number, batch in enumerate(computing.count(task.validation_batches())):
            if number % process_group.size == process_group.rank:
                loss = task.nll(forward, to_device(batch))
                total = loss if total is None else total + loss
        sums = [0.0] * 4 if total is None else [1.0, float(total.total), float(total.nll), float(total.count)]
    found, loss_sum, nll, count = process_group.all_reduce(sums)
    return {"loss": loss_sum / max(count, 1.0), "nll": nll / max(count, 1.0)} if found else {}
