"""The other side of every comparison: the shipped translator in plain PyTorch, loaded once more and never looked into.

Nothing here uses `regard.look`. Queries, keys, values and what heads hand over are seen by hooks of PyTorch; scores,
softmax and sums are written out.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import regard
from regard.model import EncoderDecoder
from regard.task.translator import Translator

SENTENCE = "The cat ate the mouse."


@cache
def translator() -> Translator:
    found = regard.load("en-tr")
    assert isinstance(found, Translator)
    found.model.eval()
    return found


def model() -> EncoderDecoder:
    found = translator().model
    assert isinstance(found, EncoderDecoder)
    return found


def source(text: str = SENTENCE) -> Tensor:
    """What the encoder reads.  # (1, tokens)"""
    ids: Tensor = model().padded([translator().source_text.encode(text)])[0]
    return ids


def attention(side: str, layer: int) -> Any:
    """The module of one attention."""
    stack: Any = model().encoder if side == "encoder" else model().decoder
    return stack.blocks[layer]["cross" if side == "cross" else "attention"].function


@torch.no_grad()
def logits(target: Sequence[int], text: str = SENTENCE) -> Tensor:
    """Scores for the token behind each of the target's.  # (tokens, vocabulary)"""
    scores: Tensor = model()(source(text), torch.tensor([list(target)]))
    return scores[0]


@contextmanager
def outputs(*modules: nn.Module) -> Iterator[list[Tensor]]:
    """What these modules give in the passes that follow, in the order they give it."""
    seen: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _module, _given, made: seen.append(made.detach())) for module in modules
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def split(x: Tensor, heads: int) -> Tensor:
    """One row of a batch, head by head.  (1, tokens, width) → (heads, tokens, width of a head)"""
    parts: Tensor = x[0].unflatten(-1, (heads, -1))
    return parts.transpose(0, 1)


class Opened:
    """Queries, keys, values, scores and weights of one attention over a target, every head of it."""

    def __init__(self, side: str, layer: int, target: Sequence[int], text: str = SENTENCE) -> None:
        module = attention(side, layer)
        # The keys of what was read are made before the queries of who looks at it: so each is hooked by itself.
        with (
            outputs(module.query) as query,
            outputs(module.source.key) as key,
            outputs(module.source.value) as value,
        ):
            logits(target, text)
        self.query, self.key, self.value = (split(one[-1], module.heads) for one in (query, key, value))
        self.products = self.query @ self.key.mT  # (heads, queries, keys)
        self.scaled = self.products / self.query.shape[-1] ** 0.5
        queries, keys = self.scaled.shape[-2:]
        seen = torch.ones(queries, keys, dtype=torch.bool)
        self.seen = seen.tril() if side == "decoder" else seen
        self.weights = self.scaled.masked_fill(~self.seen, float("-inf")).softmax(dim=-1)
        self.result = self.weights @ self.value  # (heads, queries, width)


@contextmanager
def without(side: str, layer: int, head: int, instead: Tensor | None = None) -> Iterator[None]:
    """While the block runs, this head hands zeros to the output projection, or the same vector at every word."""
    module = attention(side, layer)
    width = module.sizes.value_width
    columns = slice(head * width, (head + 1) * width)

    def replace(_module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        mixed = given[0].clone()
        mixed[..., columns] = 0 if instead is None else instead[columns]
        return (mixed,)

    hook = module.output.register_forward_pre_hook(replace)
    try:
        yield
    finally:
        hook.remove()


def mean_handed_over(side: str, layer: int, target: Sequence[int]) -> Tensor:
    """What the heads of an attention hand over, side by side, on average over the words.  # (heads · width,)"""
    seen: list[Tensor] = []
    hook = attention(side, layer).output.register_forward_pre_hook(lambda _module, given: seen.append(given[0]))
    try:
        logits(target)
    finally:
        hook.remove()
    return seen[-1][0].mean(dim=0)


def probabilities(target: Sequence[int], text: str = SENTENCE) -> list[float]:
    """The probability of each token of a target but its first."""
    chances = logits(target, text).double().softmax(dim=-1)
    return [float(chances[at, token]) for at, token in enumerate(target[1:])]
