"""Which models have a fused form. Each function gives the reason why a model has none, or None if it has one."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from regard.attention.multi_head import Attention, MultiHeadAttention, SelfAttention
from regard.attention.pattern import Full, Pattern
from regard.attention.positions.absolute import Added, Position
from regard.errors import how_to_install
from regard.fused.layers import CAUSAL_PATTERNS, Norm
from regard.kernels import dispatch
from regard.model.autoregressive import AutoregressiveModel
from regard.model.embedding import EmbeddingLayer
from regard.model.feed_forward import FeedForward, GatedFeedForward
from regard.model.stack import Block, NoResidualBlock, Stack

FULL_PATTERNS = (Full(), Full() & Full())
_MIN_VOCAB_SIZE = 64
_NO_NUMBA = f"numba is not installed; {how_to_install('fast')}"
_NO_TRITON = "Triton is not installed (it comes with PyTorch for NVIDIA GPUs)"


def cpu_decoder_unsupported_reason(model: Any) -> str | None:
    """Why there is no `CpuDecoder` of a model."""
    if not dispatch.has_numba():
        return _NO_NUMBA
    if not isinstance(model, AutoregressiveModel):
        return f"it is a {type(model).__name__}, not an autoregressive Transformer"
    weight = model.embed_tokens.weight
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return f"it needs a float32 model on a CPU, and this one is {weight.dtype} on {weight.device}"
    if len(weight) < _MIN_VOCAB_SIZE:
        return f"the vocabulary is smaller than {_MIN_VOCAB_SIZE}"
    return embedding_unsupported_reason(model.embedding) or _first_reason(
        model.decoder, CAUSAL_PATTERNS, model_width=True
    )


def cuda_decoder_unsupported_reason(model: Any) -> str | None:
    """Why there is no `CudaDecoder` of a model."""
    if not dispatch.has_triton():
        return _NO_TRITON
    if not isinstance(model, AutoregressiveModel):
        return f"it is a {type(model).__name__}, not an autoregressive Transformer"
    weight = model.embed_tokens.weight
    if not dispatch.runs_triton(weight.device):
        return f"it needs an NVIDIA GPU, and this model is on {weight.device}"
    if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"it computes in float32, bfloat16 or float16, and this model is {weight.dtype}"
    return embedding_unsupported_reason(model.embedding) or _first_reason(
        model.decoder, CAUSAL_PATTERNS, model_width=False
    )


def training_unsupported_reason(model: nn.Module, precision: str) -> str | None:
    """Why a model is not trained with fused kernels in this precision."""
    stacks = [child for child in model.children() if isinstance(child, Stack)]
    if not stacks:
        return "it has no stack of layers"
    reason = next((reason for reason in map(stack_unsupported_reason, stacks) if reason is not None), None)
    if reason is None and precision != "float32" and any(map(trains_on_cpu, stacks)):
        return f"on a CPU it is for float32, and this run is in {precision}"
    return reason


def stack_unsupported_reason(stack: Stack) -> str | None:
    """Why a stack is not trained with fused kernels."""
    if type(stack) is not Stack:
        return f"it is a {type(stack).__name__}, not a plain Stack"
    weight = next(stack.parameters())
    if trains_on_cpu(stack):
        if not dispatch.has_numba():
            return _NO_NUMBA
        other = next((each.dtype for each in stack.parameters() if each.dtype != torch.float32), None)
        if other is not None:
            return f"on a CPU it is for float32, and this model is {other}"
    elif not dispatch.has_triton():
        return _NO_TRITON
    elif weight.device.type not in ("cpu", "cuda"):
        return f"it is for CPUs and NVIDIA GPUs, and this model is on {weight.device}"
    return next((reason for block in stack.blocks() if (reason := _block_structure_reason(block))), None)


def trains_on_cpu(stack: Stack) -> bool:
    """Whether the fused form of a stack is the one for a CPU."""
    device = next(stack.parameters()).device
    return device.type == "cpu" and not dispatch.runs_triton(device)


def encoder_is_supported(encoder: Stack, embedding: EmbeddingLayer) -> bool:
    """Whether the compiled encoder for a CPU can compute all parts of this one."""
    reason = embedding_unsupported_reason(embedding) or _first_reason(encoder, FULL_PATTERNS, model_width=True)
    return reason is None


def embedding_unsupported_reason(embedding: EmbeddingLayer) -> str | None:
    positions = embedding.embed_positions
    if not isinstance(positions, Added) and type(positions) is not Position:
        return "positions must be added to the embeddings, or be rotary"
    return None if isinstance(embedding.norm, nn.Identity) else "embeddings must not be normalized"


def _first_reason(stack: Stack, patterns: Sequence[Pattern], *, model_width: bool) -> str | None:
    """The first reason of any layer. With `model_width` heads must together be as wide as the model."""
    return next((reason for block in stack.blocks() if (reason := _block_reason(block, patterns, model_width))), None)


def _block_structure_reason(block: Block) -> str | None:
    if isinstance(block, NoResidualBlock):
        return "a layer has no residual connection"
    if all(isinstance(sublayer.function, Attention) for sublayer in block.sublayers):
        return "a layer has no feed-forward"
    if not all(isinstance(sublayer.norm, Norm) for sublayer in block.sublayers):
        return "norms must be LayerNorm or RMSNorm"
    return None


def _block_reason(block: Block, patterns: Sequence[Pattern], model_width: bool) -> str | None:
    if (reason := _block_structure_reason(block)) is not None:
        return reason
    for function, _, _ in block.sublayers:
        if isinstance(function, Attention):
            if reason := _attention_reason(function, patterns, model_width):
                return reason
        elif type(function) not in (FeedForward, GatedFeedForward):
            return f"a feed-forward is a {type(function).__name__}"
    return None


def _attention_reason(attention: Attention, patterns: Sequence[Pattern], model_width: bool) -> str | None:
    if not isinstance(attention, MultiHeadAttention) or attention.kind != "scaled":
        return "attention must be scaled dot-product attention"
    sizes = attention.sizes
    if sizes.value_head_dim != sizes.head_dim or not isinstance(attention.o_proj, nn.Linear):
        return "keys and values must be equally wide, and there must be an output projection"
    if model_width and sizes.heads * sizes.head_dim != attention.o_proj.out_features:
        return "heads must together be as wide as the model"
    if isinstance(attention, SelfAttention):
        if attention.rotary is not None and not attention.rotary.is_static:
            return "rotary frequencies must not depend on the length"
        if attention.pattern not in patterns:
            return "self-attention must be over all earlier tokens"
    return None
