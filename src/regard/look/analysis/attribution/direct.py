"""Direct contributions: the hidden state that a token's logit is computed from, as a sum over the parts of the decoder.

The residual stream is a sum: the embedding, and the output of each head, of each feed-forward network, and the biases.
A norm is the only thing on it that is not linear, and it becomes linear if its divisor (the standard deviation, or the
root mean square of RMSNorm) is held at the value that it has in this pass. Every part is passed on through the norms
after it in this way, so that the parts add up to the hidden state, and their products with a token's output embedding
add up to its logit (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"). A part's indirect
effects, through later layers that read it, belong to the parts that read it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.multi_head import Attention, CrossAttentionBase
from regard.errors import UserError
from regard.model.stack import Block, NoResidualBlock, PostNormBlock, Stack

PartKind = Literal["embedding", "decoder", "cross", "feed-forward", "bias"]


class Part(NamedTuple):
    """A summand of the hidden state. Biases of projections and norms are one part each layer."""

    kind: PartKind
    layer: int | None
    head: int | None
    vector: Tensor  # (width,), in float64


@dataclass
class _Recorded:
    """The inputs and outputs of the modules of a stack in one pass, at one position."""

    inputs: dict[nn.Module, Tensor]
    outputs: dict[nn.Module, Tensor]


def direct_parts(decoder: nn.Module | None, run: Callable[[], object], position: int) -> list[Part]:
    """The parts of the decoder's output at a position of the pass that `run` makes."""
    if not isinstance(decoder, Stack) or any(isinstance(block, NoResidualBlock) for block in decoder.blocks()):
        raise UserError("Direct contributions need a Transformer with residual connections, and this model is none.")
    with _recording(decoder, position) as recorded:
        run()
    parts = [Part("embedding", None, None, recorded.inputs[decoder])]
    for layer, block in enumerate(decoder.blocks()):
        for sublayer in block.sublayers:
            parts += _summands(sublayer.function, layer, recorded)
            if isinstance(block, PostNormBlock):
                parts = _through_norm(sublayer.norm, recorded.inputs[sublayer.norm], parts, layer)
    parts = _through_norm(decoder.final_norm, recorded.inputs[decoder.final_norm], parts, len(decoder.layers) - 1)
    return _merge_biases(parts)


@contextmanager
def _recording(decoder: Stack, position: int) -> Iterator[_Recorded]:
    """Record what enters and leaves the modules of the stack."""
    recorded = _Recorded({}, {})

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        recorded.inputs[module] = inputs[0][0, position].detach().double().cpu()
        recorded.outputs[module] = output[0, position].detach().double().cpu()

    modules: list[nn.Module] = [decoder, decoder.final_norm]
    for block in decoder.blocks():
        for sublayer in block.sublayers:
            modules += [sublayer.function, sublayer.norm]
            if isinstance(sublayer.function, Attention):
                modules.append(sublayer.function.o_proj)
    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(record).remove)
        yield recorded


def _summands(function: nn.Module, layer: int, recorded: _Recorded) -> list[Part]:
    """A sublayer's output: each head and the bias of an attention, or a feed-forward network as a whole."""
    output = recorded.outputs[function]
    if not isinstance(function, Attention):
        return [Part("feed-forward", layer, None, output)]
    kind: PartKind = "cross" if isinstance(function, CrossAttentionBase) else "decoder"
    heads = recorded.inputs[function.o_proj].view(function.heads, -1)  # (heads, value_head_dim)
    if isinstance(function.o_proj, nn.Linear):
        weight = function.o_proj.weight.detach().double().cpu().view(len(output), function.heads, -1)
        vectors = torch.einsum("whd,hd->hw", weight, heads)  # (heads, width)
    else:  # without an output projection the heads are concatenated
        vectors = torch.block_diag(*heads)
    parts = [Part(kind, layer, head, vector) for head, vector in enumerate(vectors)]
    return [*parts, Part("bias", layer, None, output - vectors.sum(dim=0))]


def _through_norm(norm: nn.Module, x: Tensor, parts: list[Part], layer: int) -> list[Part]:
    """The parts after a norm of their sum x, whose divisor is held at its value for x."""
    if isinstance(norm, nn.Identity):
        return parts
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    weight = torch.ones_like(x) if norm.weight is None else norm.weight.detach().double().cpu()
    eps = torch.finfo(norm.weight.dtype).eps if norm.eps is None else norm.eps
    if isinstance(norm, nn.RMSNorm):
        divisor = (x.square().mean() + eps).sqrt()
        return [part._replace(vector=part.vector / divisor * weight) for part in parts]
    divisor = (x.var(unbiased=False) + eps).sqrt()
    found = [part._replace(vector=(part.vector - part.vector.mean()) / divisor * weight) for part in parts]
    if norm.bias is not None:
        found.append(Part("bias", layer, None, norm.bias.detach().double().cpu()))
    return found


def _merge_biases(parts: list[Part]) -> list[Part]:
    """All biases of a layer as one part."""
    merged: dict[tuple[Any, ...], Part] = {}
    for part in parts:
        key = part[:3]
        known = merged.get(key)
        merged[key] = part if known is None else part._replace(vector=known.vector + part.vector)
    return list(merged.values())


def blocks_of(decoder: nn.Module) -> list[Block]:
    """The blocks of a decoder; none if it is not a stack of them."""
    return decoder.blocks() if isinstance(decoder, Stack) else []
