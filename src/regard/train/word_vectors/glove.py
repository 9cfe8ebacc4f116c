"""Training GloVe by AdaGrad, a pair of words at a time."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.cooccurrence import PairBlock
from regard.errors import how_to_install
from regard.kernels.dispatch import has_numba
from regard.model.before.word_vectors.glove import Glove
from regard.train.task import LogFn
from regard.train.word_vectors.engine import BlockLoss

TABLES = ("word_table", "context_table", "word_bias", "context_bias")


class GloveEngine:
    """Updates a model on a CPU, where it can by a compiled kernel. Threads that work at once overwrite some of each
    other's updates, which are of few numbers each; so does GloVe's own code."""

    def __init__(self, model: Glove, log: LogFn = lambda message: None) -> None:
        self.model, self._update = model, plain_adagrad
        self._sums = {name: torch.ones_like(getattr(model, name).detach()) for name in TABLES}
        if has_numba():
            from regard.kernels.cpu.word_vectors.glove import glove_adagrad

            self._update = glove_adagrad
        else:
            log(f"numba is not installed, so training is much slower; to install it, {how_to_install('fast')}.")

    def train_block(self, block: PairBlock, lr: float, seed: int) -> BlockLoss:
        """Take an update for each pair of a block, in an order that follows from `seed`."""
        order = np.random.default_rng(seed).permutation(len(block.rows))
        counts = block.counts[order]
        pairs = np.stack((block.rows, block.columns), axis=1)[order]
        weights = self.model.weight(torch.from_numpy(counts)).numpy()
        tables = [_array(getattr(self.model, name)) for name in TABLES]
        sums = [_array(self._sums[name]) for name in TABLES]
        by_kind = (tuple(tables[:2]), tuple(sums[:2]), tuple(tables[2:]), tuple(sums[2:]))
        total = self._update(pairs, np.log(counts), weights, *by_kind, np.float32(lr))
        return BlockLoss(float(total), len(pairs))

    def state_dict(self) -> dict[str, Tensor]:
        """The sums of squared steps of each table."""
        return dict(self._sums)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, values in self._sums.items():
            values.copy_(state[name])


def plain_adagrad(
    pairs: Any, targets: Any, weights: Any, vectors: Any, vector_sums: Any, biases: Any, bias_sums: Any, lr: Any
) -> float:
    """The same as the kernel in plain NumPy, whose arguments `kernels/cpu/word_vectors/glove.py` explains."""
    total = 0.0
    for (i, j), target, weight in zip(pairs, targets, weights, strict=True):
        rows = (vectors[0][i], vectors[1][j], biases[0][i : i + 1], biases[1][j : j + 1])
        sums = (vector_sums[0][i], vector_sums[1][j], bias_sums[0][i : i + 1], bias_sums[1][j : j + 1])
        error = rows[0] @ rows[1] + rows[2][0] + rows[3][0] - target
        total += float(weight * error * error)
        grad = lr * weight * error
        steps = (grad * rows[1], grad * rows[0], grad, grad)
        for row, squares, step in zip(rows, sums, steps, strict=True):
            row -= step / np.sqrt(squares)
            squares += step * step
    return total


def _array(tensor: Tensor) -> NDArray[Any]:
    """The numbers of a tensor, not a copy."""
    array: NDArray[Any] = tensor.detach().numpy()
    return array
