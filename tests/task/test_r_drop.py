"""R-Drop in every task: two forward passes over the same rows, and a loss on how far their predictions differ."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard import UserError
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from regard.train.distributed.process_group import SINGLE_PROCESS
from tests.task import small_images
from tests.task.classification import test_task as classification
from tests.task.language_modeling import test_task as language_modeling
from tests.task.masked_lm import test_task as masked_lm
from tests.task.small import RecordingCallback, pairs, quick_runs, write_recipe_file, write_table

SMOOTHING, ALPHA = 0.1, 3.0
DROPOUT = {
    "language-modeling": ["model.decoder.dropout=0.3"],
    "masked-lm": ["model.encoder.dropout=0.3"],
    "text-classification": ["model.encoder.dropout=0.3"],
    "token-classification": ["model.encoder.dropout=0.3"],
    "image-classification": ["model.encoder.dropout=0.3", "augment.crop=1", "augment.mixup=0.4"],
    "translation": ["model.encoder.dropout=0.3"],
}
EVERY_TASK = pytest.mark.parametrize("task", DROPOUT)


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def recipe_file(folder: Path, task: str) -> Path:
    match task:
        case "language-modeling":
            return language_modeling.recipe_file(folder, language_modeling.TEXT)
        case "masked-lm":
            return masked_lm.recipe_file(folder)
        case "image-classification":
            return small_images.write_recipe(folder)
        case "translation":
            table = write_table(folder / "pairs.tsv", pairs(60))
            return write_recipe_file(folder / "small.toml", {"train": [{"path": str(table)}]})
        case _:
            return classification.recipe_file(folder, task)


class RecordingModel(nn.Module):
    """Records the last inputs and logits of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.inputs: list[Tensor] = []
        self.logits = torch.empty(0)

    def forward(self, *inputs: Tensor, **more: Tensor | None) -> Tensor:
        self.inputs = [value for value in (*inputs, *more.values()) if value is not None]
        logits: Tensor = self.model(*inputs, **more)
        self.logits = logits.detach().clone().double()
        return logits


def build_task(folder: Path, task: str, *changes: str) -> Any:
    run = folder / "run"
    run.mkdir()
    return read_recipe(recipe_file(folder, task), changes).build_task(run, lambda message: None, SINGLE_PROCESS)


@EVERY_TASK
def test_r_drop_loss_equals_its_definition(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [f"train.loss.r_drop={ALPHA}", f"train.loss.label_smoothing={SMOOTHING}"]
    built = build_task(tmp_path, task, *DROPOUT[task], *changes)
    batch = next(iter(built.batches.epochs()))
    forward = RecordingModel(built.model.train())
    augmented: list[Any] = []
    if task == "image-classification":  # the labels of mixed images are known only to the augmentation
        from regard.data.images.augment import AugmentConfig

        apply = AugmentConfig.apply

        def record(*args: Any) -> Any:
            augmented.append(apply(*args))
            return augmented[-1]

        monkeypatch.setattr(AugmentConfig, "apply", record)
    loss = built.loss(forward, batch)
    for value in forward.inputs:
        first, second = value.chunk(2)
        assert torch.equal(first, second)
    log_p, log_q = forward.logits.log_softmax(dim=-1).chunk(2)
    assert not torch.equal(log_p, log_q)  # different dropout
    target = target_distribution(batch, augmented, log_p)
    scored = target.sum(dim=-1) > 0.5
    smooth = (1 - SMOOTHING) * target + SMOOTHING / target.shape[-1]
    cross_entropies = [-(smooth * logprobs).sum(dim=-1)[scored].sum() for logprobs in (log_p, log_q)]
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1)[scored].sum()
    expected = sum(cross_entropies) / 2 + ALPHA / 4 * divergence
    assert float(loss.total.detach()) == pytest.approx(float(expected), rel=1e-5)
    assert int(loss.count) == int(scored.sum()) == batch.count


def target_distribution(batch: Any, augmented: list[Any], like: Tensor) -> Tensor:
    """The target of each position as a distribution; zeros where there is none."""
    distribution = torch.zeros_like(like)
    if augmented:
        (images,) = augmented
        rows = (images.labels >= 0).nonzero()[:, 0]
        weight = images.weight.double()[rows]
        distribution[rows, images.labels[rows]] += weight
        distribution[rows, images.mixed_labels[rows]] += 1 - weight
        return distribution
    if hasattr(batch, "target"):
        ids, lengths = batch.target, batch.target_lengths
    else:
        ids, lengths = batch.targets, batch.lengths
    is_target = ids >= 0
    if ids.dim() == 2 and not hasattr(batch, "scored_positions"):
        is_target &= torch.arange(ids.shape[1]) < lengths[:, None]
    return distribution.scatter_(-1, ids.clamp(min=0)[..., None], is_target.double()[..., None])


@EVERY_TASK
def test_r_drop_changes_training(task: str, tmp_path: Path) -> None:
    path, losses = recipe_file(tmp_path, task), []
    for number, alpha in enumerate((0.0, ALPHA)):
        changes = [*DROPOUT[task], f"train.loss.r_drop={alpha}", "train.steps=4"]
        callback = RecordingCallback()
        train(read_recipe(path, changes), tmp_path / f"run-{number}", callback=callback)
        losses.append(callback.losses)
    assert all(losses[0][step] != losses[1][step] for step in losses[0])


@EVERY_TASK
def test_r_drop_needs_dropout(task: str, tmp_path: Path) -> None:
    path, changes = recipe_file(tmp_path, task), ["train.loss.r_drop=1.0"]
    parts = ["encoder"] if task not in ("language-modeling", "translation") else ["decoder"]
    parts += ["encoder"] * (task == "translation")
    changes += [f"model.{part}.dropout=0.0" for part in parts]
    if task in ("text-classification", "token-classification"):
        changes.append("model.head.dropout=0.0")
    changes.append("model.dropout=0.0" if task == "image-classification" else "model.embedding.dropout=0.0")
    with pytest.raises(UserError, match=r"train\.loss\.r_drop: .* this model has none"):
        read_recipe(path, changes)
