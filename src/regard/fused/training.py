"""A model on fused kernels for training: the same weights, the same sums, fewer passes over memory.

`fuse_for_training(model)` gives a model that shares the parameters of another, under the same names. Its stacks compute
what `Stack` computes with fused kernels: Triton's on a GPU (`cuda_stack.py`), numba's on a CPU (`cpu_stack.py`), which
also skip padding. Dropout is drawn from another generator than PyTorch's, with the same probabilities.

With activation checkpointing (`Stack.uses_checkpointing`) dropout that comes from a seed is drawn again from the same
seed, within a captured CUDA graph too.
"""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from regard.fused.layers import DeferredTokenEmbedding, share_parameters_as
from regard.fused.support import stack_unsupported_reason, trains_on_cpu
from regard.kernels import dispatch
from regard.model.activation_checkpointing import has_dropout
from regard.model.autoregressive import AutoregressiveModel
from regard.model.embedding import EmbeddingLayer, TokenEmbedding
from regard.model.stack import Stack

AnyModel = TypeVar("AnyModel", bound=nn.Module)


def fuse_for_training(model: AnyModel, *, fused_loss: bool = False, activation_checkpointing: bool = False) -> AnyModel:
    """A model that trains faster with the same parameters; the model itself where nothing can be fused.

    With `fused_loss`, the loss computes the logits: where that is faster the model returns `DeferredLogits` instead of
    logits, which the losses of `regard.train` accept, and target positions beyond `target_lengths` are not computed.
    """
    stacks = {
        name: child
        for name, child in model.named_children()
        if isinstance(child, Stack) and stack_unsupported_reason(child) is None
    }
    if not stacks and not activation_checkpointing:
        return model
    fused = share_parameters_as(type(model), model)
    if any(map(trains_on_cpu, stacks.values())):
        _fuse_for_cpu(fused, stacks, fused_loss)
    elif dispatch.runs_triton(next(model.parameters()).device):
        _fuse_for_cuda(fused, stacks)
    if fused_loss and isinstance(model, AutoregressiveModel) and model.decoder in stacks.values():
        _defer_logits(fused)
    if activation_checkpointing:
        fused._modules.update(
            {name: child.with_checkpointing() for name, child in fused.named_children() if isinstance(child, Stack)}
        )
    return fused


def can_capture_checkpointing(model: nn.Module) -> bool:
    """Whether a step with activation checkpointing can be captured as a CUDA graph.

    Not where a stack is not fused and has dropout: a graph cannot draw the same mask twice from PyTorch's generator.
    """
    stacks = (module for module in model.modules() if isinstance(module, Stack))
    return not any(stack_unsupported_reason(stack) is not None and has_dropout(stack) for stack in stacks)


def _fuse_for_cpu(model: nn.Module, stacks: dict[str, Stack], fused_loss: bool) -> None:
    from regard.fused.cpu_stack import CpuEmbeddingLayer, CpuStack

    for name, child in list(model.named_children()):
        if name in stacks:
            # What an encoder makes of padding is never used. What a decoder makes of it shows in the logits.
            is_decoder = isinstance(model, AutoregressiveModel) and child is model.decoder
            model._modules[name] = CpuStack.of(stacks[name], skip_padding=fused_loss or not is_decoder)
        elif type(child) is EmbeddingLayer:
            model._modules[name] = share_parameters_as(CpuEmbeddingLayer, child)


def _fuse_for_cuda(model: nn.Module, stacks: dict[str, Stack]) -> None:
    from regard.fused.cuda_stack import CudaEmbeddingLayer, CudaStack

    for name, child in list(model.named_children()):
        if name in stacks:
            model._modules[name] = share_parameters_as(CudaStack, stacks[name])
        elif type(child) is EmbeddingLayer:
            model._modules[name] = share_parameters_as(CudaEmbeddingLayer, child)


def _defer_logits(model: nn.Module) -> None:
    """Leave the logits to the loss."""
    assert isinstance(model, AutoregressiveModel)
    if type(model.lm_head) is TokenEmbedding:
        model.lm_head = share_parameters_as(DeferredTokenEmbedding, model.lm_head)
    elif type(model.embed_tokens) is TokenEmbedding and model.lm_head is None:
        model.embed_tokens = share_parameters_as(DeferredTokenEmbedding, model.embed_tokens)
