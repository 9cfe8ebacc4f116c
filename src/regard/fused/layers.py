"""The layers of a model as fused kernels take them, on a CPU and on a GPU.

How a stack's sublayers are grouped around its norms, which attention masks the kernels support, the weights (shared
with the model, concatenated where they multiply the same input), and an output projection that leaves its logits to the
loss, which computes them some rows at a time (a fused linear cross-entropy).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import Causal, Context, Full, LayerState, Lengths
from regard.attention.multi_head import CrossAttention, HasKVProjections, MultiHeadAttention, SelfAttention
from regard.kernels import dispatch
from regard.kernels.params import HeadShape
from regard.model.autoregressive import AutoregressiveModel
from regard.model.embedding import TokenEmbedding
from regard.model.feed_forward import FeedForward, GatedFeedForward
from regard.model.stack import Block, PostNormBlock, Stack, Sublayer

Module = TypeVar("Module", bound=nn.Module)
Norm = nn.LayerNorm | nn.RMSNorm
MAX_HEAD_DIM = 128
CAUSAL_PATTERNS = (Causal(), Causal() & Full(), Full() & Causal())


class FusedSublayer(NamedTuple):
    """A sublayer, and the norm that is fused with its residual sum."""

    number: int  # in its stack
    sublayer: Sublayer
    next_norm: nn.Module  # of the next sublayer in a pre-norm stack, its own in a post-norm stack


class FusedLayer(NamedTuple):
    sublayers: list[FusedSublayer]
    state: LayerState
    pre_norm: bool
    modules: list[nn.Module]  # those with weights, each once


def fused_layers(stack: Stack, states: list[LayerState]) -> Iterator[FusedLayer]:
    """The layers of a stack that is supported."""
    blocks = stack.blocks()
    pre_norm = not isinstance(blocks[0], PostNormBlock)
    sublayers = [sublayer for block in blocks for sublayer in block.sublayers]
    norms = [sublayer.norm for sublayer in sublayers]
    next_norms = [*norms[1:], stack.final_norm] if pre_norm else norms
    first = 0
    for block, state in zip(blocks, states, strict=True):
        numbers = range(first, first + len(block.sublayers))
        first += len(block.sublayers)
        modules: list[nn.Module] = [block, next_norms[first - 1]] if pre_norm else [block]
        fused = [FusedSublayer(number, sublayers[number], next_norms[number]) for number in numbers]
        yield FusedLayer(fused, state, pre_norm, modules)


class KernelMask(NamedTuple):
    """An attention mask that the kernels support: causal or not, and the number of keys in each row (all, if None)."""

    causal: bool
    lengths: Tensor | None


def kernel_mask(attention: MultiHeadAttention, context: Context) -> KernelMask | None:
    """The mask of an attention in this pass; None if the kernels do not support it."""
    sizes = attention.sizes
    if attention.kind != "scaled" or sizes.value_head_dim != sizes.head_dim or sizes.head_dim > MAX_HEAD_DIM:
        return None
    if not isinstance(attention.o_proj, nn.Linear):
        return None
    if isinstance(attention, CrossAttention):
        match context.memory:
            case Full():
                return KernelMask(False, None)
            case Lengths():
                return KernelMask(False, context.memory.lengths)
        return None
    assert isinstance(attention, SelfAttention)
    if attention.rotary is not None or context.documents is not None:
        return None
    if attention.pattern in CAUSAL_PATTERNS:
        return KernelMask(True, None)  # padding comes after all tokens of a row
    return KernelMask(False, context.lengths) if attention.pattern == Full() else None


def head_shape(attention: MultiHeadAttention, causal: bool) -> HeadShape:
    sizes = attention.sizes
    return HeadShape(sizes.heads, sizes.kv_heads, sizes.head_dim, causal)


class LinearWeights(NamedTuple):
    """A linear layer, or several of the same input.  weight: # (size, width); bias: # (size,)"""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, *linears: nn.Module) -> LinearWeights:
        """The weights of linear layers below each other, without their gradients."""
        weight, bias = concat_linears(*linears)
        return cls(weight.detach(), None if bias is None else bias.detach())

    def concat(self, other: LinearWeights) -> LinearWeights:
        """The weights of another linear layer below these."""
        bias = None if self.bias is None or other.bias is None else torch.cat((self.bias, other.bias))
        return LinearWeights(torch.cat((self.weight, other.weight)), bias)


class NormWeights(NamedTuple):
    """A norm in float32; the bias is zero where the norm has none."""

    weight: Tensor
    bias: Tensor
    eps: float
    centered: bool
    """Whether it is layer normalization; RMSNorm otherwise."""

    @classmethod
    def of(cls, norm: nn.Module) -> NormWeights:
        assert isinstance(norm, Norm)
        weight, bias = norm.weight.detach().float(), getattr(norm, "bias", None)
        bias = torch.zeros_like(weight) if bias is None else bias.detach().float()
        return cls(weight, bias, norm_eps(norm, torch.float32), isinstance(norm, nn.LayerNorm))


