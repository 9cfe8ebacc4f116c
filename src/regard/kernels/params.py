"""What the CPU and the CUDA kernels are told in the same way."""

from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

Seed = TypeVar("Seed", int, Tensor)


class Dropout(NamedTuple, Generic[Seed]):
    """Dropout from a counter-based generator, so that the backward pass draws the same mask again.

    The seed is new for every forward pass; on a GPU it is a tensor on the device. The offset numbers the dropout layers
    of the pass.
    """

    p: float
    seed: Seed
    offset: int


class HeadShape(NamedTuple):
    """How attention heads lie side by side in a token's row, and whether they are causal."""

    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
