"""The image classification task.

Images are transferred as uint8 and augmented on the device as part of the forward pass (data/images/augment.py).
Nothing in it synchronizes with the device, so the whole step can be captured in a CUDA graph.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from regard.config import ConfigError
from regard.cost import Workload
from regard.data.images.augment import Augmented
from regard.data.images.batches import ImageBatch, ImageBatches
from regard.data.images.dataset import ImageDataset, ImagesConfig, read_images
from regard.errors import UserError
from regard.files import new_file
from regard.model import VisionTransformer, VisionTransformerConfig
from regard.model.vision_transformer import LearnedGrid
from regard.progress import counted
from regard.run import LoadedModel, load_model
from regard.score import AccuracyScore, score_accuracy
from regard.task.base import check_labels, describe_batches, report_unknown, score_test_sets
from regard.task.held_out import HELD_OUT_IMAGES, held_out_size, log_held_out, split_digests
from regard.task.image_classification.pipeline import ImageClassifier
from regard.task.image_classification.recipe import ImageClassificationRecipe
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from regard.train.loss import Loss, add_aux_loss
from regard.train.step import forward_in_precision
from regard.train.task import Evaluation, Forward, LogFn, Score

_VALIDATION_TOKENS = 16384
_MAX_HELD_OUT_BYTES = 1 << 26
"""The most bytes of images that are held out, since the run folder has a copy of them."""


class ImageClassificationTask:
    """Labeled images, a vision transformer, its loss and accuracy."""

    def __init__(
        self,
        recipe: ImageClassificationRecipe,
        train: ImageDataset | None,
        evaluation_data: dict[str, ImageDataset],
        model: VisionTransformer,
        process_group: ProcessGroup = SINGLE_PROCESS,
        items: Sequence[int] | None = None,
    ) -> None:
        """`evaluation_data` are the images that are not trained on, by name: "valid" and the test sets. Without
        `train`, the model can only be tested; of its images only `items` are trained on, if these are given."""
        self.recipe, self.model, self.process_group = recipe, model, process_group
        self.evaluation_data = evaluation_data
        if train is not None:
            rows = min(recipe.rows(model.config), len(train) if items is None else len(items))
            self.batches = ImageBatches(train, rows, seed=recipe.train.seed, items=items)

    @classmethod
    def prepare(cls, recipe: ImageClassificationRecipe, folder: Path, log: LogFn, process_group: ProcessGroup) -> Self:
        """Prepare the images and the initial model."""
        data = recipe.data
        parts = {name: (f"test.{name}", part) for name, part in data.test.items()}
        if data.valid is not None:
            parts = {"valid": ("valid", data.valid), **parts}
        train = process_group.rank0_first(lambda: _read("train", data.train, None, log))
        settings = recipe.make_model_config(train.size, train.channels, train.classes)
        evaluation_data = process_group.rank0_first(
            lambda: {name: _read(*part, settings, log) for name, part in parts.items()}
        )
        items = None
        if data.valid is None:
            items, held_out = process_group.rank0_first(lambda: _hold_out(train, folder, data.dev_size, log))
            evaluation_data |= {} if held_out is None else {"valid": held_out}
        for name, dataset in evaluation_data.items():
            found = dataset.labels.unique().tolist()
            unknown = [dataset.classes[number] for number in found if number >= len(train.classes)]
            report_unknown(name, unknown, log, none_known=len(unknown) == len(found))
        torch.manual_seed(recipe.train.seed)
        first = recipe.init_from
        model = settings.build() if first is None else _init_from(first, settings, log)
        return cls(recipe, train, evaluation_data, model, process_group, items)

    @classmethod
    def for_testing(cls, recipe: ImageClassificationRecipe, loaded: LoadedModel, process_group: ProcessGroup) -> Self:
        """The task with a trained model and its test sets only."""
        config, log = loaded.model.config, lambda message: None
        sources, processor = recipe.test_sources().items(), ImageClassifier(loaded).image_processor
        resample = None if processor is None else processor.resample
        evaluation_data = process_group.rank0_first(
            lambda: {
                name: _read("valid" if name == "valid" else f"test.{name}", part, config, log, resample)
                for name, part in sources
            }
        )
        for name, part in sources:
            dataset = evaluation_data[name]
            found = [dataset.classes[number] for number in dataset.labels.unique().tolist()]
            check_labels(part, found, config.labels)
        return cls(recipe, None, evaluation_data, loaded.model, process_group)

    def describe_data(self) -> str:
        return describe_batches(self.batches.stats, self.recipe.train)

    def workload(self) -> Workload:
        return replace(self.recipe.workload(self.model.config), batch_size=self.batches.rows)

    def loss(self, forward: Forward, batch: ImageBatch) -> Loss:
        """The loss of the augmented images; of mixed images, that of both labels."""
        augmented = self.recipe.augment.apply(batch.pixels, batch.labels)
        config, pixels = self.recipe.train.loss, self._normalized(augmented.pixels)
        pixels = pixels if config.passes == 1 else pixels.repeat(config.passes, 1, 1, 1)
        return add_aux_loss(
            self.model, lambda: class_loss(forward(pixels), augmented, config.label_smoothing, config.r_drop)
        )

    def nll(self, forward: Forward, batch: ImageBatch) -> Loss:
        labels = batch.labels.masked_fill(batch.labels >= len(self.model.config.labels), -1)  # the model lacks these
        weight = torch.ones_like(labels, dtype=torch.float32)
        unchanged = Augmented(batch.pixels, labels, labels, weight)
        smoothing = self.recipe.train.loss.label_smoothing
        return class_loss(forward(self._normalized(batch.pixels)), unchanged, smoothing)

    def validation_batches(self) -> Iterator[ImageBatch]:
        valid = self.evaluation_data.get("valid")
        return iter(()) if valid is None else self._ordered_batches(valid)

    def evaluate(self) -> Evaluation | None:
        """The accuracy on the validation set."""
        valid = self.evaluation_data.get("valid")
        if valid is None:
            return None
        accuracy = self.score(valid).accuracy
        return Evaluation(accuracy, {"accuracy": accuracy})

    @torch.no_grad()
    def score(self, dataset: ImageDataset) -> AccuracyScore:
        """Score the current model on some images; several processes share the work.

        A class that the model does not have counts as an error, but not in the loss, where it would be infinite.
        """
        self.model.eval()
        forward = forward_in_precision(self.model, self.recipe.train.precision)
        predicted: list[int] = []
        truth: list[int] = []
        nats = 0.0
        for number, batch in enumerate(counted(self._ordered_batches(dataset), "Classifying", "batches")):
            if number % self.process_group.size == self.process_group.rank:
                logits = forward(self._normalized(batch.pixels.to(self.model.device)))[: batch.count].float().cpu()
                labels = batch.labels[: batch.count]
                known = labels < logits.shape[1]
                nats -= float(logits.log_softmax(-1)[known].gather(1, labels[known, None]).double().sum())
                predicted += logits.argmax(-1).tolist()
                truth += labels.tolist()
        gathered_scores = self.process_group.all_gather_object([predicted, truth, nats])
        return score_accuracy(
            [label for rank_predicted, _, _ in gathered_scores for label in rank_predicted],
            [label for _, rank_truth, _ in gathered_scores for label in rank_truth],
            dataset.classes,
            sum(rank_nats for _, _, rank_nats in gathered_scores),
            known=len(self.model.config.labels),
            unit=self.recipe.counted_unit,
        )

    def test(self, log: LogFn) -> dict[str, Score]:
        """Score the test sets, or the validation set if there are none."""
        return score_test_sets(self.recipe, self.evaluation_data, self.score, log)

    def metadata(self) -> dict[str, Any]:
        """Besides the model's config, inference depends on how images of other sizes are resized."""
        parts = {"train": self.batches.dataset, **self.evaluation_data}
        fingerprints = {name: dataset.fingerprint() for name, dataset in parts.items()}
        return {"data": fingerprints, "fit": self.recipe.data.train.fit}

    def _ordered_batches(self, dataset: ImageDataset) -> Iterator[ImageBatch]:
        rows = max(1, _VALIDATION_TOKENS // self.model.config.sequence_length)
        return ImageBatches(dataset, min(rows, len(dataset))).in_order()

    def _normalized(self, pixels: Tensor) -> Tensor:
        return self.model.config.pixels.apply(pixels)


def class_loss(logits: Tensor, images: Augmented, label_smoothing: float = 0.0, r_drop: float = 0.0) -> Loss:
    """Cross-entropy in float32 of images whose label is a mixture of two.

    logits: # (passes · rows, classes). With label smoothing ε the target distribution is 1 − ε of that mixture, plus ε
    spread over all classes. Of two passes it is the mean, plus R-Drop's divergence between them, as in `r_drop_loss`.
    Empty rows, whose label is -1, do not count.
    """
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    logprobs = logits.log_softmax(dim=-1, dtype=dtype).unflatten(0, (-1, len(images.labels)))  # (passes, rows, classes)
    own, other = (_nll(logprobs, labels) for labels in (images.labels, images.mixed_labels))
    nll = other + images.weight.to(dtype) * (own - other)  # (passes, rows)
    total = (nll + label_smoothing * (-logprobs.mean(dim=-1) - nll)).mean(dim=0)  # (rows,)
    if r_drop:
        first, second = logprobs
        total = total + r_drop / 4 * ((first.exp() - second.exp()) * (first - second)).sum(dim=-1)
    real, mean_nll = images.labels >= 0, nll.mean(dim=0)
    return Loss(total.masked_fill(~real, 0.0).sum(), mean_nll.detach().masked_fill(~real, 0.0).sum(), real.sum())


def _nll(logprobs: Tensor, labels: Tensor) -> Tensor:
    """logprobs: # (passes, rows, classes); labels: # (rows,); returns (passes, rows)"""
    return -logprobs.gather(2, labels.clamp(min=0).expand(len(logprobs), -1)[..., None])[..., 0]


def _hold_out(
    dataset: ImageDataset, folder: Path, dev_size: int, log: LogFn
) -> tuple[list[int] | None, ImageDataset | None]:
    """The numbers of the images to train on, or None for all; and those that are held out, which the run folder
    records."""
    limit = min(dev_size, _MAX_HELD_OUT_BYTES // max(1, dataset.pixels[:1].numel()))
    if not held_out_size(len(dataset), limit):
        log_held_out(log, 0, len(dataset), dev_size, "image")
        return None, None
    digests = [hashlib.sha256(image.contiguous().numpy().data).hexdigest() for image in dataset.pixels]
    labels = [(str(label),) for label in dataset.labels.tolist()]
    left, chosen = split_digests(digests, labels, limit, "image", log)
    if not chosen:
        return None, None
    held_out = dataset.subset(torch.tensor(chosen))
    with new_file(folder / HELD_OUT_IMAGES) as path, path.open("wb") as file:
        np.savez(file, images=held_out.pixels.numpy(), labels=held_out.labels.numpy())
    return left, held_out


def _read(
    key: str, part: ImagesConfig, config: VisionTransformerConfig | None, log: LogFn, resample: int | None = None
) -> ImageDataset:
    """Read one of the data sources; its image format must be that of the model's training set, if there is one yet."""
    try:
        found = read_images(part, classes=None if config is None else config.labels, resample=resample, log=log)
    except ConfigError as error:
        raise ConfigError(f"data.{key}.{error.key}", error.problem) from None
    if config is not None and (found.size, found.channels) != (config.size, config.channels):
        ours, theirs = _shape(found.size, found.channels), _shape(config.size, config.channels)
        raise UserError(
            f"{part.location} has {ours}, but the training set has {theirs}; give data.train.size and "
            "data.train.channels, which apply to all of them."
        )
    return found


def _shape(size: tuple[int, int], channels: int) -> str:
    return f"images of {size[0]} × {size[1]} with {channels} channel{'s' if channels > 1 else ''}"


def _init_from(name: str, settings: VisionTransformerConfig, log: LogFn) -> VisionTransformer:
    """A model with the weights of another one, except for the head if the classes differ.

    Positional embeddings are interpolated if the image size differs.
    """
    first, model = load_model(name).model.float(), settings.build()
    if not isinstance(first, VisionTransformer):
        raise UserError(f"{name} is not a vision transformer, so training cannot start from its weights.")
    weights, expected = dict(first.state_dict()), model.state_dict()
    same_classes = first.config.labels == settings.labels
    if not same_classes:
        weights |= {key: value for key, value in expected.items() if key.startswith("head.")}
    if isinstance(first.embed_positions, LearnedGrid) and first.config.grid != settings.grid:
        table, begins = first.embed_positions.weight.detach(), first.embed_positions.cls_rows
        codes = first.embed_positions(*settings.grid).detach().flatten(0, 1)
        weights["embed_positions.weight"] = torch.cat((table[:begins], codes))
    _check_shapes(name, {key: value.shape for key, value in weights.items()}, expected)
    model.load_state_dict(weights)
    log(f"Starting from the weights of {name}{'' if same_classes else ', with a new head for other classes'}.")
    return model


def _check_shapes(name: str, shapes: dict[str, Sequence[int]], expected: dict[str, Tensor]) -> None:
    for key in sorted({*shapes, *expected}):
        found, needed = shapes.get(key), expected[key].shape if key in expected else None
        if found != needed:
            both = ["nothing" if shape is None else str(tuple(shape)) for shape in (needed, found)]
            raise UserError(
                f"{name} does not fit the recipe's model: {key} should have the shape {both[0]}, but it has {both[1]}. "
                "Leave [model] out to use its settings."
            )
