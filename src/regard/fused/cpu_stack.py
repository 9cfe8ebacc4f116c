"""The fused form of a model's stacks for training on a CPU: numba kernels over unpadded sequences.

Dropout, residual sum and norm are one kernel, and so is the attention of short sequences. Padding is removed before the
first layer and put back after the last. A sublayer that the kernels do not support is computed by its own module.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import Context, LayerState, Lengths
from regard.attention.kv_cache import KeyValue
from regard.attention.latent import HasLatentProjections
from regard.attention.multi_head import CrossAttention, HasKVProjections, MultiHeadAttention, SelfAttention
from regard.fused.layers import (
    FusedLayer,
    Norm,
    concat_linears,
    fused_layers,
    head_shape,
    kernel_mask,
    norm_eps,
    share_parameters_as,
)
from regard.kernels.cpu import add_norm
from regard.kernels.cpu.add_norm import dropout, new_seed
from regard.kernels.cpu.attention import cross_attention, self_attention
from regard.kernels.cpu.linear import UnpaddedLayout, linear, relu_feed_forward
from regard.kernels.params import Dropout
from regard.model.activation_checkpointing import checkpointed_pair
from regard.model.embedding import EmbeddingLayer
from regard.model.feed_forward import FeedForward, GatedFeedForward
from regard.model.stack import Stack

MAX_LENGTH = 512
"""The longest sequences whose attention is computed by the kernels, which store the weights of all pairs."""


class CpuStack(Stack):
    """A stack on fused kernels. Its modules and parameters are those of the stack it was made from."""

    skip_padding: bool

    @classmethod
    def of(cls, stack: Stack, *, skip_padding: bool) -> CpuStack:
        fused = share_parameters_as(cls, stack)
        fused.skip_padding = skip_padding
        return fused

    def states(self, memory: Tensor | None = None, capacity: int | None = None) -> list[LayerState]:
        if memory is None or capacity is not None or memory.dtype != torch.float32:
            return super().states(memory, capacity)
        projections: list[nn.Module] = (
            [*self.cross_attention()] if self.cross_kv is None else [self.cross_kv] * len(self.layers)
        )
        return [LayerState(None, _defer_kv(memory, projection)) for projection in projections]

    def forward(self, x: Tensor, context: Context, states: list[LayerState]) -> Tensor:
        """x: # (batch, tokens, width)"""
        cached = any(state.self_kv is not None for state in states)
        if (
            cached
            or context.attention_hook is not None
            or x.dtype != torch.float32
            or x.device.type != "cpu"
            or not x.numel()
        ):
            return super().forward(x, context, [_with_kv(state) for state in states])
        layout = UnpaddedLayout(x.shape[0], x.shape[1], context.lengths if self.skip_padding else None)
        no_padding = self.skip_padding or context.lengths is None
        forward = _ForwardPass(context, layout, no_padding, new_seed() if self.layers.training else 0, {}, [])
        layers = list(fused_layers(self, states))
        if self.cross_kv is not None:
            _project_shared_kv(layers[0], forward)
        residual = layout.unpad(x)
        x = _first_input(layers[0], residual)
        for layer in layers:
            if self.uses_checkpointing:
                modules = layer.modules if self.cross_kv is None else [*layer.modules, self.cross_kv]
                # Some sublayers may be computed by their own modules, and draw from PyTorch's generator.
                residual, x = checkpointed_pair(
                    partial(_run_layer, layer, forward),
                    partial(_first_input, layer),
                    modules,
                    residual,
                    x,
                    preserve_rng=True,
                )
            else:
                residual, x = _run_layer(layer, forward, residual, x)
        return layout.pad(x)


class CpuEmbeddingLayer(EmbeddingLayer):
    """An embedding layer with dropout from the kernels' generator."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        if x.dtype != torch.float32 or x.device.type != "cpu":
            return super().forward(x, context)
        embedded = self.embed_positions.combine(x * self.scale, context.positions, context.lengths)
        normed: Tensor = self.norm(embedded)
        if not self.dropout.training or not self.dropout.p:
            return normed
        return dropout(normed, Dropout(self.dropout.p, new_seed(), 0))


class DeferredKV(tuple[Tensor, Tensor]):
    """The encoder's output in place of keys and values, which are computed once its padding is known."""

    projection: HasKVProjections


def _defer_kv(memory: Tensor, projection: nn.Module) -> KeyValue:
    assert isinstance(projection, HasKVProjections | HasLatentProjections)
    if not isinstance(projection, HasKVProjections):  # the kernels do not support latent attention
        return projection.project_kv(memory)
    deferred = DeferredKV((memory, memory))
    deferred.projection = projection
    return deferred


def _with_kv(state: LayerState) -> LayerState:
    """The state with keys and values as every attention takes them."""
    if not isinstance(state.cross_kv, DeferredKV):
        return state
    return LayerState(state.self_kv, state.cross_kv.projection.project_kv(state.cross_kv[0]))


class _ForwardPass(NamedTuple):
    """What the sublayers of one forward pass share."""

    context: Context
    layout: UnpaddedLayout
    no_padding: bool  # whether there is no padding among the unpadded tokens
    seed: int
    shared_kv: dict[HasKVProjections, Tensor]  # keys and values that all layers attend to, by their projection
    source_layouts: list[UnpaddedLayout]  # of the source, once it is needed


