"""Skip-gram and CBOW in plain Python and NumPy, one prediction at a time: what the compiled kernel has to equal.

It draws the same random numbers and takes the same updates, up to rounding, about a hundred times slower.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batching.word_blocks import MAX_SENTENCE, ContextWindow, WordBlock
from regard.model.before.word_vectors.huffman import HuffmanPaths
from regard.model.before.word_vectors.word2vec import Word2Vec
from regard.train.word_vectors.engine import BlockLoss

_MASK = (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class Setup:
    """What training skip-gram or CBOW needs to know besides the tables."""

    cbow: bool
    window: ContextWindow
    keep: NDArray[np.uint64]
    """See `sampling.keep_limits`."""
    negatives: int
    """The number of random words; 0 for the hierarchical softmax."""
    aliases: NDArray[np.uint64]
    """See `sampling.alias_table`."""
    paths: HuffmanPaths | None
    """For the hierarchical softmax."""
    subwords: tuple[NDArray[np.int64], NDArray[np.int32]]
    """Offsets and rows of the vectors that make up each word; both empty if that is one vector."""

    @property
    def max_targets(self) -> int:
        """The most output vectors that predict one word."""
        return self.negatives + 1 if self.paths is None else max(int(np.diff(self.paths.offsets).max()), 1)

    @property
    def max_rows(self) -> int:
        """The most input vectors that make up one word."""
        return int(np.diff(self.subwords[0]).max()) if len(self.subwords[0]) else 1

    def rows_of(self, word: int) -> list[int]:
        offsets, rows = self.subwords
        return rows[offsets[word] : offsets[word + 1]].tolist() if len(offsets) else [word]


class Random:
    """Random numbers of 32 bits: the upper half of a linear congruential generator (Knuth's MMIX)."""

    def __init__(self, state: int) -> None:
        self._state = state

    def bits(self) -> int:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & _MASK
        return self._state >> 32

    def below(self, count: int) -> int:
        return self.bits() * count >> 32


class PlainWord2Vec:
    """Trains without numba."""

    def __init__(self, model: Word2Vec, setup: Setup) -> None:
        self.setup = setup
        self._inputs: NDArray[np.float32] = model.input_vectors.data.numpy()
        self._outputs: NDArray[np.float32] = model.output_vectors.data.numpy()

    def train_block(self, block: WordBlock, lr: float, seed: int) -> BlockLoss:
        random, total, count = Random(seed), 0.0, 0
        for start, end in zip(block.offsets[:-1], block.offsets[1:], strict=True):
            for sentence in self._subsample(block.ids[start:end].tolist(), random):
                for center, word in enumerate(sentence):
                    context = self.context(sentence, center, random)
                    if context:
                        inputs, targets = (context, [word]) if self.setup.cbow else ([word], context)
                        total += self._update(inputs, targets, np.float32(lr), random)
                        count += len(targets)
        return BlockLoss(total, count)

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        pass

    def _subsample(self, ids: Sequence[int], random: Random) -> Iterator[list[int]]:
        kept: list[int] = []
        for word in ids:
            if len(kept) == MAX_SENTENCE:
                yield kept
                kept = []
            if random.bits() < int(self.setup.keep[word]):
                kept.append(word)
        yield kept

    def context(self, sentence: Sequence[int], center: int, random: Random) -> list[int]:
        window = self.setup.window
        size = 1 + random.below(window.size) if window.dynamic else window.size
        return [*sentence[max(center - size, 0) : center], *sentence[center + 1 : center + size + 1]]

    def _update(self, inputs: Sequence[int], targets: Sequence[int], lr: np.float32, random: Random) -> float:
        """Predict some words from the mean of the vectors of others, which moves with each prediction. In the end all
        of these vectors are moved as much."""
        rows = [row for word in inputs for row in self.setup.rows_of(word)]
        hidden = self._inputs[rows].mean(axis=0)
        change, loss = np.zeros_like(hidden), 0.0
        for word in targets:
            decisions = list(self.decisions(word, random))
            outputs = [output for output, _ in decisions]
            scores = np.clip(self._outputs[outputs] @ hidden, -15, 15)
            grads = np.array([label for _, label in decisions], dtype=np.float32) - 1 / (1 + np.exp(-scores))
            error = np.zeros_like(hidden)
            for output, grad in zip(outputs, grads * lr, strict=True):
                error += grad * self._outputs[output]
                self._outputs[output] += grad * hidden
            hidden, change = hidden + error, change + error
            loss -= float(np.log1p(-np.abs(grads.astype(np.float64))).sum())
        for row in rows:
            self._inputs[row] += change
        return loss

    def decisions(self, word: int, random: Random) -> Iterator[tuple[int, int]]:
        """The output vectors that predict a word, and whether each should say yes."""
        paths = self.setup.paths
        if paths is not None:
            for step in range(int(paths.offsets[word]), int(paths.offsets[word + 1])):
                yield int(paths.nodes[step]), 1 - int(paths.codes[step])
            return
        yield word, 1
        for _ in range(self.setup.negatives):
            drawn = random.below(len(self.setup.aliases))
            entry = int(self.setup.aliases[drawn])
            if random.bits() >= entry >> 32:
                drawn = entry & 0xFFFFFFFF
            if drawn != word:
                yield drawn, 0
