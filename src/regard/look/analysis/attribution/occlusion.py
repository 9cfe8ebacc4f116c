"""Occlusion: run a model without what some tokens say, as if nothing stood at their positions (Zeiler & Fergus 2014).

The embeddings of the occluded tokens are replaced by zeros; their positions stay, so that nothing moves. A hook on the
token embedding does this for one side of the model: source and target may share an embedding, and are told apart by the
order of the calls.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from torch import Tensor, nn

from regard.errors import UserError
from regard.model import Seq2SeqLM
from regard.model.autoregressive import AutoregressiveModel

Side = Literal["source", "target"]


def can_occlude(model: nn.Module) -> bool:
    """Whether a model embeds each side once in a pass, in the order of its positions: Transformers do."""
    return isinstance(model, AutoregressiveModel)


@contextmanager
def occlude(model: nn.Module, side: Side, positions: Collection[int]) -> Iterator[None]:
    """Occlude the tokens at these positions of one side in the passes within the block."""
    embeddings = _embeddings(model, side)
    calls = 0

    def replace(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        nonlocal calls
        number, calls = calls, calls + 1
        if shared and number % 2 != (side == "target"):  # a pass embeds the source first
            return output
        output = output.clone()
        output[:, list(positions)] = 0
        return output

    embedding, shared = embeddings
    handle = embedding.register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()


def _embeddings(model: nn.Module, side: Side) -> tuple[nn.Module, bool]:
    """The token embedding of a side, and whether it serves both."""
    source, target = getattr(model, "source_embed_tokens", None), getattr(model, "embed_tokens", None)
    if not isinstance(target, nn.Module):
        raise UserError("The words of this model cannot be occluded: it has no embeddings.")
    if not isinstance(model, Seq2SeqLM):
        return target, False
    if isinstance(source, nn.Module):
        return (source if side == "source" else target), False
    return target, True
