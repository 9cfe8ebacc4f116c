"""The coverage penalty: prefer outputs that attend to every word of the source (Wu et al. 2016, eq. 14).

A translation that skips part of its source is short and therefore likely. GNMT adds to the score of a hypothesis

    cp = β · Σ_i log min(Σ_j p_ij, 1)

where p_ij is the attention of the j-th output token to the i-th source token: the penalty is 0 if every source token
has received an attention of 1 in all. Beam search finds the hypotheses, and one teacher-forced pass over all of them
gives their attention, so that any model with attention and any decoder can be used. With several layers or heads the
attention is their mean.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from regard.decode.cross_attention import cross_attention
from regard.decode.strategy import Hypothesis
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.decode.batch import Request

_HYPOTHESES = 256
"""Hypotheses in a pass."""
_NO_ATTENTION = (
    "decode.coverage_penalty needs a model whose decoder attends to the source, and this one does not; set it to 0."
)


@torch.no_grad()
def rank_by_coverage(
    model: Any, requests: "Sequence[Request]", found: list[list[Hypothesis]], eos: int
) -> list[list[Hypothesis]]:
    """The hypotheses of each request with the coverage penalty in their scores, best first, `nbest` of them."""
    plain = getattr(model, "model", model)  # fused decoders do not tell their attention
    pairs = [
        (request.source, hypothesis)
        for request, hypotheses in zip(requests, found, strict=True)
        for hypothesis in hypotheses
    ]
    penalties = [
        penalty
        for start in range(0, len(pairs), _HYPOTHESES)
        for penalty in _log_coverage(plain, pairs[start : start + _HYPOTHESES], eos)
    ]
    ranked, remaining = [], iter(penalties)
    for request, hypotheses in zip(requests, found, strict=True):
        weight = request.config.coverage_penalty
        scored = [replace(each, score=each.score + weight * next(remaining)) for each in hypotheses]
        ranked.append(sorted(scored, key=lambda each: -each.score)[: request.config.nbest])
    return ranked


def _log_coverage(model: Any, pairs: "Sequence[tuple[Sequence[int], Hypothesis]]", eos: int) -> list[float]:
    """Σ_i log min(Σ_j p_ij, 1) of each source with a hypothesis, all of them in one pass."""
    outputs = [[*each.tokens, *([eos] if each.ended else [])] for _, each in pairs]
    layers = cross_attention(model, [source for source, _ in pairs], outputs)
    if not layers:
        raise UserError(_NO_ATTENTION)
    weights = torch.stack(layers).mean(dim=0)  # (hypotheses, steps, source)
    counts = torch.tensor([len(output) for output in outputs], device=weights.device)
    lengths = torch.tensor([len(source) + 1 for source, _ in pairs], device=weights.device)
    counted = torch.arange(weights.shape[1], device=weights.device) < counts[:, None]
    coverage = (weights * counted[..., None]).sum(dim=1)  # (hypotheses, source)
    padding = torch.arange(coverage.shape[1], device=weights.device) >= lengths[:, None]
    logs: list[float] = coverage.clamp(1e-9, 1).log().masked_fill(padding, 0).sum(dim=-1).tolist()
    return logs
