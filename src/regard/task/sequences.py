"""From one sequence to another: what translating and parsing have in common.

An encoder–decoder reads one and writes the other. A language model has both in one text (`prompts.py`).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.cost import Work
from regard.data.batch import Batch, TokenBatches
from regard.data.store import TokenStore
from regard.decode import Worker
from regard.errors import UserError
from regard.model import EncoderDecoder
from regard.model.experts import balance_of, gathered
from regard.model.writer import Writer
from regard.task.forms import Forms
from regard.task.passes import passes, step_loss
from regard.task.prompts import Translating, continued
from regard.train.loss import Loss, word_loss
from regard.train.settings import TrainConfig
from regard.train.task import Forward
from regard.train.world import ALONE, World

_VALIDATION_TOKENS = 8192


class SequenceTask:
    """Pairs of sequences, an encoder–decoder, and the loss of its next words."""

    def __init__(
        self,
        config: TrainConfig,
        longest: int,
        train: TokenStore,
        valid: TokenStore | None,
        model: Translating,
        world: World = ALONE,
    ) -> None:
        """`longest`: pairs with a side of more tokens are left out (data.longest)."""
        self.config, self.longest, self.valid, self.model, self.world = config, longest, valid, model, world
        try:
            self.batches = TokenBatches(train, config.tokens, seed=config.seed, shapes=config.shapes, limit=longest)
        except UserError as error:
            raise UserError(f"{error} Raise data.longest ({longest}) or train.tokens ({config.tokens}).") from None

    @property
    def report(self) -> str:
        return str(self.batches.report)

    def work(self) -> Work:
        config, usual = self.config, self.batches.usual
        lengths = usual.lengths
        return Work(
            rows=usual.rows,
            source=lengths[0] if self._apart else 0,
            target=lengths[1] if self._apart else sum(lengths),
            steps=config.steps,
            accumulate=config.accumulate,
            tokens=max(config.tokens, *lengths) if self._apart else max(2 * config.tokens, sum(lengths)),
            passes=passes(config),
        )

    @property
    def _apart(self) -> bool:
        """Whether source and target are read apart, or as one text."""
        return isinstance(self.model, EncoderDecoder)

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        """Teacher forcing: every word is predicted from the right words before it."""
        with gathered() as notes:
            scores, wanted, lengths = self._scores(forward, batch, passes(self.config))
        return step_loss(scores, wanted, lengths, self.config.loss).also(balance_of(notes))

    def plain_loss(self, forward: Forward, batch: Batch) -> Loss:
        return word_loss(*self._scores(forward, batch))

    def validation(self) -> Iterator[Batch]:
        if self.valid is None:
            return iter(())
        tokens = max(_VALIDATION_TOKENS, self.longest)
        return TokenBatches(self.valid, tokens, shapes=16, limit=self.longest).epoch()

    def worker(self, inputs: int) -> Worker[Any]:
        """The model, with its weights as they are now, in the form that is fastest for so many inputs."""
        return Forms(self.model).worker(inputs) if isinstance(self.model, Writer) else self.model

    def _scores(self, forward: Forward, batch: Batch, passes: int = 1) -> tuple[Tensor, Tensor, Tensor]:
        """Scores for each target word, given the words before it, the words that came, and how many count of a row.

        # (passes · rows, length, vocabulary), (rows, length), (rows,)
        """
        first = self.model.config.tokens.start
        assert first is not None
        if not self._apart:
            text, wanted, lengths = continued(batch, first)
            scores = forward(text.repeat(passes, 1), lengths=lengths.repeat(passes))
            return scores, wanted, lengths
        start = torch.full_like(batch.target[:, :1], first)
        before = torch.cat((start, batch.target[:, :-1]), dim=1)
        source, lengths, targets = batch.source, batch.source_lengths, batch.target_lengths
        if passes > 1:
            source, before = source.repeat(passes, 1), before.repeat(passes, 1)
            lengths, targets = lengths.repeat(passes), targets.repeat(passes)
        scores = forward(source, before, source_lengths=lengths, target_lengths=targets)
        return scores, batch.target, batch.target_lengths
