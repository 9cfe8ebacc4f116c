"""Telling pictures apart: what a picture shows, of a set of classes.

Pictures travel as bytes and are changed where they are computed with, in the pass itself: moved, mirrored, mixed
(`data/augment.py`). Nothing of that asks the device for an answer, so the whole pass can be recorded as a CUDA graph.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from regard.config import ConfigError
from regard.cost import Work
from regard.data.augment import Augmented
from regard.data.picture_batches import PictureBatch, PictureBatches
from regard.data.pictures import Pictures, PicturesConfig, read_pictures
from regard.errors import UserError
from regard.model import VisionTransformer, VisionTransformerConfig
from regard.model.experts import balance_of, gathered
from regard.model.vision import LearnedGrid
from regard.run import load
from regard.score import AccuracyScore, score_accuracy
from regard.task.job import Score, score_sets
from regard.task.passes import passes
from regard.task.pictures_recipe import PicturesRecipe
from regard.task.recipe import Say
from regard.train.gradient import in_precision
from regard.train.loss import Loss
from regard.train.task import Forward, Measured
from regard.train.world import ALONE, World

_VALIDATION_TOKENS = 16384


class PicturesTask:
    """Labelled pictures, a vision transformer, the loss of its classes, and how often it is right."""

    def __init__(
        self,
        recipe: PicturesRecipe,
        train: Pictures,
        held: dict[str, Pictures],
        model: VisionTransformer,
        world: World = ALONE,
    ) -> None:
        """`held` are the pictures that are not learnt from, by name: "valid" and the test sets."""
        self.recipe, self.model, self.world, self.held = recipe, model, world, held
        self.batches = PictureBatches(train, recipe.rows(model.config), seed=recipe.train.seed)

    @classmethod
    def begin(cls, recipe: PicturesRecipe, say: Say, world: World) -> Self:
        """Pictures of all parts and a model with its first weights."""
        data = recipe.data
        parts = {name: (f"test.{name}", part) for name, part in data.test.items()}
        if data.valid is not None:
            parts = {"valid": ("valid", data.valid), **parts}
        train = world.in_turn(lambda: _read("train", data.train, None, say))
        held = world.in_turn(lambda: {name: _read(*part, train, say) for name, part in parts.items()})
        settings = recipe.model_settings(train.size, train.channels, train.classes)
        torch.manual_seed(recipe.train.seed)
        first = recipe.init_from
        model = settings.build() if first is None else _started_from(first, settings, say)
        return cls(recipe, train, held, model, world)

    @property
    def report(self) -> str:
        return str(self.batches.report)

    def work(self) -> Work:
        return self.recipe.work(self.model.config)

    def loss(self, forward: Forward, batch: PictureBatch) -> Loss:
        """What pictures show, after they were changed; of one mixed with another, both."""
        seen = self.recipe.augment.apply(batch.pixels, batch.labels)
        settings, pixels = self.recipe.train.loss, self._normalised(seen.pixels)
        times = passes(self.recipe.train)
        with gathered() as notes:
            scores = forward(pixels if times == 1 else pixels.repeat(times, 1, 1, 1))
        return class_loss(scores, seen, settings.smoothing, settings.consistency).also(balance_of(notes))

    def plain_loss(self, forward: Forward, batch: PictureBatch) -> Loss:
        alone = torch.ones_like(batch.labels, dtype=torch.float32)
        seen = Augmented(batch.pixels, batch.labels, batch.labels, alone)
        return class_loss(forward(self._normalised(batch.pixels)), seen)

    def validation(self) -> Iterator[PictureBatch]:
        valid = self.held.get("valid")
        return iter(()) if valid is None else self._once(valid)

    def measure(self) -> Measured | None:
        """How often it is right."""
        valid = self.held.get("valid")
        if valid is None:
            return None
        accuracy = self.score(valid).accuracy
        return Measured(accuracy, {"accuracy": accuracy})

    @torch.no_grad()
    def score(self, pictures: Pictures) -> AccuracyScore:
        """How well the model, as it stands, tells pictures apart; several processes share them out."""
        self.model.eval()
        forward = in_precision(self.model, self.recipe.train.precision)
        found: list[int] = []
        wanted: list[int] = []
        nats = 0.0
        for number, batch in enumerate(self._once(pictures)):
            if number % self.world.size == self.world.rank:
                scores = forward(self._normalised(batch.pixels.to(self.model.device)))[: batch.count].float().cpu()
                labels = batch.labels[: batch.count]
                nats -= float(scores.log_softmax(-1).gather(1, labels[:, None]).double().sum())
                found += scores.argmax(-1).tolist()
                wanted += labels.tolist()
        theirs = self.world.gather([found, wanted, nats])
        return score_accuracy(
            [one for mine, _, _ in theirs for one in mine],
            [one for _, right, _ in theirs for one in right],
            pictures.classes,
            sum(part for _, _, part in theirs),
        )

    def test(self, say: Say) -> dict[str, Score]:
        """The test sets, each as a whole; without any, the validation part."""
        return score_sets(self.recipe, self.held, self.score, say)

    def facts(self) -> dict[str, Any]:
        """How a picture of another size is made to fit is all that the model's own config does not say."""
        parts = {"train": self.batches.pictures, **self.held}
        fingerprints = {name: pictures.fingerprint() for name, pictures in parts.items()}
        return {"data": fingerprints, "fit": self.recipe.data.train.fit}

    def _once(self, pictures: Pictures) -> Iterator[PictureBatch]:
        rows = max(1, _VALIDATION_TOKENS // self.model.config.tokens)
        return PictureBatches(pictures, min(rows, len(pictures))).once()

    def _normalised(self, pixels: Tensor) -> Tensor:
        return self.model.config.pixels.apply(pixels)


def class_loss(scores: Tensor, seen: Augmented, smoothing: float = 0.0, consistency: float = 0.0) -> Loss:
    """Cross-entropy in float32 of pictures that show `share` of one class and the rest of another.

    scores: # (passes · rows, classes). With smoothing ε the wanted distribution is 1 − ε of that, and ε spread over all
    classes. Of two passes it is the mean, plus `consistency` of how far they differ, as in `consistent_word_loss`.
    Empty rows, whose label is -1, do not count.
    """
    wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
    log_p = scores.log_softmax(dim=-1, dtype=wide).unflatten(0, (-1, len(seen.labels)))  # (passes, rows, classes)
    own, other = (_nats(log_p, labels) for labels in (seen.labels, seen.others))
    each = other + seen.share.to(wide) * (own - other)  # (passes, rows)
    total = (each + smoothing * (-log_p.mean(dim=-1) - each)).mean(dim=0)  # (rows,)
    if consistency:
        first, second = log_p
        total = total + consistency / 4 * ((first.exp() - second.exp()) * (first - second)).sum(dim=-1)
    real, plain = seen.labels >= 0, each.mean(dim=0)
    return Loss(total.masked_fill(~real, 0.0).sum(), plain.detach().masked_fill(~real, 0.0).sum(), real.sum())


def _nats(log_p: Tensor, labels: Tensor) -> Tensor:
    """log_p: # (passes, rows, classes); labels: # (rows,); gives (passes, rows)"""
    return -log_p.gather(2, labels.clamp(min=0).expand(len(log_p), -1)[..., None])[..., 0]


def _read(key: str, part: PicturesConfig, train: Pictures | None, say: Say) -> Pictures:
    """A part of the data; what it shows and how large it is must be as in the training part."""
    try:
        found = read_pictures(part, classes=None if train is None else train.classes, say=say)
    except ConfigError as error:
        raise ConfigError(f"data.{key}.{error.key}", error.problem) from None
    if train is not None and found.pixels.shape[1:] != train.pixels.shape[1:]:
        raise UserError(
            f"{part.place} has {_shape(found)} and the training part {_shape(train)}; give data.train.size and "
            "data.train.channels, which are then meant for all parts."
        )
    return found


def _shape(pictures: Pictures) -> str:
    height, width = pictures.size
    return f"pictures of {height} × {width} with {pictures.channels} channel{'s' if pictures.channels > 1 else ''}"


def _started_from(name: str, settings: VisionTransformerConfig, say: Say) -> VisionTransformer:
    """A model of these settings with the weights of another: all but the head, where that tells other classes apart.

    Positions are interpolated where pictures have another size.
    """
    first, model = load(name).model.float(), settings.build()
    if not isinstance(first, VisionTransformer):
        raise UserError(f"{name} holds no model that takes pictures, so none can start from its weights.")
    given, wanted = dict(first.state_dict()), model.state_dict()
    same = first.config.labels == settings.labels
    if not same:
        given |= {key: value for key, value in wanted.items() if key.startswith("head.")}
    if isinstance(first.position, LearnedGrid) and first.config.grid != settings.grid:
        table, begins = first.position.table.detach(), first.position.first
        codes = first.position(*settings.grid).detach().flatten(0, 1)
        given["position.table"] = torch.cat((table[:begins], codes))
    _check_tensors(name, {key: value.shape for key, value in given.items()}, wanted)
    model.load_state_dict(given)
    say(f"Starting from the weights of {name}{'' if same else ', with a new head for other classes'}.")
    return model


def _check_tensors(name: str, given: dict[str, Sequence[int]], wanted: dict[str, Tensor]) -> None:
    for key in sorted({*given, *wanted}):
        found, right = given.get(key), wanted[key].shape if key in wanted else None
        if found != right:
            shapes = ["nothing" if shape is None else str(tuple(shape)) for shape in (right, found)]
            raise UserError(
                f"{name} does not fit the recipe's model: for {key} that has {shapes[0]}, the weights have "
                f"{shapes[1]}. Leave [model] out to take its settings."
            )
