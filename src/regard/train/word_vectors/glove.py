"""Training GloVe by AdaGrad, a pair of words at a time."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.cooccurrence import PairBlock
from regard.errors import UserError
from regard.kernels.dispatch import runs_numba
from regard.model.before.word_vectors.glove import Glove
from regard.train.word_vectors.engine import BlockLoss

TABLES = ("word_table", "context_table", "word_bias", "context_bias")


class GloveEngine:
    """Updates a model on a CPU with a compiled kernel. Threads that work at once overwrite some of each other's
    updates, which are of few numbers each; so does GloVe's own code."""

    def __init__(self, model: Glove) -> None:
        if not runs_numba(model.device, model.word_table.dtype):
            raise UserError(
                "GloVe is trained on a CPU by compiled kernels, for which numba is needed; run "
                "'pip install regard[fast]', and set device to cpu."
            )
        self.model = model
        self._sums = {name: torch.ones_like(getattr(model, name).detach()) for name in TABLES}

    def train_block(self, block: PairBlock, lr: float, seed: int) -> BlockLoss:
        """Take an update for each pair of a block, in an order that follows from `seed`."""
        from regard.kernels.cpu.glove import glove_adagrad

        order = np.random.default_rng(seed).permutation(len(block.rows))
        counts = block.counts[order]
        pairs = np.stack((block.rows, block.columns), axis=1)[order]
        weights = self.model.weight(torch.from_numpy(counts)).numpy()
        tables = [_array(getattr(self.model, name)) for name in TABLES]
        sums = [_array(self._sums[name]) for name in TABLES]
        by_kind = (tuple(tables[:2]), tuple(sums[:2]), tuple(tables[2:]), tuple(sums[2:]))
        total = glove_adagrad(pairs, np.log(counts), weights, *by_kind, np.float32(lr))
        return BlockLoss(float(total), len(pairs))

    def state_dict(self) -> dict[str, Tensor]:
        """The sums of squared steps of each table."""
        return dict(self._sums)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, values in self._sums.items():
            values.copy_(state[name])


def reference_update(model: Glove, sums: Mapping[str, Tensor], block: PairBlock, lr: float) -> float:
    """What `GloveEngine` computes, as plain as can be and slow: the gradient by autograd, one pair after the other.

    Returns the sum of the losses before each update.
    """
    total = 0.0
    tables = [getattr(model, name) for name in TABLES]
    for row, column, count in zip(*map(_as_tensor, block), strict=True):
        loss = model.loss(row, column, count)
        total += loss.item()
        for table, gradient, squares in zip(tables, torch.autograd.grad(loss / 2, tables), sums.values(), strict=True):
            step = lr * gradient
            table.data -= step / squares.sqrt()
            squares += step**2
    return total


def _array(tensor: Tensor) -> NDArray[Any]:
    """The numbers of a tensor, not a copy."""
    array: NDArray[Any] = tensor.detach().numpy()
    return array


def _as_tensor(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.int64) if values.dtype.kind == "i" else values)
