"""The norm of the gradient in every layer: how much of the loss reaches the first layers.

With residual connections every layer receives the gradient of the last one through the sum; without them it is
multiplied by the Jacobian of each layer on the way (He et al. 2016), and with depth it vanishes or explodes.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.model.stack import Stack
from regard.progress import phase
from regard.run import load_model
from regard.task.recipe_io import read_recipe
from regard.train.distributed.process_group import SINGLE_PROCESS

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


def run_gradient_norms(folder: Path, device: torch.device | str = "cpu") -> dict[str, Norms]:
    """The gradient norms of a run, on a batch of its validation data: "untrained" with its initial weights and, if it
    has finished, "trained" with its final ones."""
    recipe = read_recipe(folder)
    with phase("Measuring gradients"):
        task = recipe.build_task(folder, lambda message: None, SINGLE_PROCESS)
        batch: Any = next(iter(task.validation_batches()), None) or next(iter(task.batches.epochs()))
        model, batch = task.model.to(device), batch.to(device)

        def loss() -> Tensor:
            return task.nll(model, batch).mean

        norms = {"untrained": gradient_norms(model, loss)}
        if (folder / "run.json").is_file():
            model.load_state_dict(load_model(folder).model.state_dict())
            norms["trained"] = gradient_norms(model, loss)
        return norms


def _norm(grads: list[Tensor | None]) -> float:
    squares = [grad.double().square().sum() for grad in grads if grad is not None]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0
