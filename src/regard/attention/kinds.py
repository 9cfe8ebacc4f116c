"""Every kind of attention a layer can have."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from regard.attention.heads import HeadsConfig
from regard.attention.latent import LatentConfig


def _kind(value: Any) -> str:
    """Which kind settings are of; those that do not say are heads."""
    kind = value.get("kind", "heads") if isinstance(value, Mapping) else getattr(value, "kind", "heads")
    return kind if isinstance(kind, str) else repr(kind)


AnyAttention = Annotated[
    Annotated[HeadsConfig, Tag("heads")] | Annotated[LatentConfig, Tag("latent")], Discriminator(_kind)
]