def _first_input(layer: FusedLayer, residual: Tensor) -> Tensor:
    """The input of a layer's first sublayer."""
    return _add_norm(residual, None, layer.sublayers[0].sublayer.norm, None)[1] if layer.pre_norm else residual


def _run_layer(layer: FusedLayer, forward: _ForwardPass, residual: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The residual after a layer, and the next layer's input."""
    for number, sublayer, next_norm in layer.sublayers:
        output = _run_sublayer(sublayer.function, x, forward, layer.state, 2 * number)
        residual, x = _add_norm(residual, output, next_norm, _dropout(sublayer.dropout, forward.seed, 2 * number + 1))
        residual = residual if layer.pre_norm else x
    return residual, x


def _run_sublayer(function: nn.Module, x: Tensor, forward: _ForwardPass, state: LayerState, offset: int) -> Tensor:
    """The output of a sublayer's function.  # (tokens, width)"""
    if type(function) in (FeedForward, GatedFeedForward):
        assert isinstance(function, FeedForward)
        return _feed_forward(function, x, _dropout(function.dropout, forward.seed, offset))
    layout = forward.layout
    if isinstance(function, MultiHeadAttention) and layout.max_length <= MAX_LENGTH:
        has_dropout = function.training and function.dropout
        settings = Dropout(function.dropout, forward.seed, offset) if has_dropout else None
        mask = kernel_mask(function, forward.context)
        if isinstance(function, SelfAttention) and mask is not None and (mask.causal or forward.no_padding):
            qkv = linear(x, *concat_linears(function.q_proj, function.k_proj, function.v_proj))
            return _linear(self_attention(qkv, layout, head_shape(function, mask.causal), settings), function.o_proj)
        source_layout = _source_layout(function, forward, state)
        if source_layout is not None and isinstance(state.cross_kv, DeferredKV):
            query, kv = _linear(x, function.q_proj), _project_kv(forward, state.cross_kv, source_layout)
            shape = head_shape(function, causal=False)
            return _linear(cross_attention(query, kv, layout, source_layout, shape, settings), function.o_proj)
    output: Tensor = function(layout.pad(x), forward.context, _with_kv(state))
    return layout.unpad(output)


def _feed_forward(function: FeedForward, x: Tensor, settings: Dropout[int] | None) -> Tensor:
    up, down = function.up_proj, function.down_proj
    if isinstance(function, GatedFeedForward):
        hidden = function.activation(_linear(x, function.gate_proj)) * _linear(x, up)
    elif function.activation is functional.relu and type(up) is type(down) is nn.Linear:
        return relu_feed_forward(x, up.weight, up.bias, down.weight, down.bias, settings)
    else:
        hidden = function.activation(_linear(x, up))
    return _linear(dropout(hidden, settings), down)


def _source_layout(function: nn.Module, forward: _ForwardPass, state: LayerState) -> UnpaddedLayout | None:
    """The layout of the source that a cross-attention attends to; None if its own module computes it."""
    if not isinstance(function, CrossAttention) or not isinstance(state.cross_kv, DeferredKV):
        return None
    if kernel_mask(function, forward.context) is None or forward.layout.max_length > MAX_LENGTH:
        return None
    if not forward.source_layouts:
        batch, length, _ = state.cross_kv[0].shape
        mask = forward.context.memory  # everything, or up to a length
        lengths = mask.lengths if isinstance(mask, Lengths) else None
        forward.source_layouts.append(UnpaddedLayout(batch, length, lengths))
    layout = forward.source_layouts[0]
    return layout if layout.max_length <= MAX_LENGTH and layout.batch == forward.layout.batch else None


def _project_shared_kv(layer: FusedLayer, forward: _ForwardPass) -> None:
    """Compute the keys and values that all layers attend to, outside of the layers, which may be recomputed."""
    for _, sublayer, _ in layer.sublayers:
        layout = _source_layout(sublayer.function, forward, layer.state)
        if layout is not None and isinstance(layer.state.cross_kv, DeferredKV):
            deferred = layer.state.cross_kv
            forward.shared_kv[deferred.projection] = _project_kv(forward, deferred, layout)


def _project_kv(forward: _ForwardPass, deferred: DeferredKV, layout: UnpaddedLayout) -> Tensor:
    """Keys and values of the source, side by side.  # (source tokens, key + value)"""
    shared = forward.shared_kv.get(deferred.projection)
    if shared is not None:
        return shared
    return linear(layout.unpad(deferred[0]), *concat_linears(deferred.projection.k_proj, deferred.projection.v_proj))


def _add_norm(
    residual: Tensor, output: Tensor | None, norm: nn.Module, settings: Dropout[int] | None
) -> tuple[Tensor, Tensor]:
    assert isinstance(norm, Norm)
    return add_norm.dropout_add_norm(
        residual, output, norm.weight, getattr(norm, "bias", None), norm_eps(norm, residual.dtype),
        centered=isinstance(norm, nn.LayerNorm), dropout=settings,
    )  # fmt: skip


def _linear(x: Tensor, module: nn.Module) -> Tensor:
    if type(module) is nn.Linear:
        return linear(x, module.weight, module.bias)
    out: Tensor = module(x)
    return out


def _dropout(module: nn.Dropout, seed: int, offset: int) -> Dropout[int] | None:
    return Dropout(module.p, seed, offset) if module.training and module.p else None
