"""`model.trace(text)`: what `regard.load` gives, watched while it works."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from regard.errors import UserError
from regard.look.opening import subject_of
from regard.look.readers import PicturesSubject, as_address
from regard.look.subject import Subject
from regard.look.trace import Trace
from regard.look.wire import How, RunRequest, SomeDecodingSettings, Switched
from regard.run import Loaded

Head = tuple[str, int, int]
"""A side ("encoder", "decoder", "cross"), a layer and a head, both counted from 0."""


def trace_model(model: Loaded, text: Any, *, off: Sequence[Head] = (), how: How = "zero", **decoding: Any) -> Trace:
    """Run a model on a text (of a classifier, a picture) and keep what was seen.

    `off` are heads that are switched off, `how` they are. `decoding` are `DecodingSettings` of the contract: method,
    beams, longest, temperature, top_k, top_p, seed; those left out are the model's own.
    """
    subject = subject_of(model)
    try:
        settings = SomeDecodingSettings(**decoding)
        switched = [Switched(side=side, layer=layer, head=head, how=how) for side, layer, head in off]  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}.") from None
    return subject.trace(request_for(subject, text, decoding=settings, off=switched or None))


def request_for(subject: Subject, text: Any, **more: Any) -> RunRequest:
    """What to run: a text, or for a classifier a picture (a path, an image of Pillow, an array)."""
    if not isinstance(subject, PicturesSubject):
        if not isinstance(text, str):
            raise UserError(f"Expected a text, found a value of type {type(text).__name__}.")
        return RunRequest(text=text, **more)
    name = str(text) if isinstance(text, str | Path) else "picture"
    return RunRequest(text=name, picture=as_address(_picture(subject, text)), **more)


def _picture(subject: PicturesSubject, picture: Any) -> Any:
    """A picture in the size that the model wants."""
    return subject.seen(subject.classifier.pixels(picture))
