"""Regularised dropout, whatever the task: two passes over the same rows, and how far they differ."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard import UserError
from regard.task import read_recipe, train
from regard.train.world import ALONE
from tests.task import small_pictures, test_filling, test_labelling, test_language
from tests.task.small import Heard, pairs, quick_runs, write_recipe_file, write_table

SMOOTHING, ALPHA = 0.1, 3.0
DROPS = {
    "language": ["model.decoder.dropout=0.3"],
    "filling": ["model.encoder.dropout=0.3"],
    "classification": ["model.encoder.dropout=0.3"],
    "tagging": ["model.encoder.dropout=0.3"],
    "pictures": ["model.encoder.dropout=0.3", "augment.crop=1", "augment.mixup=0.4"],
    "translation": ["model.encoder.dropout=0.3"],
}
EVERY_TASK = pytest.mark.parametrize("task", DROPS)


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def recipe_file(place: Path, task: str) -> Path:
    match task:
        case "language":
            return test_language.recipe_file(place, test_language.TEXT)
        case "filling":
            return test_filling.recipe_file(place)
        case "pictures":
            return small_pictures.write_recipe(place)
        case "translation":
            table = write_table(place / "pairs.tsv", pairs(60))
            return write_recipe_file(place / "small.toml", {"train": [{"path": str(table)}]})
        case _:
            return test_labelling.recipe_file(place, task)


class Noted(nn.Module):
    """Remembers what a model was given and what it made of it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.given: list[Tensor] = []
        self.made = torch.empty(0)

    def forward(self, *inputs: Tensor, **more: Tensor | None) -> Tensor:
        self.given = [one for one in (*inputs, *more.values()) if one is not None]
        made: Tensor = self.model(*inputs, **more)
        self.made = made.detach().clone().double()
        return made


def begun(place: Path, task: str, *changes: str) -> Any:
    folder = place / "run"
    folder.mkdir()
    return read_recipe(recipe_file(place, task), changes).begin(folder, lambda sentence: None, ALONE)


@EVERY_TASK
def test_the_loss_is_the_mean_of_two_passes_and_how_far_they_differ(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [f"train.loss.consistency={ALPHA}", f"train.loss.smoothing={SMOOTHING}"]
    job = begun(tmp_path, task, *DROPS[task], *changes)
    batch = next(iter(job.batches.epochs()))
    forward = Noted(job.model.train())
    seen: list[Any] = []
    if task == "pictures":  # which are mixed: what they show is known to who mixed them
        from regard.data.augment import AugmentConfig

        apply = AugmentConfig.apply

        def noting(*given: Any) -> Any:
            seen.append(apply(*given))
            return seen[-1]

        monkeypatch.setattr(AugmentConfig, "apply", noting)
    loss = job.loss(forward, batch)
    for given in forward.given:
        first, second = given.chunk(2)
        assert torch.equal(first, second)
    log_p, log_q = forward.made.log_softmax(dim=-1).chunk(2)
    assert not torch.equal(log_p, log_q)  # other dropout
    target = wanted(batch, seen, log_p)
    real = target.sum(dim=-1) > 0.5
    smooth = (1 - SMOOTHING) * target + SMOOTHING / target.shape[-1]
    crosses = [-(smooth * each).sum(dim=-1)[real].sum() for each in (log_p, log_q)]
    apart = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1)[real].sum()
    expected = sum(crosses) / 2 + ALPHA / 4 * apart
    assert float(loss.total.detach()) == pytest.approx(float(expected), rel=1e-5)
    assert int(loss.count) == int(real.sum()) == batch.count


def wanted(batch: Any, seen: list[Any], like: Tensor) -> Tensor:
    """What is to be told, as a distribution for each cell; nothing where nothing is asked."""
    found = torch.zeros_like(like)
    if seen:
        (pictures,) = seen
        rows = (pictures.labels >= 0).nonzero()[:, 0]
        share = pictures.share.double()[rows]
        found[rows, pictures.labels[rows]] += share
        found[rows, pictures.others[rows]] += 1 - share
        return found
    if hasattr(batch, "target"):
        ids, lengths = batch.target, batch.target_lengths
    else:
        ids, lengths = batch.wanted, batch.lengths
    asked = ids >= 0
    if ids.dim() == 2 and not hasattr(batch, "places"):
        asked &= torch.arange(ids.shape[1]) < lengths[:, None]
    return found.scatter_(-1, ids.clamp(min=0)[..., None], asked.double()[..., None])


@EVERY_TASK
def test_a_run_goes_another_way_with_it(task: str, tmp_path: Path) -> None:
    path, losses = recipe_file(tmp_path, task), []
    for number, alpha in enumerate((0.0, ALPHA)):
        changes = [*DROPS[task], f"train.loss.consistency={alpha}", "train.steps=4"]
        heard = Heard()
        train(read_recipe(path, changes), tmp_path / f"run-{number}", listener=heard)
        losses.append(heard.losses)
    assert all(losses[0][step] != losses[1][step] for step in losses[0])


@EVERY_TASK
def test_a_model_without_dropout_has_no_second_way(task: str, tmp_path: Path) -> None:
    path, changes = recipe_file(tmp_path, task), ["train.loss.consistency=1.0"]
    parts = ["encoder"] if task not in ("language", "translation") else ["decoder"]
    parts += ["encoder"] * (task == "translation")
    changes += [f"model.{part}.dropout=0.0" for part in parts]
    if task in ("classification", "tagging"):
        changes.append("model.head.dropout=0.0")
    changes.append("model.dropout=0.0" if task == "pictures" else "model.embedding.dropout=0.0")
    with pytest.raises(UserError, match=r"train\.loss\.consistency: two passes differ by what dropout leaves out"):
        read_recipe(path, changes)
