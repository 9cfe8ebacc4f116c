"""word2vec in large batches of plain PyTorch, for a GPU: negative sampling for skip-gram and CBOW.

word2vec.c takes one prediction after the other; a GPU needs thousands at a time. Three things differ, each an
approximation that a setting controls:

- All gradients of a batch are those of the tables before it, and are added up.
- Groups of predictions share their random words, as in Ji et al. 2016: scores are then products of matrices. Each
  counts `negatives / shared`, so the expected gradient is the same.
- A word that occurs often in a batch would jump far beyond its optimum with the sum of its gradients, and then further
  and further. So it takes their mean times a rate of at most `max_rate`, however often it occurs: the curvature of a
  logistic loss is |h|² / 4, and steps of more than 2 divided by it diverge.

On a GPU, sums of gradients are added in an order that changes from run to run, so results differ in the last digits.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batching.word_blocks import ContextWindow, WordBlock, keep_probabilities
from regard.model.before.word_vectors.config import CbowConfig, NegativeSamplingConfig, SkipGramConfig
from regard.model.before.word_vectors.word2vec import Word2Vec
from regard.train.word_vectors.engine import BlockLoss
from regard.train.word_vectors.predictions import Predictions, Windows, cbow_predictions, skip_gram_predictions


@dataclass(frozen=True)
class BatchSettings:
    """How much is computed at once."""

    batch: int = 1 << 14
    """Predictions whose gradients are added up."""
    group: int = 32
    """Predictions that share their random words; 1: none do. It must divide the batch."""
    shared: int = 32
    """The random words of a group. Without groups each prediction has as many as the model says."""
    max_rate: float = 0.5
    """The highest learning rate, times its occurrences in a batch, at which a word is updated."""


def unsupported_reason(config: SkipGramConfig | CbowConfig) -> str | None:
    """Why a model cannot be trained in batches; None if it can."""
    if config.subwords is not None:
        return "Subwords are not trained in batches"
    if not isinstance(config.loss, NegativeSamplingConfig):
        return f"Only negative sampling is trained in batches, not {config.loss.kind}"
    return None


class BatchedEngine:
    """Updates a model on any device. The block's loss is the only number that is read from the device."""

    def __init__(
        self,
        model: Word2Vec,
        counts: NDArray[np.int64],
        window: ContextWindow,
        settings: BatchSettings | None = None,
    ) -> None:
        """`counts` are how often each word of the vocabulary occurs."""
        loss = model.config.loss
        assert isinstance(loss, NegativeSamplingConfig)
        self.model, self.settings = model, settings or BatchSettings()
        if self.settings.batch % self.settings.group:
            raise ValueError(f"{self.settings.group} predictions share words, which does not divide the batch")
        is_alone = self.settings.group == 1
        self.shared = loss.negatives if is_alone else self.settings.shared
        self.negative_weight = loss.negatives / self.shared
        device = model.device
        self._exact = torch.float32 if device.type == "mps" else torch.float64  # which MPS does not have
        keep = torch.from_numpy(keep_probabilities(counts, window.subsample)).to(device)
        self._windows = Windows(keep, window.size, window.dynamic)
        chances = torch.from_numpy(counts.astype(np.float64) ** loss.power)
        self._cumulative = (chances.cumsum(0) / chances.sum()).to(self._exact).to(device)

    def train_block(self, block: WordBlock, lr: float, seed: int) -> BlockLoss:
        """Take all updates of a block, a batch at a time."""
        device = self.model.device
        generator = torch.Generator(device).manual_seed(seed)
        ids, offsets = (torch.from_numpy(values).to(device, torch.int64) for values in block)
        take = cbow_predictions if isinstance(self.model.config, CbowConfig) else skip_gram_predictions
        predictions = take(ids, offsets, self._windows, generator)
        count = len(predictions.targets)
        predictions = predictions.padded(self.settings.group)
        total = torch.zeros((), dtype=self._exact, device=device)
        for start in range(0, len(predictions.targets), self.settings.batch):
            batch = Predictions(*(values[start : start + self.settings.batch] for values in predictions))
            total += self.update(batch, self.draw(len(batch.targets) // self.settings.group, generator), lr)
        return BlockLoss(total.item(), count)

    def draw(self, groups: int, generator: torch.Generator) -> Tensor:
        """Random words for each group, in proportion to their counts to the power.  # (groups, shared)"""
        shape = (groups, self.shared)
        numbers = torch.rand(shape, generator=generator, device=self._cumulative.device, dtype=self._exact)
        return torch.searchsorted(self._cumulative, numbers, right=True).clamp(max=len(self._cumulative) - 1)

    @torch.no_grad()
    def update(self, batch: Predictions, negatives: Tensor, lr: float) -> Tensor:
        """A step on the sum of the losses; returns that sum before the step, on the device.

        negatives: # (groups, shared)
        """
        inputs, outputs = self.model.input_vectors.data, self.model.output_vectors.data
        groups, width = len(negatives), outputs.shape[1]
        sizes = batch.weights.sum(dim=1)  # (predictions,)
        is_real = (sizes > 0).to(sizes.dtype)
        vectors = inputs[batch.inputs] * batch.weights[:, :, None]  # (predictions, inputs, width)
        hidden = vectors.sum(dim=1) / sizes.clamp(min=1)[:, None]  # (predictions, width)
        grouped = hidden.view(groups, -1, width)  # (groups, group, width)
        true, random = outputs[batch.targets], outputs[negatives]  # (predictions, width), (groups, shared, width)

        score = (hidden * true).sum(dim=1)  # (predictions,)
        scores = grouped @ random.mT  # (groups, group, shared)
        weight = self.negative_weight * (batch.targets.view(groups, -1, 1) != negatives[:, None])
        weight = weight * is_real.view(groups, -1, 1)  # a random word that is the true one is left out
        loss = -(F.logsigmoid(score) * is_real).sum() - (F.logsigmoid(-scores) * weight).sum()

        grad = torch.sigmoid(-score) * is_real  # −∂loss/∂score
        grads = -torch.sigmoid(scores) * weight
        hidden_step = grad[:, None] * true + (grads @ random).view(-1, width)
        random_step = grads.mT @ grouped  # (groups, shared, width)

        rows = torch.cat((batch.targets, negatives.reshape(-1)))
        steps = torch.cat((grad[:, None] * hidden, random_step.view(-1, width)))
        self._add(outputs, rows, steps, torch.cat((is_real, weight.sum(dim=1).reshape(-1))), lr)
        # Each input takes the whole step, as in word2vec.c: of the mean, its share would be 1 / size of it.
        spread = (hidden_step[:, None] * batch.weights[:, :, None]).view(-1, width)
        self._add(inputs, batch.inputs.reshape(-1), spread, batch.weights.reshape(-1), lr)
        return loss.to(self._exact)

    def _add(self, table: Tensor, rows: Tensor, steps: Tensor, occurrences: Tensor, lr: float) -> None:
        """Add steps to rows of a table, those of frequent rows scaled down.  rows, occurrences: # (steps,)"""
        counts = occurrences.new_zeros(len(table)).index_add_(0, rows, occurrences)
        scale = (self.settings.max_rate / counts).clamp(max=lr)
        steps *= scale[rows][:, None]
        if table.device.type == "cpu":
            table.scatter_add_(0, rows[:, None].expand_as(steps), steps)  # the same, several times as fast on a CPU
        else:
            table.index_add_(0, rows, steps)

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing: the model's tables are all there is."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        pass
