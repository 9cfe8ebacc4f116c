"""The norm of the gradient in every layer: how much of the loss reaches the first layers.

With residual connections every layer receives the gradient of the last one through the sum; without them it is
multiplied by the Jacobian of each layer on the way (He et al. 2016), and with depth it vanishes or explodes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.model import Model, read_config
from regard.model.stack import Stack
from regard.train.task import Task

Norms = dict[str, list[float]]
"""By the name of the stack: the norm of each layer's gradient, from the first layer to the last."""


def gradient_norms(model: nn.Module, loss: Callable[[], Tensor]) -> Norms:
    """The norm of the loss's gradient with respect to the parameters of each layer. Dropout is off."""
    stacks = {name: child for name, child in model.named_children() if isinstance(child, Stack)}
    layers = {name: [list(block.parameters()) for block in stack.blocks()] for name, stack in stacks.items()}
    flat = [parameter for each in layers.values() for layer in each for parameter in layer]
    was_training = model.training
    model.eval()
    try:
        grads = dict(zip(flat, torch.autograd.grad(loss(), flat, allow_unused=True), strict=True))
    finally:
        model.train(was_training)
    return {name: [_norm([grads[one] for one in layer]) for layer in each] for name, each in layers.items()}


def task_gradient_norms(task: Task[Any], model: nn.Module, device: torch.device | str = "cpu") -> Norms:
    """The gradient norms of a model on the first validation batch of a task, or its first training batch."""
    batch: Any = next(iter(task.validation_batches()), None) or next(iter(task.batches.epochs()))
    model, batch = model.to(device), batch.to(device)
    return gradient_norms(model, lambda: task.nll(model, batch).mean)


def deeper_model(model: Model, layers: int, seed: int) -> Model:
    """An untrained model with so many layers in every stack, and otherwise the same settings."""
    values = model.config.plain()
    for name, child in model.named_children():
        if isinstance(child, Stack):
            values[name] = values[name] | {"layers": layers}
    torch.manual_seed(seed)
    return read_config(values).build()


def _norm(grads: list[Tensor | None]) -> float:
    squares = [grad.double().square().sum() for grad in grads if grad is not None]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0
