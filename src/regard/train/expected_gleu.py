"""Fine-tuning on expected GLEU: the reward of what the model writes itself (Wu et al. 2016, eq. 8 and 9).

Cross-entropy never sees the model's own mistakes: it is computed from the reference tokens. Here the model samples some
outputs for each source, each has its GLEU as reward r, and

    O_RL = −Σ_y (r(y) − mean r) · log P(y | x) / samples

makes the better ones more likely (REINFORCE with the mean as baseline). The loss is O_RL + ml_weight · cross-entropy,
which keeps the model from drifting away. It is meant for a model that has been trained by cross-entropy: a recipe with
`init_from`. Rewards are computed on tokens, those of the tokenizer.
"""

from collections.abc import Callable
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from regard.config import Config
from regard.score.gleu import sentence_gleu
from regard.train.loss import Loss


class ExpectedGleuConfig(Config):
    """Fine-tuning on the expected GLEU of sampled outputs."""

    samples: int = Field(default=15, ge=2, le=1000)
    """How many outputs are sampled for each source."""
    ml_weight: float = Field(default=0.017, ge=0, le=1e3)
    """The weight of the cross-entropy (α in the paper)."""
    max_length_ratio: float = Field(default=1.5, gt=0, le=100)
    """A sample has at most so many times the tokens of the longest reference in the batch."""


def expected_gleu_loss(
    model: Any,
    forward: Callable[[Tensor, Tensor, Tensor], Tensor],
    batch: Any,
    cross_entropy: Loss,
    config: ExpectedGleuConfig,
) -> Loss:
    """The loss of a batch. `forward(source, inputs, source_lengths)` gives logits with gradients.

    The reinforcement part is per sentence; `count` and `nll` are those of the cross-entropy.
    """
    special = model.config.special_tokens
    limit = int(config.max_length_ratio * batch.target.shape[1]) + 1
    outputs = sample_outputs(model, batch.source, batch.source_lengths, config.samples, limit)  # (rows · samples, len)
    lengths = output_lengths(outputs, special.eos)
    rewards = _rewards(outputs, lengths, batch, config.samples)  # (rows, samples)
    advantages = (rewards - rewards.mean(dim=1, keepdim=True)).flatten()  # (rows · samples,)
    rows = torch.arange(batch.source.shape[0], device=outputs.device).repeat_interleave(config.samples)
    inputs = torch.cat((torch.full_like(outputs[:, :1], special.bos), outputs[:, :-1]), dim=1)
    logprobs = forward(batch.source[rows], inputs, batch.source_lengths[rows]).float().log_softmax(dim=-1)
    chosen = logprobs.gather(2, outputs[..., None])[..., 0]  # (rows · samples, len)
    counted = torch.arange(outputs.shape[1], device=outputs.device) < lengths[:, None]
    reinforcement = -(advantages[:, None] * chosen * counted).sum() / config.samples
    return Loss(reinforcement + config.ml_weight * cross_entropy.total, cross_entropy.nll, cross_entropy.count)


@torch.no_grad()
def sample_outputs(model: Any, source: Tensor, source_lengths: Tensor, samples: int, max_length: int) -> Tensor:
    """Outputs sampled from the model, EOS included and repeated to the end.  # (rows · samples, tokens)"""
    special = model.config.special_tokens
    was_training = model.training
    model.eval()
    try:
        state = model.start(source, max_length, source_lengths.clamp(min=1))
        rows = torch.arange(source.shape[0], device=source.device).repeat_interleave(samples)
        state.reorder_beams(rows)
        tokens = torch.full_like(rows, special.bos)
        ended = torch.zeros_like(rows, dtype=torch.bool)
        found = []
        for _ in range(max_length):
            logits, state = model.step(tokens[:, None], state)
            tokens = torch.multinomial(logits[:, -1].float().softmax(dim=-1), 1)[:, 0]
            tokens = torch.where(ended, special.eos, tokens)
            found.append(tokens)
            ended = ended | (tokens == special.eos)
            if bool(ended.all()):
                break
    finally:
        model.train(was_training)
    return torch.stack(found, dim=1)


def output_lengths(outputs: Tensor, eos: int) -> Tensor:
    """The number of tokens of each output, the first EOS included.  # (rows,)"""
    before = (outputs == eos).cumsum(dim=1) == 0
    return (before.sum(dim=1) + 1).clamp(max=outputs.shape[1])


def _rewards(outputs: Tensor, lengths: Tensor, batch: Any, samples: int) -> Tensor:
    """The GLEU of each sample; the same for all samples of a row of padding.  # (rows, samples)"""
    references = [
        row[:length] for row, length in zip(batch.target.tolist(), batch.target_lengths.tolist(), strict=True)
    ]
    found = [
        sentence_gleu(row[:length], references[number // samples]) if references[number // samples] else 0.0
        for number, (row, length) in enumerate(zip(outputs.tolist(), lengths.tolist(), strict=True))
    ]
    return torch.tensor(found, device=outputs.device).view(-1, samples)
