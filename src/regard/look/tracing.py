"""`pipeline.trace(text)`: run a model and record its attention, probabilities and search."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from regard.errors import UserError, unexpected_keyword
from regard.look.models.auto import make_traced_model
from regard.look.models.images import image_data_url
from regard.look.models.traced_model import TracedModel
from regard.look.schema import AblatedHead, Ablation, DecodingOverrides, RunRequest
from regard.look.trace import Trace
from regard.task.pipeline import Pipeline

Head = tuple[str, int, int]
"""An attention type ("encoder", "decoder" or "cross"), a layer and a head, both counted from 0."""


def trace_pipeline(
    pipeline: Pipeline,
    text: Any,
    *,
    ablated_heads: Sequence[Head] = (),
    ablation: Ablation = "zero",
    **decoding: Any,
) -> Trace:
    """Trace a pipeline on a text, or an image classifier on an image.

    `ablated_heads` are replaced by zero or by their mean, as `ablation` says. `decoding` are fields of the contract's
    `DecodingSettings`: method, beam_size, max_new_tokens, temperature, top_k, top_p, seed; the pipeline's own settings
    are the defaults.
    """
    for name in decoding:
        if name not in DecodingOverrides.model_fields:
            known = ["ablated_heads", "ablation", *DecodingOverrides.model_fields]
            raise UserError(str(unexpected_keyword(pipeline.trace, name, known)))
    traced_model = make_traced_model(pipeline)
    with _user_errors():
        overrides = DecodingOverrides(**decoding)
        heads = [
            AblatedHead(attention_type=attention_type, layer=layer, head=head, ablation=ablation)  # type: ignore[arg-type]
            for attention_type, layer, head in ablated_heads
        ]
    return traced_model.trace(make_request(traced_model, text, decoding=overrides, ablated_heads=heads or None))


def make_request(traced_model: TracedModel, text: Any, **options: Any) -> RunRequest:
    """A request for a text, or for a model of images for an image (a path, a Pillow image or an array)."""
    if traced_model.input == "text":
        if not isinstance(text, str):
            raise UserError(f"Expected a text, found a value of type {type(text).__name__}.")
        with _user_errors():
            return RunRequest(text=text, **options)
    name = os.fsencode(text).decode("utf-8", "replace") if isinstance(text, str | Path) else "image"
    return RunRequest(text=name, image=image_data_url(traced_model.prepare_image(text)), **options)


@contextmanager
def _user_errors() -> Iterator[None]:
    """What is not valid within the block is the user's error."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}.") from None
