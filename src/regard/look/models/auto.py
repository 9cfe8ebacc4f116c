"""The traced model of any pipeline: its task's own, or a generic one for the type of its model."""

from pathlib import Path

import torch

from regard.errors import UserError
from regard.look.models.autoregressive import TracedAutoregressiveModel
from regard.look.models.encoder import TracedTextEncoder
from regard.look.models.images import TracedImageClassifier
from regard.look.models.tasks import TASK_MODELS
from regard.look.models.traced_model import TracedModel
from regard.model import CausalLM, Encoder, Seq2SeqLM, VisionTransformer
from regard.task.auto import open_model
from regard.task.image_classification.pipeline import ImageClassifier
from regard.task.pipeline import Pipeline


def make_traced_model(pipeline: Pipeline, name: str | None = None) -> TracedModel:
    """The traced model of a pipeline, named after its folder (and checkpoint) unless a name is given."""
    folder, checkpoint = pipeline.path, pipeline.loaded.checkpoint
    name = name or ("model" if folder is None else folder.resolve().name) + (f"@{checkpoint}" if checkpoint else "")
    traced_type = next((traced for kind, traced in TASK_MODELS.items() if isinstance(pipeline, kind)), None)
    if traced_type is None:
        traced_model = _generic(pipeline, name)
        traced_model.task = str(pipeline.loaded.origin.get("task") or traced_model.task)
    else:
        traced_model = traced_type(pipeline, name)  # type: ignore[call-arg,arg-type]
    traced_model.folder = folder
    return traced_model


def load_traced_model(name: str | Path, device: torch.device | str = "cpu") -> TracedModel:
    """The traced model of a run folder, or of a pretrained model by its name."""
    return make_traced_model(open_model(name, device))


def _generic(pipeline: Pipeline, name: str) -> TracedModel:
    match pipeline.model:
        case Seq2SeqLM() | CausalLM():
            return TracedAutoregressiveModel(pipeline, name)
        case Encoder():
            return TracedTextEncoder(pipeline, name)
        case VisionTransformer():
            return TracedImageClassifier(ImageClassifier(pipeline.loaded), name)
    raise UserError(f"{name} cannot be traced: its model is of the unknown type {type(pipeline.model).__name__}.")
