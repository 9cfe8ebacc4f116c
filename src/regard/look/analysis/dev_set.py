"""The dev set that heads are measured on: given lines, the recipe's validation data, or data that ships.

Items become examples of token ids, so a single loss serves all tasks: the mean of −log p over all labels. Nothing is
downloaded.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from regard.attention.context import AttentionHook
from regard.data.registry import find_dataset
from regard.decode.strategy import upcast
from regard.errors import UserError
from regard.look.models.traced_model import IGNORE, Example, TracedModel
from regard.model import Seq2SeqLM, VisionTransformer
from regard.task.base import Recipe
from regard.task.recipe_io import read_recipe

MAX_EXAMPLES = 100
"""Examples taken from the recipe's data."""
_BATCH_SIZE = 16


class DevSet(NamedTuple):
    """Examples with the items they were made from, and the recipe of the model's run."""

    examples: list[Example]
    items: list[Any]
    recipe: Recipe | None


def load_dev_set(
    traced_model: TracedModel,
    lines: Sequence[str] | None,
    folder: Path | None,
    make_example: Callable[[Any], Example | None] | None = None,
) -> DevSet:
    """The dev set of the given lines, or of data that the run folder's recipe names and this machine has.

    Its examples are those for the loss unless another function makes them.
    """
    make_example = make_example or traced_model.make_example
    recipe = _read_recipe(folder)
    if lines is not None:
        candidates: Iterable[Any] = [traced_model.parse_line(line) for line in lines if line.strip()]
    else:
        candidates = islice(_recipe_items(traced_model, recipe, folder), MAX_EXAMPLES)
    pairs = [(item, example) for item in candidates if (example := make_example(item)) is not None]
    if not pairs:
        raise UserError(f"The dev set is empty: give lines{_line_format(traced_model)}.")
    return DevSet([example for _, example in pairs], [item for item, _ in pairs], recipe)


@torch.no_grad()
def mean_loss(traced_model: TracedModel, examples: Sequence[Example]) -> float:
    """The mean of −log p over all labels."""
    total, count = 0.0, 0
    by_length = sorted(examples, key=lambda example: example.inputs.numel())
    for first in range(0, len(by_length), _BATCH_SIZE):
        logits, labels = _forward(traced_model, by_length[first : first + _BATCH_SIZE])
        rows = upcast(logits.reshape(-1, logits.shape[-1]))
        total += float(functional.cross_entropy(rows, labels.reshape(-1), ignore_index=IGNORE, reduction="sum"))
        count += int((labels != IGNORE).sum())
    return total / max(count, 1)


@torch.no_grad()
def run_unpadded(traced_model: TracedModel, examples: Sequence[Example]) -> None:
    """Run the model on the examples one by one, without padding, as `mean_outputs` requires."""
    for example in examples:
        _forward(traced_model, [example])


@torch.no_grad()
def run_example(traced_model: TracedModel, example: Example, attention_hook: AttentionHook) -> None:
    """Run the model on a single example, observed by `attention_hook`."""
    _forward(traced_model, [example], attention_hook)


def training_items(traced_model: TracedModel, recipe: Recipe | None, folder: Path | None) -> Iterator[Any]:
    """The items of the recipe's training data that are on this machine, or else the model's fallback, if any."""
    sources = [] if recipe is None else [each for each in recipe.data_sources().get("train", ()) if _is_available(each)]
    if recipe is not None and sources:
        return (item for source in sources for item in traced_model.read_items(recipe, source))
    return traced_model.fallback_items(recipe, folder) or iter(())


def _forward(
    traced_model: TracedModel, batch: Sequence[Example], attention_hook: AttentionHook | None = None
) -> tuple[Tensor, Tensor]:
    """The logits and labels of a batch."""
    model: Any = traced_model.model
    labels = [example.labels for example in batch]
    if isinstance(model, VisionTransformer):
        pixels = torch.stack([example.inputs for example in batch])
        return model(pixels.to(model.device), attention_hook=attention_hook), torch.stack(labels).to(model.device)
    lengths = torch.tensor([len(example.inputs) for example in batch], device=model.device)
    inputs = pad_sequence([example.inputs for example in batch], batch_first=True).to(model.device)
    padded_labels = (
        torch.stack(labels) if labels[0].dim() == 0 else pad_sequence(labels, batch_first=True, padding_value=IGNORE)
    ).to(model.device)
    input_lengths = None if len(batch) == 1 else lengths
    if isinstance(model, Seq2SeqLM):
        source, sizes = (
            each.to(model.device) for each in model.pad_sources([example.source or () for example in batch])
        )
        source_lengths = None if input_lengths is None else sizes
        lengths_of_both = {"source_lengths": source_lengths, "target_lengths": input_lengths}
        return model(source, inputs, **lengths_of_both, attention_hook=attention_hook), padded_labels
    return model(inputs, lengths=input_lengths, attention_hook=attention_hook), padded_labels


def _read_recipe(folder: Path | None) -> Recipe | None:
    """The recipe of a run, if it has a readable one."""
    if folder is None or not (folder / "recipe.toml").is_file():
        return None
    try:
        return read_recipe(folder / "recipe.toml", [])
    except UserError:
        return None


def _recipe_items(traced_model: TracedModel, recipe: Recipe | None, folder: Path | None) -> Iterator[Any]:
    """The items of the recipe's validation set or else of a test set; failing that, the model's fallback."""
    sources = {} if recipe is None else recipe.data_sources()
    for name in ["valid", *(name for name in sources if name not in ("train", "valid"))]:
        if recipe is not None and name in sources and all(_is_available(source) for source in sources[name]):
            return (item for source in sources[name] for item in traced_model.read_items(recipe, source))
    items = traced_model.fallback_items(recipe, folder)
    if items is None:
        raise UserError(f"The model's validation data is not on this machine; give lines{_line_format(traced_model)}.")
    return items


def _line_format(traced_model: TracedModel) -> str:
    return f" ({traced_model.line_format})" if traced_model.line_format else ""


def _is_available(source: Any) -> bool:
    """Whether the files of a data source are on this machine."""
    names = [name for key in ("path", "source", "target", "labels") if (name := getattr(source, key, None))]
    try:
        if source.dataset is not None:
            return find_dataset(source.dataset, names or None) is not None
    except UserError:
        return False
    return all(Path(name).exists() for name in names)
