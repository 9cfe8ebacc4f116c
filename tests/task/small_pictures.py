"""Small pictures that are easy to tell apart, and a recipe for them: a run takes about a second."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from regard.task.reading import changed

CLASSES = ("left", "right", "top")


def pictures(count: int, seed: int = 1, size: int = 4) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Grey ones of which the left, the right or the upper half is bright.  # (count, size, size), (count,)"""
    dice = np.random.default_rng(seed)
    pixels, labels = dice.integers(0, 100, (count, size, size)), np.arange(count) % 3
    half = size // 2
    places = (np.s_[:, :half], np.s_[:, half:], np.s_[:half, :])
    for picture, label in zip(pixels, labels, strict=True):
        picture[places[label]] += 120
    return pixels.astype(np.uint8), labels


def write_arrays(path: Path, count: int, seed: int = 1, size: int = 4) -> Path:
    pixels, labels = pictures(count, seed, size)
    np.savez(path, images=pixels, labels=labels)
    return path


def small_values(**data: Any) -> dict[str, Any]:
    """The plain values of a small recipe."""
    return {
        "description": "A small recipe to test with.",
        "task": "pictures",
        "data": {"train": {"path": "train.npz", "classes": list(CLASSES)}, **data},
        "model": {
            "patch": 2,
            "width": 16,
            "dropout": 0.0,
            "encoder": {"layers": 1, "attention": {"heads": 2}, "feed_forward": {"hidden": 32}},
        },
        "train": {
            "steps": 12,
            "tokens": 80,  # 16 pictures of 4 patches and a class token
            "log_every": 1,
            "validate_every": 6,
            "save_every": 4,
            "schedule": {"kind": "constant", "rate": 0.01, "warmup": 0},
        },
    }


def write_recipe(place: Path, *changes: str, **data: Any) -> Path:
    """A small recipe as a file beside its pictures: 50 to train on, 20 to watch, 30 to test with."""
    place.mkdir(parents=True, exist_ok=True)
    for number, (name, count) in enumerate((("train", 50), ("valid", 20), ("test", 30))):
        write_arrays(place / f"{name}.npz", count, seed=number)
    values = small_values(**(data or {"valid": {"path": "valid.npz"}, "test": {"test": {"path": "test.npz"}}}))
    for change in changes:
        values = changed(copy.deepcopy(values), change)
    path = place / "small.toml"
    path.write_text(tomli_w.dumps(values), encoding="utf-8")
    return path


class _Recording(TorchFunctionMode):
    """Refuses what cannot be recorded in a CUDA graph: copies from the host, and questions to the device."""

    REFUSED = (
        torch.tensor, torch.as_tensor, torch.from_numpy, torch.nonzero, torch.masked_select, torch.unique,
        torch.Tensor.new_tensor, torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.numpy,
        torch.Tensor.__bool__, torch.Tensor.__float__, torch.Tensor.__int__, torch.Tensor.nonzero,
    )  # fmt: skip

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in self.REFUSED, f"{func} cannot be recorded"
        if func is torch.Tensor.__getitem__:
            assert not any(isinstance(one, torch.Tensor) and one.dtype == torch.bool for one in _each(args[1]))
        return func(*args, **(kwargs or {}))


def _each(place: Any) -> tuple[Any, ...]:
    return place if isinstance(place, tuple) else (place,)


@contextmanager
def as_if_recorded() -> Iterator[None]:
    """What is done here could be recorded as a CUDA graph, as far as a CPU can tell."""
    with _Recording():
        yield
