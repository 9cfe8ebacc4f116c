"""What skip-gram and CBOW predict in a block of sentences, as tensors: subsampling and windows on any device."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.batching.word_blocks import MAX_SENTENCE


class Predictions(NamedTuple):
    """Words to predict, each from the mean of some vectors."""

    inputs: Tensor
    """(predictions, inputs); the ids of the words predicted from: one, or with CBOW the whole window."""
    weights: Tensor
    """(predictions, inputs); 1, or 0 where the window has no word."""
    targets: Tensor
    """(predictions,); the ids of the words predicted."""

    def padded(self, multiple: int) -> "Predictions":
        """With predictions of weight 0 at the end, so that their number is a multiple of this one."""
        missing = -len(self.targets) % multiple
        inputs, weights = (F.pad(values, (0, 0, 0, missing)) for values in self[:2])
        return Predictions(inputs, weights, F.pad(self.targets, (0, missing)))


class Windows(NamedTuple):
    """How predictions are taken from a text."""

    keep: Tensor
    """(vocabulary,); the probability that an occurrence of each word is kept."""
    size: int
    """The most words on either side."""
    dynamic: bool
    """Whether the size is drawn from 1 to `size` anew for each word."""


def skip_gram_predictions(ids: Tensor, offsets: Tensor, windows: Windows, generator: torch.Generator) -> Predictions:
    """Predict each word from every word of its context, one at a time.

    These are the same pairs as those of each word and every word of its context that it predicts, in the order of
    word2vec.c: neighbors in a batch have different inputs.
    """
    words, contexts, is_context = _contexts(ids, offsets, windows, generator)
    inputs = contexts[is_context][:, None]
    targets = words[:, None].expand_as(contexts)[is_context]
    return Predictions(inputs, inputs.new_ones(inputs.shape, dtype=windows.keep.dtype), targets)


def cbow_predictions(ids: Tensor, offsets: Tensor, windows: Windows, generator: torch.Generator) -> Predictions:
    """Predict each word from the mean of its context; words without a context are left out."""
    words, contexts, is_context = _contexts(ids, offsets, windows, generator)
    has_context = is_context.any(dim=1)
    weights = is_context[has_context].to(windows.keep.dtype)
    return Predictions(contexts[has_context], weights, words[has_context])


def _contexts(
    ids: Tensor, offsets: Tensor, windows: Windows, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """The words that are kept, the words around each, and which of these are its context.

    ids: # (words,); offsets: # (sentences + 1,) → # (kept,), (kept, 2 · size), (kept, 2 · size)
    """
    device = ids.device
    chances = torch.rand(len(ids), generator=generator, device=device, dtype=windows.keep.dtype)
    kept = (chances < windows.keep[ids]).nonzero()[:, 0]
    sentences = torch.searchsorted(offsets, kept, right=True)
    words, positions = ids[kept], torch.arange(len(kept), device=device)
    starts = torch.searchsorted(sentences, sentences)  # the first kept word of the sentence
    starts += (positions - starts) // MAX_SENTENCE * MAX_SENTENCE  # long sentences are cut, as in word2vec.c
    sizes = torch.full_like(positions, windows.size)
    if windows.dynamic:
        sizes = torch.randint(1, windows.size + 1, sizes.shape, generator=generator, device=device)
    steps = torch.arange(-windows.size, windows.size + 1, device=device)
    steps = steps[steps != 0]
    others = positions[:, None] + steps  # (kept, 2 · size)
    is_context = (steps.abs() <= sizes[:, None]) & (others >= 0) & (others < len(kept))
    others = others.clamp(0, max(len(kept) - 1, 0))
    is_context &= starts[others] == starts[:, None]
    return words, words[others], is_context
