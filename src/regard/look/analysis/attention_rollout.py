"""Attention rollout (Abnar & Zuidema 2020): attention followed through several layers, back to the input.

The attention of a late layer is between vectors that already mix many tokens. Rollout takes each layer as a mixture
of its attention (the mean over the heads) and of the residual connection, half and half, and multiplies these mixtures
from the first layer to the last. Values and feed-forward networks do not enter, so it is an approximation.
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def attention_rollout(weights: Tensor, layer: int, start: Tensor | None = None) -> Tensor:
    """How much of each input token is in each token after `layer`, in float32; the rows add up to 1.

    weights: # (layers, heads, tokens, tokens), self-attention; gives (tokens, tokens)
    start: # (rows, tokens), weights of the tokens after the layer; gives (rows, tokens)

    The product is computed from the last layer down, so that a few rows cost no more than they have to.
    """
    result = torch.eye(weights.shape[-1]) if start is None else start.float()
    for layer_weights in weights[: layer + 1].flip(0).unbind():
        result = result @ _with_residual(layer_weights)
    return result


def rollout_of_each_layer(weights: Tensor) -> Iterator[Tensor]:
    """Attention rollout up to each layer, from the first to the last.  # (tokens, tokens)"""
    result = torch.eye(weights.shape[-1])
    for layer_weights in weights.unbind():
        result = _with_residual(layer_weights) @ result
        yield result


def _with_residual(weights: Tensor) -> Tensor:
    """0.5 · mean over the heads + 0.5 · I, with rows that add up to 1.  # (heads, tokens, tokens) → (tokens, tokens)"""
    mean = torch.zeros(weights.shape[-2:])
    for head in weights.unbind():  # one at a time: a float32 copy of all would be large
        mean += head
    mixed = 0.5 * mean / len(weights) + 0.5 * torch.eye(len(mean))
    return mixed / mixed.sum(dim=-1, keepdim=True)
