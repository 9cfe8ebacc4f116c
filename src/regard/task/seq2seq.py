"""Sequence-to-sequence tasks: what translation and parsing share.

The model is an encoder–decoder, or a language model for which source and target are one sequence: the source is the
prompt, and the loss counts target tokens only.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.cost import Workload
from regard.data.batching.item_weights import ItemGroup
from regard.data.batching.token_batches import Batch, TokenBatches
from regard.data.store.token_store import TokenStore
from regard.decode import BatchDecoderModel
from regard.errors import UserError
from regard.fused.layers import DeferredLogits
from regard.model import CausalLM, Seq2SeqLM
from regard.model.autoregressive import GenerativeModel
from regard.task.backend import Backend
from regard.task.base import check_ranges, describe_batches
from regard.train.config import TrainConfig
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from regard.train.expected_gleu import expected_gleu_loss
from regard.train.loss import Loss, add_aux_loss, cross_entropy, training_loss
from regard.train.task import Forward

Seq2SeqModel = Seq2SeqLM | CausalLM

_VALIDATION_TOKENS = 8192


class Seq2SeqTask:
    """Pairs of token sequences, a model, and the cross-entropy of the target given the source."""

    def __init__(
        self,
        config: TrainConfig,
        max_length: int,
        train: TokenStore | None,
        valid: TokenStore | None,
        model: Seq2SeqModel,
        process_group: ProcessGroup = SINGLE_PROCESS,
        groups: Sequence[ItemGroup] = (),
    ) -> None:
        """Pairs with more than `max_length` tokens on either side are skipped (data.max_length). `groups` has the
        weights of the training pairs, unless all are 1. Without `train`, the model can only be tested.
        """
        self.config, self.max_length, self.valid = config, max_length, valid
        self.model, self.process_group = model, process_group
        if train is not None:
            self.batches = self._training_batches(train, groups)
            if isinstance(model, GenerativeModel):  # a benchmark may train another implementation
                check_ranges(model, train.vocab_sizes, self._longest(train), "data.max_length")

    def _training_batches(self, train: TokenStore, groups: Sequence[ItemGroup]) -> TokenBatches:
        config, max_length = self.config, self.max_length
        try:
            return TokenBatches(
                train,
                config.batch_tokens,
                seed=config.seed,
                length_buckets=config.length_buckets,
                max_length=max_length,
                groups=groups,
            )
        except UserError as error:
            raise UserError(
                f"{error} Raise data.max_length ({max_length}) or train.batch_tokens ({config.batch_tokens})."
            ) from None

    def _longest(self, store: TokenStore) -> int:
        """The length of the longest row that is trained on."""
        lengths = np.stack([store.lengths(side) for side in store.sides])
        kept = lengths[:, (lengths <= self.max_length).all(axis=0)]
        rows = kept.sum(axis=0) if isinstance(self.model, CausalLM) else kept
        return int(rows.max(initial=0))

    def describe_data(self) -> str:
        return describe_batches(self.batches.stats, self.config)

    def workload(self) -> Workload:
        config, shape = self.config, self.batches.mean_shape
        source, target = shape.lengths
        separate, limit = not isinstance(self.model, CausalLM), config.batch_tokens
        return Workload(
            batch_size=shape.rows,
            source_length=source if separate else 0,
            target_length=target if separate else source + target,
            steps=config.steps,
            grad_accumulation=config.grad_accumulation,
            batch_tokens=max(limit, source, target) if separate else max(2 * limit, source + target),
            forward_passes=config.loss.passes,
        )

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        """Teacher forcing: each target token is predicted from the reference tokens before it."""
        config = self.config.loss
        loss = add_aux_loss(self.model, lambda: training_loss(*self._logits(forward, batch, config.passes), config))
        if self.config.expected_gleu is None:
            return loss

        def sample_logits(source: Tensor, inputs: Tensor, source_lengths: Tensor) -> Tensor:
            logits = forward(source, inputs, source_lengths=source_lengths)
            return logits.logits() if isinstance(logits, DeferredLogits) else logits

        return expected_gleu_loss(self.model, sample_logits, batch, loss, self.config.expected_gleu)

    def nll(self, forward: Forward, batch: Batch) -> Loss:
        return cross_entropy(*self._logits(forward, batch), self.config.loss.label_smoothing)

    def validation_batches(self) -> Iterator[Batch]:
        if self.valid is None:
            return iter(())
        tokens = max(_VALIDATION_TOKENS, self.max_length)
        return TokenBatches(self.valid, tokens, length_buckets=16, max_length=self.max_length).epoch()

    def decoder_model(self, inputs: int) -> BatchDecoderModel[Any]:
        """The fastest decoder for this many inputs, with the current weights."""
        is_ours = isinstance(self.model, GenerativeModel)  # a benchmark may train another implementation
        return Backend(self.model).decoder_model(inputs) if is_ours else self.model

    def _logits(self, forward: Forward, batch: Batch, passes: int = 1) -> tuple[Tensor, Tensor, Tensor]:
        """Logits for each target token, the target tokens, and how many of a row count.

        # (passes · rows, length, vocabulary), (rows, length), (rows,)
        """
        start = self.model.config.special_tokens.bos
        assert start is not None
        if isinstance(self.model, CausalLM):
            tokens, targets, lengths = prompt_and_target(batch, start)
            return forward(tokens.repeat(passes, 1), lengths=lengths.repeat(passes)), targets, lengths
        source, inputs = batch.source, _shifted(batch.target, start)
        source_lengths, target_lengths = batch.source_lengths, batch.target_lengths
        if passes > 1:
            source, inputs = source.repeat(passes, 1), inputs.repeat(passes, 1)
            source_lengths, target_lengths = source_lengths.repeat(passes), target_lengths.repeat(passes)
        logits = forward(source, inputs, source_lengths=source_lengths, target_lengths=target_lengths)
        return logits, batch.target, batch.target_lengths


def prompt_and_target(batch: Batch, start: int) -> tuple[Tensor, Tensor, Tensor]:
    """Source and target as one sequence for a language model: tokens, next-token targets (−1 in the source), lengths.

    tokens, targets: # (rows, source + target); lengths: # (rows,)
    """
    (rows, source_width), target_width = batch.source.shape, batch.target.shape[1]
    inputs = _shifted(batch.target, start)
    position = torch.arange(source_width + target_width, device=batch.source.device).expand(rows, -1)
    in_target = position - batch.source_lengths[:, None]  # negative within the source
    index = in_target.clamp(0, target_width - 1)
    source = batch.source.gather(1, position.clamp(max=source_width - 1))
    tokens = torch.where(in_target < 0, source, inputs.gather(1, index))
    counts = (in_target >= 0) & (in_target < batch.target_lengths[:, None])
    targets = torch.where(counts, batch.target.gather(1, index), -1)
    return tokens, targets, batch.source_lengths + batch.target_lengths


def _shifted(target: Tensor, start: int) -> Tensor:
    """The decoder's input: the target shifted right behind a start token.  # (rows, length)"""
    return torch.cat((torch.full_like(target[:, :1], start), target[:, :-1]), dim=1)
