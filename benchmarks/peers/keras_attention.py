"""Additive attention against Keras' `AdditiveAttention` on PyTorch.

Keras takes queries and keys that have been projected already, so it is given the projections of ours. It masks scores
by subtracting 1e9 instead of setting them to −∞, and its score vector vᵀ is its `scale`.
"""

import importlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.peers import common
from torch import Tensor

from regard.model.before.recurrent.attention_scores import RecurrentAttentionConfig, Source


def compare() -> Iterator[dict[str, Any]]:
    os.environ["KERAS_BACKEND"] = "torch"
    layer = importlib.import_module("keras.layers").AdditiveAttention
    for size in (64, 512):
        yield _compare(size, layer())


def _compare(size: int, theirs: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    ours: Any = RecurrentAttentionConfig().build(size, size)
    values, query = torch.randn(8, 25, size), torch.randn(8, 22, size)
    mask = torch.arange(25) < torch.tensor([25, 25, 20, 17, 12, 6, 2, 1])[:, None]
    theirs.build([query.shape, values.shape, values.shape])
    theirs.scale.assign(ours.score_proj.weight[0].detach())

    def train_ours() -> tuple[Tensor, Tensor]:
        context, weights = ours(query, Source(ours.keys(values), values, ~mask[:, None]))
        context.square().sum().backward()
        return context, weights

    def train_theirs() -> tuple[Tensor, Tensor]:
        inputs = [ours.query_proj(query), values, ours.key_proj(values)]
        context, weights = theirs(inputs, mask=[None, mask], return_attention_scores=True)
        context.square().sum().backward()
        return context, weights

    context, weights = train_ours()
    gradient = common.gradient(ours.score_proj.weight)[0].clone()
    their_context, their_weights = train_theirs()
    differences = {
        "context": common.difference(context, their_context),
        "attention": common.difference(weights, their_weights),
        "relative_gradients": common.relative_difference([(gradient, common.gradient(theirs.scale.value))]),
    }
    return common.case("AdditiveAttention", {"width": size}, differences, train_ours, train_theirs)
