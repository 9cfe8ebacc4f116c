"""The feed-forward part of a layer, of every kind there is. Where no kind is named, the dense one is meant."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from regard.model.dense import Activation, FeedForward, FeedForwardConfig, GatedFeedForward
from regard.model.experts import Experts, ExpertsConfig


def _kind(values: Any) -> Any:
    """Of a config, or of the plain data for one."""
    return values.get("kind", "dense") if isinstance(values, Mapping) else getattr(values, "kind", "dense")


AnyFeedForward = Annotated[
    Annotated[FeedForwardConfig, Tag("dense")] | Annotated[ExpertsConfig, Tag("experts")], Discriminator(_kind)
]
"""Every kind of feed-forward a layer can have, told apart by `kind`."""

__all__ = [
    "Activation",
    "AnyFeedForward",
    "Experts",
    "ExpertsConfig",
    "FeedForward",
    "FeedForwardConfig",
    "GatedFeedForward",
]
