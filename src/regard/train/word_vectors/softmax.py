"""Skip-gram and CBOW with the cross-entropy over the whole vocabulary: the definition, in PyTorch.

Gradients are those of some words together, added up, which is close to one update after the other and much faster.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batching.word_blocks import ContextWindow, WordBlock, keep_probabilities
from regard.model.before.word_vectors.word2vec import NO_WORD, Word2Vec, contexts_of
from regard.train.word_vectors.engine import BlockLoss

WORDS_AT_ONCE = 64


class SoftmaxWord2Vec:
    """Trains by gradient descent on `Word2Vec.cross_entropy`."""

    def __init__(self, model: Word2Vec, counts: NDArray[np.int64], window: ContextWindow) -> None:
        self.model, self.window = model, window
        self._keep = torch.from_numpy(keep_probabilities(counts, window.subsample))

    def train_block(self, block: WordBlock, lr: float, seed: int) -> BlockLoss:
        generator = torch.Generator().manual_seed(seed & (1 << 63) - 1)
        sentences = torch.from_numpy(block.ids).long().split(np.diff(block.offsets).tolist())
        pairs = [self._draw(sentence, generator) for sentence in sentences]
        words, contexts = (torch.cat(each) for each in zip(*pairs, strict=True))
        total, tables = 0.0, list(self.model.parameters())
        for some, around in zip(words.split(WORDS_AT_ONCE), contexts.split(WORDS_AT_ONCE), strict=True):
            device = self.model.device
            loss = self.model.cross_entropy(some.to(device), around.to(device)).sum()
            with torch.no_grad():
                for table, grad in zip(tables, torch.autograd.grad(loss, tables), strict=True):
                    table.sub_(grad, alpha=lr)
            total += loss.item()
        return BlockLoss(total, int((contexts != NO_WORD).any(dim=1).sum()))

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        pass

    def _draw(self, sentence: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Subsampled words and their contexts.  # (words,), (words, 2 · window)"""
        kept = sentence[torch.rand(len(sentence), generator=generator) < self._keep[sentence]]
        contexts, size = contexts_of(kept, self.window.size), self.window.size
        if self.window.dynamic:
            sizes = torch.randint(1, size + 1, (len(kept), 1), generator=generator)
            distance = torch.cat((torch.arange(size, 0, -1), torch.arange(1, size + 1)))
            contexts = torch.where(distance <= sizes, contexts, NO_WORD)
        return kept, contexts
