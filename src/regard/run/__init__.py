"""The run folder: a model as a folder of plain files that every later version can load."""

from regard.run.folder import (
    FORMAT_VERSION,
    LoadedModel,
    half_weights,
    load_model,
    read_metadata,
    read_origin,
    save_model,
    save_trained_model,
)
from regard.run.locate import find_model, is_unfinished, model_files, pin_checkpoint, pretrained_models

__all__ = [
    "FORMAT_VERSION",
    "LoadedModel",
    "find_model",
    "half_weights",
    "is_unfinished",
    "load_model",
    "model_files",
    "pin_checkpoint",
    "pretrained_models",
    "read_metadata",
    "read_origin",
    "save_model",
    "save_trained_model",
]
