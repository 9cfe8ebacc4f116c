"""The reference of the page's tests: the pretrained translator in plain PyTorch, loaded separately and never traced.

Nothing here uses `regard.look`. Queries, keys, values and head outputs are recorded by PyTorch hooks; scores, softmax
and sums are computed here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import regard
from regard.model import EncoderDecoder
from regard.task.translation.pipeline import Translator

SENTENCE = "The cat ate the mouse."


@cache
def translator() -> Translator:
    loaded = regard.load("en-tr")
    assert isinstance(loaded, Translator)
    loaded.model.eval()
    return loaded


def model() -> EncoderDecoder:
    module = translator().model
    assert isinstance(module, EncoderDecoder)
    return module


def source(text: str = SENTENCE) -> Tensor:
    """The encoder's input.  # (1, tokens)"""
    ids: Tensor = model().pad_sources([translator().source_tokenizer.encode(text)])[0]
    return ids


def attention(attention_type: str, layer: int) -> Any:
    """An attention module."""
    stack: Any = model().encoder if attention_type == "encoder" else model().decoder
    return stack.layers[layer].get_submodule("cross_attn" if attention_type == "cross" else "self_attn")


@torch.no_grad()
def logits(target: Sequence[int], text: str = SENTENCE) -> Tensor:
    """The logits for the token after each of the target's.  # (tokens, vocab_size)"""
    output: Tensor = model()(source(text), torch.tensor([list(target)]))
    return output[0]


def probabilities(target: Sequence[int], text: str = SENTENCE) -> list[float]:
    """The probability of each token of a target but its first."""
    rows = logits(target, text).double().softmax(dim=-1)
    return [float(rows[step, token]) for step, token in enumerate(target[1:])]


@contextmanager
def outputs(*modules: nn.Module) -> Iterator[list[Tensor]]:
    """Record the outputs of some modules within the block, in order of computation."""
    recorded: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output: recorded.append(output.detach()))
        for module in modules
    ]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


class ReferenceAttention:
    """Queries, keys, values, scores and weights of all heads of an attention module over a target."""

    def __init__(self, attention_type: str, layer: int, target: Sequence[int], text: str = SENTENCE) -> None:
        module = attention(attention_type, layer)
        # The source's keys and values are computed before the queries, so each projection has its own hook.
        with outputs(module.q_proj) as query, outputs(module.k_proj) as key, outputs(module.v_proj) as value:
            logits(target, text)
        self.query, self.key, self.value = (_split_heads(each[-1], module.heads) for each in (query, key, value))
        self.scores = self.query @ self.key.mT  # (heads, queries, keys)
        self.scaled_scores = self.scores / self.query.shape[-1] ** 0.5
        visible = torch.ones(self.scores.shape[-2:], dtype=torch.bool)
        self.visible = visible.tril() if attention_type == "decoder" else visible
        self.weights = self.scaled_scores.masked_fill(~self.visible, float("-inf")).softmax(dim=-1)
        self.output = self.weights @ self.value  # (heads, queries, head_dim)


@contextmanager
def without_head(attention_type: str, layer: int, head: int, mean: Tensor | None = None) -> Iterator[None]:
    """Within the block, this head contributes zeros, or its mean, to the input of the output projection."""
    module = attention(attention_type, layer)
    head_dim = module.sizes.value_head_dim
    columns = slice(head * head_dim, (head + 1) * head_dim)

    def replace(_module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        head_outputs = inputs[0].clone()
        head_outputs[..., columns] = 0 if mean is None else mean[columns]
        return (head_outputs,)

    hook = module.o_proj.register_forward_pre_hook(replace)
    try:
        yield
    finally:
        hook.remove()


def mean_head_outputs(attention_type: str, layer: int, target: Sequence[int]) -> Tensor:
    """The concatenated outputs of an attention's heads, averaged over the tokens.  # (heads · head_dim,)"""
    recorded: list[Tensor] = []
    projection = attention(attention_type, layer).o_proj
    hook = projection.register_forward_pre_hook(lambda _module, inputs: recorded.append(inputs[0]))
    try:
        logits(target)
    finally:
        hook.remove()
    return recorded[-1][0].mean(dim=0)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """(1, tokens, width) → (heads, tokens, head_dim)"""
    split: Tensor = x[0].unflatten(-1, (heads, -1))
    return split.transpose(0, 1)
