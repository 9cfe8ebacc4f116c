"""What is measured on a finished run: the numbers of the report, as plain data.

All losses are nats per token of the recipe's own tokenizer, without label smoothing and without dropout, with the
weights that the run ends with: perplexity is their exponential.
"""

from pathlib import Path
from typing import Any

import torch

from regard.lab.ablate.gradient_norms import Norms, deeper_model, task_gradient_norms
from regard.lab.ablate.long_sentences import short_and_long_scores
from regard.lab.ablate.variations import BASE, VARIATIONS
from regard.lab.compare.measure import read_curve
from regard.run import load_model, read_metadata
from regard.task.recipe_io import read_recipe
from regard.train.distributed.process_group import SINGLE_PROCESS
from regard.train.loss import Loss
from regard.train.task import Task
from regard.train.validation import validation_loss

DEEP_LAYERS = 24
"""The layers of an untrained stack that is deep enough for gradients to vanish."""
_GRADIENT_FAMILIES = ("norm", "residual")


def measure(name: str, folder: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The measurements of a finished run of the variation `name`."""
    recipe, origin = read_recipe(folder), read_metadata(folder)["origin"]
    task = recipe.build_task(folder, lambda message: None, SINGLE_PROCESS)
    family = next((one.family for one in VARIATIONS if one.name == name), name)
    trained: Any = load_model(folder).model.to(device).float().eval()
    gradients = _gradients(task, trained, recipe.train.seed, device) if family in (BASE, *_GRADIENT_FAMILIES) else None
    found = {key: origin[key] for key in ("steps", "tokens", "seconds", "device", "parameters", "scores")}
    curve = [{key: row[key] for key in ("step", "nll") if key in row} for row in read_curve(folder)]
    found |= {"curve": curve, "gradients": gradients}
    found |= {"valid_nll": None, "train_nll": None, "valid_tokens": sum(one.count for one in task.validation_batches())}
    if found["valid_tokens"]:
        valid = validation_loss(task, trained, lambda batch: batch.to(device), SINGLE_PROCESS)
        found |= {"valid_nll": valid["nll"], "train_nll": _training_nll(task, trained, found["valid_tokens"], device)}
    return found | {"lengths": short_and_long_scores(folder, device) if family == "lengths" else None}


def _gradients(task: Task[Any], trained: Any, seed: int, device: torch.device | str) -> dict[str, Norms]:
    """The gradient norms of a model before and after training, and of an untrained one with many layers."""
    untrained: Any = task.model
    return {
        "untrained": task_gradient_norms(task, untrained, device),
        "trained": task_gradient_norms(task, trained, device),
        "deep": task_gradient_norms(task, deeper_model(untrained, DEEP_LAYERS, seed), device),
    }


@torch.no_grad()
def _training_nll(task: Task[Any], model: Any, tokens: int, device: torch.device | str) -> float:
    """The same loss on training data, on about as many tokens as the validation set has."""
    total: Loss | None = None
    for batch in task.batches.epochs():
        loss = task.nll(model, batch.to(device))
        total = loss if total is None else total + loss
        if float(total.count) >= tokens:
            break
    assert total is not None
    return float(total.nll / total.count)
