"""The fused form of a model's stacks for training on a GPU: Triton kernels.

Dropout, residual sum and the next norm are one kernel, and so is the attention of short sequences; query, key and value
come from one product. A sublayer that the kernels do not support is computed by its own module.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from regard.attention import Context, LayerState
from regard.attention.kv_cache import KeyValue
from regard.attention.latent import HasLatentProjections
from regard.attention.multi_head import HasKVProjections, MultiHeadAttention, SelfAttention, split_heads
from regard.attention.positions.absolute import Added, Learned
from regard.fused.layers import FusedLayer, Norm, concat_linears, fused_layers, head_shape, kernel_mask, norm_eps
from regard.kernels import dispatch
from regard.kernels.cuda import attention, cublaslt
from regard.kernels.cuda.activation import ACTIVATIONS, activation_dropout
from regard.kernels.cuda.add_norm import dropout_add_norm
from regard.kernels.cuda.embedding import add_positions
from regard.kernels.cuda.linear import concat, gelu_feed_forward, linear, linears
from regard.kernels.params import Dropout
from regard.model.activation_checkpointing import checkpointed_pair, has_dropout
from regard.model.embedding import EmbeddingLayer
from regard.model.feed_forward import FeedForward
from regard.model.stack import Stack


class CudaEmbeddingLayer(EmbeddingLayer):
    """An embedding layer that scales, adds positions and drops in one kernel."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        supported = isinstance(self.embed_positions, Added) and isinstance(self.norm, nn.Identity)
        if not supported or context.attention_hook is not None or not dispatch.runs_triton(x.device):
            return super().forward(x, context)
        p = self.dropout.p if self.dropout.training else 0.0
        encoding = self._encoding(context)
        return add_positions(x, encoding, self.scale, Dropout(p, _new_seed(x.device), 0) if p else None)

    def _encoding(self, context: Context) -> Tensor:
        """The positional encoding of each token.  # (tokens, width) or (rows, tokens, width)"""
        from_zero = isinstance(context.start, int) and not context.start
        consecutive = from_zero and context.lengths is None and context.documents is None
        positions = self.embed_positions
        if isinstance(positions, Learned) and consecutive and context.queries <= len(positions.weight):
            return positions.weight[: context.queries]  # no lookup is needed
        return positions.encode(context.positions, context.lengths)


