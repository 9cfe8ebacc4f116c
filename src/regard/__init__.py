"""regard: train, run, serve and look into Transformers, from plain files."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from regard.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from regard.look.trace import Trace
    from regard.run import Loaded

try:
    __version__ = version("regard")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0.1.0"

__all__ = ["UserError", "__version__", "load", "trace"]


def load(folder: "str | Path") -> "Loaded":
    """Open a run folder, or a model that ships with regard by its name: `regard.load("en-tr").translate("Hello.")`."""
    from regard.task.opening import open_model

    return open_model(folder)


def trace(model: "Loaded", text: "Any", **settings: "Any") -> "Trace":
    """Watch a model at work on a text: `regard.trace(model, "Hello.")`, which is `model.trace("Hello.")`.

    `settings` are those of `regard.look.tracing.trace_model`: how to decode, and heads to switch off.
    """
    from regard.look.tracing import trace_model

    return trace_model(model, text, **settings)
