"""Small images that are easy to classify, and a recipe for them: a run takes about a second."""

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

from regard.task.recipe_io import apply_override

CLASSES = ("left", "right", "top")


def small_images(count: int, seed: int = 1, size: int = 4) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Grayscale images whose left, right or upper half is bright.  # (count, size, size), (count,)"""
    rng = np.random.default_rng(seed)
    pixels, labels = rng.integers(0, 100, (count, size, size)), np.arange(count) % 3
    half = size // 2
    bright = (np.s_[:, :half], np.s_[:, half:], np.s_[:half, :])
    for image, label in zip(pixels, labels, strict=True):
        image[bright[label]] += 120
    return pixels.astype(np.uint8), labels


def write_arrays(path: Path, count: int, seed: int = 1, size: int = 4) -> Path:
    pixels, labels = small_images(count, seed, size)
    np.savez(path, images=pixels, labels=labels)
    return path


def small_values(**data: Any) -> dict[str, Any]:
    """A small recipe as a plain dict."""
    return {
        "description": "A small recipe to test with.",
        "task": "image-classification",
        "data": {"train": {"path": "train.npz", "classes": list(CLASSES)}, **data},
        "model": {
            "patch_size": 2,
            "width": 16,
            "dropout": 0.0,
            "encoder": {"layers": 1, "attention": {"heads": 2}, "feed_forward": {"hidden": 32}},
        },
        "train": {
            "steps": 12,
            "batch_tokens": 80,  # 16 images of 4 patches and a class token
            "log_every": 1,
            "validate_every": 6,
            "save_every": 4,
            "schedule": {"kind": "constant", "lr": 0.01, "warmup_steps": 0},
        },
    }


def write_recipe(folder: Path, *changes: str, **data: Any) -> Path:
    """A small recipe file and its images: 50 for training, 20 for validation, 30 for testing."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, count) in enumerate((("train", 50), ("valid", 20), ("test", 30))):
        write_arrays(folder / f"{name}.npz", count, seed=number)
    values = small_values(**(data or {"valid": {"path": "valid.npz"}, "test": {"test": {"path": "test.npz"}}}))
    for change in changes:
        values = apply_override(copy.deepcopy(values), change)
    path = folder / "small.toml"
    path.write_text(tomli_w.dumps(values), encoding="utf-8")
    return path


class _NoHostSync(TorchFunctionMode):
    """Refuses operations that a CUDA graph cannot capture: copies from the host and synchronization with the device."""

    REFUSED = (
        torch.tensor, torch.as_tensor, torch.from_numpy, torch.nonzero, torch.masked_select, torch.unique,
        torch.Tensor.new_tensor, torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.numpy,
        torch.Tensor.__bool__, torch.Tensor.__float__, torch.Tensor.__int__, torch.Tensor.nonzero,
    )  # fmt: skip

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in self.REFUSED, f"{func} cannot be captured"
        if func is torch.Tensor.__getitem__:
            assert not any(isinstance(part, torch.Tensor) and part.dtype == torch.bool for part in _as_tuple(args[1]))
        return func(*args, **(kwargs or {}))


def _as_tuple(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Check within the block that the operations could be captured in a CUDA graph, as far as a CPU can tell."""
    with _NoHostSync():
        yield
