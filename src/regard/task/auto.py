"""Open a run folder as the pipeline of its task."""

from pathlib import Path

import torch

from regard.errors import UserError
from regard.kernels.dispatch import select_device
from regard.run import load_model
from regard.task.backend import Backend, Precision
from regard.task.pipeline import Pipeline
from regard.task.registry import find_task


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
            raise UserError(f"{name}: dtype and fused are for models that generate text or trees; leave them out.")
        backend.configure(dtype, fused)
    return pipeline
