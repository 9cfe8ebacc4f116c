"""Open a run folder as the pipeline of its task, or a file of word vectors."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from regard.errors import UserError
from regard.kernels.dispatch import select_device
from regard.run import find_model, load_model
from regard.task.backend import Backend, Precision
from regard.task.pipeline import Pipeline
from regard.task.registry import find_task

if TYPE_CHECKING:
    from regard.model.before.word_vectors.keyed_vectors import KeyedVectors


def open_model(
    name: str | Path,
    device: torch.device | str = "cpu",
    *,
    dtype: Precision = "float32",
    fused: bool | None = None,
) -> Pipeline:
    """A run folder, one of its checkpoints, or a pretrained model, as a `Translator`, a `TextGenerator`, a `Parser` …

    A model that no task supports (one without a tokenizer, for example) is a plain `Pipeline`, in the precision it was
    saved in; the others compute in float32. Where they decode, `dtype` and `fused` configure the decoder.
    """
    device = select_device(device)
    loaded = load_model(name)
    info = find_task(loaded)
    if info is None:
        pipeline = Pipeline(loaded).to(device)
    else:
        loaded.model.to(device).float()  # moved in the dtype of the file: a large model has no float32 copy on the host
        pipeline = info.pipeline_class()(loaded).to(device)
    if dtype != "float32" or fused is not None:
        backend = getattr(pipeline, "backend", None)
        if not isinstance(backend, Backend):
            raise _does_not_decode(name)
        backend.configure(dtype, fused)
    return pipeline


def open_model_or_vectors(
    name: str | Path,
    device: torch.device | str = "cpu",
    *,
    dtype: Precision = "float32",
    fused: bool | None = None,
) -> "Pipeline | KeyedVectors":
    """A model as `open_model` does, or a file of word vectors, which are looked up in memory whatever the device is."""
    path = find_model(name)
    if path.is_file():
        from regard.interop.word_vectors import looks_like_vectors, open_word_vectors

        if looks_like_vectors(path):
            if dtype != "float32" or fused is not None:
                raise _does_not_decode(name)
            return open_word_vectors(path)
    return open_model(name, device, dtype=dtype, fused=fused)


def _does_not_decode(name: str | Path) -> UserError:
    return UserError(f"{name}: dtype and fused are for models that generate text or trees; leave them out.")
