"""Head importance: how much a model's loss or BLEU on a dev set changes when a single head is ablated.

The loss is the mean of −log p over all labels; for BLEU the dev set is translated again for every head. Michel et al.
2019 ("Are Sixteen Heads Really Better than One?", §3) do the same with zero ablation.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import torch

from regard.errors import UserError
from regard.look.analysis.attention_maps import check_heads
from regard.look.analysis.dev_set import DevSet, load_dev_set, mean_loss, run_unpadded
from regard.look.analysis.head_ablation import HeadMeans, ablate_heads, all_heads, mean_outputs
from regard.look.models.traced_model import TracedModel
from regard.look.schema import AblatedHead, HeadImportance, HeadImportanceRequest, HeadScore, Metric


def measure_heads(
    traced_model: TracedModel,
    request: HeadImportanceRequest,
    folder: Path | None = None,
) -> Iterator[tuple[int, HeadImportance]]:
    """Yield the number of heads and the results so far: the baseline first, then one more head each time.

    Between two of them no head is ablated, so that the model can be used for something else.
    """
    if request.metric not in traced_model.metrics:
        raise UserError(f"{request.metric!r} is not a metric of this model; use {' or '.join(traced_model.metrics)}.")
    check_heads(traced_model.model)
    dev_set = load_dev_set(traced_model, request.lines, folder)
    heads = all_heads(traced_model.model)
    means: HeadMeans | None = None
    if request.ablation == "mean":
        with mean_outputs(traced_model.model) as means:
            run_unpadded(traced_model, dev_set.examples)
    baseline = _measure(traced_model, dev_set, request.metric)
    if not math.isfinite(baseline):
        raise UserError(f"The {request.metric} of this model is {baseline}: its weights are damaged, or it diverged.")
    scores: list[HeadScore] = []

    def results() -> HeadImportance:
        return HeadImportance(
            metric=request.metric, baseline=baseline, examples=len(dev_set.examples), heads=list(scores)
        )

    yield len(heads), results()
    for (attention_type, layer), head in heads:
        ablated = AblatedHead(attention_type=attention_type, layer=layer, head=head, ablation=request.ablation)
        with ablate_heads(traced_model.model, [ablated], means):
            value = _measure(traced_model, dev_set, request.metric)
        scores.append(
            HeadScore(attention_type=attention_type, layer=layer, head=head, value=value, change=value - baseline)
        )
        yield len(heads), results()


def measure_head_importance(
    traced_model: TracedModel, request: HeadImportanceRequest, folder: Path | None = None
) -> HeadImportance:
    """The importance of all heads."""
    *_, (_, importance) = measure_heads(traced_model, request, folder)
    return importance


@torch.no_grad()
def _measure(traced_model: TracedModel, dev_set: DevSet, metric: Metric) -> float:
    if metric == "loss":
        return mean_loss(traced_model, dev_set.examples)
    return traced_model.bleu(dev_set.items, dev_set.recipe)