class CudaStack(Stack):
    """A stack on fused kernels. Its modules and parameters are those of the stack it was made from."""

    def forward(self, x: Tensor, context: Context, states: list[LayerState]) -> Tensor:
        if context.attention_hook is not None or any(state.self_kv is not None for state in states):
            return super().forward(x, context, states)
        seed = _new_seed(x.device)
        layers = list(fused_layers(self, states))
        residual, x = _first_norm(layers[0], x)
        for layer in layers:
            run = partial(self._run_layer, layer, context, seed)
            if self.uses_checkpointing:
                preserve_rng = self._draws(layer, x, context)
                residual, x = checkpointed_pair(
                    run, partial(_first_input, layer), layer.modules, residual, x, preserve_rng=preserve_rng
                )
            else:
                residual, x = run(residual, x)
        return x

    def project_memory(self, memory: Tensor) -> list[KeyValue]:
        """As `Stack` does, with keys and values of a layer from one product."""
        if self.cross_kv is not None:
            return [_project_kv(self.cross_kv, memory)] * len(self.layers)
        return [_project_kv(projection, memory) for projection in self.cross_attention()]

    def _run_layer(
        self, layer: FusedLayer, context: Context, seed: Tensor, residual: Tensor, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The residual after a layer, and the next layer's input."""
        for number, sublayer, next_norm in layer.sublayers:
            output = self._run_sublayer(sublayer.function, x, context, layer.state, seed, 2 * number)
            dropout = self._dropout(sublayer.dropout.p, seed, 2 * number + 1)
            residual, x = _add_norm(residual, output, next_norm, layer.pre_norm, dropout)
        return residual, x

    def _draws(self, layer: FusedLayer, x: Tensor, context: Context) -> bool:
        """Whether some sublayer is computed by its own module and draws from PyTorch's generator."""
        functions = (each.sublayer.function for each in layer.sublayers)
        return any(has_dropout(function) and not _is_fused(function, x, context, layer.state) for function in functions)

    def _dropout(self, p: float, seed: Tensor, offset: int) -> Dropout[Tensor] | None:
        # The fused stack is not told whether the model trains, its layers are.
        return Dropout(p, seed, offset) if self.layers.training and p else None

    def _run_sublayer(
        self, function: nn.Module, x: Tensor, context: Context, state: LayerState, seed: Tensor, offset: int
    ) -> Tensor:
        """The output of a sublayer's function."""
        if _is_fused(function, x, context, state):
            if isinstance(function, MultiHeadAttention):
                dropout = self._dropout(function.dropout, seed, offset)
                return _attention(function, x, context, state, dropout)
            assert isinstance(function, FeedForward)
            return _feed_forward(function, x, self._dropout(function.dropout.p, seed, offset))
        if isinstance(function, SelfAttention):
            projections = (function.q_proj, function.k_proj, function.v_proj)
            query, *key_value = linears(x, *((each.weight, each.bias) for each in projections))
            key, value = (split_heads(each, function.sizes.kv_heads) for each in key_value)
            attended = function.attend_projected(split_heads(query, function.heads), key, value, context, state)
            if not isinstance(function.o_proj, nn.Linear):
                return function.merge_heads(attended)
            return _linear(attended.transpose(1, 2).flatten(2), function.o_proj)
        output: Tensor = function(x, context, state)
        return output


class ProjectedKV(tuple[Tensor, Tensor]):
    """Keys and values as every attention takes them, and side by side as they were computed.  # (rows, keys, both)"""

    kv: Tensor


def _project_kv(projection: nn.Module, memory: Tensor) -> KeyValue:
    assert isinstance(projection, HasKVProjections | HasLatentProjections)
    if not isinstance(projection, HasKVProjections):
        return projection.project_kv(memory)
    if projection.k_proj.out_features != projection.v_proj.out_features:
        return projection.project_kv(memory)
    kv = linear(memory, *concat_linears(projection.k_proj, projection.v_proj, concat=concat))
    key, value = kv.unflatten(2, (2, projection.kv_heads, -1)).permute(2, 0, 3, 1, 4)
    projected = ProjectedKV((key, value))
    projected.kv = kv
    return projected


def _is_fused(function: nn.Module, x: Tensor, context: Context, state: LayerState) -> bool:
    """Whether the kernels compute a sublayer in this pass, with dropout from their own generator."""
    if not isinstance(function, MultiHeadAttention):
        return type(function) is FeedForward and function.activation_name in ACTIVATIONS
    if kernel_mask(function, context) is None or x.shape[1] > attention.MAX_LENGTH:
        return False
    if isinstance(function, SelfAttention):
        return True
    if not isinstance(state.cross_kv, ProjectedKV):
        return False
    rows, keys, _ = state.cross_kv.kv.shape
    return keys <= attention.MAX_LENGTH and rows == x.shape[0]


def _attention(
    function: MultiHeadAttention, x: Tensor, context: Context, state: LayerState, dropout: Dropout[Tensor] | None
) -> Tensor:
    mask = kernel_mask(function, context)
    assert mask is not None
    shape = head_shape(function, mask.causal)
    if isinstance(function, SelfAttention):
        qkv = linear(x, *concat_linears(function.q_proj, function.k_proj, function.v_proj, concat=concat))
        return _linear(attention.self_attention(qkv, mask.lengths, shape, dropout), function.o_proj)
    assert isinstance(state.cross_kv, ProjectedKV)
    query = _linear(x, function.q_proj)
    return _linear(attention.cross_attention(query, state.cross_kv.kv, mask.lengths, shape, dropout), function.o_proj)


def _feed_forward(function: FeedForward, x: Tensor, dropout: Dropout[Tensor] | None) -> Tensor:
    up, down = function.up_proj, function.down_proj
    if dropout is None and function.activation_name == cublaslt.ACTIVATION:
        output = gelu_feed_forward(x, up.weight, up.bias, down.weight, down.bias)
        if output is not None:
            return output
    return _linear(activation_dropout(_linear(x, up), function.activation_name, dropout), down)


def _linear(x: Tensor, module: nn.Module) -> Tensor:
    assert isinstance(module, nn.Linear)
    return linear(x, module.weight, module.bias)


def _first_input(layer: FusedLayer, residual: Tensor) -> Tensor:
    """The input of a layer's first sublayer."""
    return _first_norm(layer, residual)[1]


def _first_norm(layer: FusedLayer, residual: Tensor) -> tuple[Tensor, Tensor]:
    """The residual before a layer and the input of its first sublayer, from one function, which adds their
    gradients."""
    if not layer.pre_norm:
        return residual, residual
    return _add_norm(residual, None, layer.sublayers[0].sublayer.norm, True, None)


def _add_norm(
    residual: Tensor, output: Tensor | None, norm: nn.Module, pre_norm: bool, dropout: Dropout[Tensor] | None
) -> tuple[Tensor, Tensor]:
    assert isinstance(norm, Norm)
    return dropout_add_norm(
        residual, output, norm.weight, getattr(norm, "bias", None), norm_eps(norm, residual.dtype),
        pre_norm=pre_norm, centered=isinstance(norm, nn.LayerNorm), dropout=dropout,
    )  # fmt: skip


def _new_seed(device: torch.device) -> Tensor:
    """A seed on the device, from PyTorch's generator.  # (1,)"""
    return torch.randint(1 << 30, (1,), device=device)
