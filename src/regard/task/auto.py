"""Open a run folder as the pipeline of its task."""

from pathlib import Path

import torch

from regard.kernels.dispatch import select_device
from regard.run import load_model
from regard.task.pipeline import Pipeline
from regard.task.registry import find_task


def open_model(name: str | Path, device: torch.device | str = "cpu") -> Pipeline:
    """A run folder, one of its checkpoints, or a pretrained model, as a `Translator`, a `TextGenerator`, a `Parser` …

    A model that no task supports (one without a tokenizer, for example) is a plain `Pipeline`, in the precision it was
    saved in; the others compute in float32.
    """
    device = select_device(device)
    loaded = load_model(name)
    info = find_task(loaded)
    if info is None:
        return Pipeline(loaded).to(device)
    loaded.model.to(device).float()  # moved in the dtype of the file: a large model has no float32 copy on the host
    return info.pipeline_class()(loaded).to(device)
