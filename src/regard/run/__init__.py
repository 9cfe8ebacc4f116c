"""The run folder: a model as a folder of plain files that every later version can load."""

from regard.run.folder import (
    FORMAT_VERSION,
    LoadedModel,
    find_model,
    half_weights,
    load_model,
    pretrained_models,
    read_metadata,
    read_origin,
    save_model,
    save_trained_model,
)

__all__ = [
    "FORMAT_VERSION",
    "LoadedModel",
    "find_model",
    "half_weights",
    "load_model",
    "pretrained_models",
    "read_metadata",
    "read_origin",
    "save_model",
    "save_trained_model",
]