class LayerWeights:
    """The weights of one layer of a decoder, or of an encoder."""

    def __init__(self, block: Block) -> None:
        first, *cross, last = block.sublayers
        attention, feed_forward = first.function, last.function
        assert isinstance(attention, SelfAttention)
        assert isinstance(feed_forward, FeedForward)
        sizes = attention.sizes
        self.heads, self.head_dim, self.kv_width = sizes.heads, sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.qkv = LinearWeights.of(attention.q_proj, attention.k_proj, attention.v_proj)
        self.self_out = LinearWeights.of(attention.o_proj)
        self.query: LinearWeights | None = None
        self.cross_out: LinearWeights | None = None
        if cross:
            cross_attention = cross[0].function
            assert isinstance(cross_attention, CrossAttention)
            self.query = LinearWeights.of(cross_attention.q_proj)
            self.cross_out = LinearWeights.of(cross_attention.o_proj)
        self.up, self.down = LinearWeights.of(feed_forward.up_proj), LinearWeights.of(feed_forward.down_proj)
        self.gate = LinearWeights.of(feed_forward.gate_proj) if isinstance(feed_forward, GatedFeedForward) else None
        self.activation = feed_forward.activation
        self.norms = [NormWeights.of(sublayer.norm) for sublayer in block.sublayers]
        self.pre_norm = not isinstance(block, PostNormBlock)


def lm_head_weights(model: AutoregressiveModel, tokens: Tensor | None = None) -> LinearWeights:
    """The output projection of a model, or the part of it for some tokens.  tokens: # (some,)"""
    weight = (model.embed_tokens if model.lm_head is None else model.lm_head).weight.detach()
    bias = None if model.lm_head_bias is None else model.lm_head_bias.detach()
    if tokens is None:
        return LinearWeights(weight, bias)
    return LinearWeights(weight[tokens], None if bias is None else bias[tokens])


def norm_eps(norm: Norm, dtype: torch.dtype) -> float:
    """The ε of a norm, which PyTorch chooses by the precision where none is given."""
    return torch.finfo(dtype).eps if norm.eps is None else norm.eps


def concat_linears(
    *linears: nn.Module, concat: Callable[..., Tensor] = lambda *tensors: torch.cat(tensors)
) -> tuple[Tensor, Tensor | None]:
    """The weights of several linear layers of the same input, and their biases if all have one."""
    parts = [linear for linear in linears if isinstance(linear, nn.Linear)]
    assert len(parts) == len(linears)
    biases = [part.bias for part in parts if part.bias is not None]
    if len(parts) == 1:
        return parts[0].weight, parts[0].bias
    return concat(*(part.weight for part in parts)), concat(*biases) if len(biases) == len(parts) else None


def concatenated_weights(model: nn.Module) -> list[Tensor]:
    """The weights that training concatenates, in that order. Where they lie so in memory, no copy is needed."""
    found: dict[Tensor, None] = {}  # a set that keeps its order
    for module in model.modules():
        if isinstance(module, SelfAttention):
            linears = [module.q_proj, module.k_proj, module.v_proj]
        elif isinstance(module, HasKVProjections) and not (isinstance(module, CrossAttention) and module.shared_kv):
            linears = [module.k_proj, module.v_proj]
        else:
            continue
        found |= dict.fromkeys(linear.weight for linear in linears)
        found |= dict.fromkeys(linear.bias for linear in linears if linear.bias is not None)
    return list(found)


def share_parameters_as(kind: type[Module], module: nn.Module) -> Module:
    """A module of another class with the same submodules and parameters, under the same names.

    Submodules can be replaced in one without the other.
    """
    shared = kind.__new__(kind)
    shared.__dict__.update(module.__dict__)
    shared._modules = dict(module._modules)
    return shared


class DeferredLogits(NamedTuple):
    """The input of an output projection that is not computed yet."""

    x: Tensor  # (batch, tokens, width)
    weight: Tensor  # (vocab_size, width)
    bias: Tensor | None  # (vocab_size,)

    def logits(self) -> Tensor:
        """(batch, tokens, vocab_size)"""
        return functional.linear(self.x, self.weight, self.bias)


class DeferredTokenEmbedding(TokenEmbedding):
    """An output projection that leaves its logits to the loss, if there are gradients to compute.

    On a GPU it also computes its own gradient as an embedding, together with that of the tied output projection.
    """

    _weight_after_lookup: Tensor | None = None
    """The weight as the lookup returned it, so that the gradient of a tied projection flows through the lookup."""

    def forward(self, ids: Tensor) -> Tensor:
        self._weight_after_lookup = None
        if not dispatch.runs_triton(ids.device) or ids.dtype != torch.int64 or not torch.is_grad_enabled():
            return super().forward(ids)
        from regard.kernels.cuda.embedding import embedding

        embedded, self._weight_after_lookup = embedding(ids, self.weight)
        return embedded

    def logits(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        on_cpu = x.device.type == "cpu" and x.dtype == torch.float32
        fused = on_cpu or (dispatch.runs_triton(x.device) and x.dtype != torch.float64)
        if not fused or not torch.is_grad_enabled():
            return super().logits(x, bias)
        weight = self.weight if self._weight_after_lookup is None else self._weight_after_lookup
        self._weight_after_lookup = None
        return cast(Tensor, DeferredLogits(x, weight, bias))
