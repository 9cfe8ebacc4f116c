"""The attention of given outputs to their sources, from one teacher-forced pass.

Search does not record attention: fused decoders do not tell it, and recording would slow down every step. What needs it
(the coverage penalty, replacing unknown words) computes it afterwards, for the outputs that were found. The outputs of
a batch go through the plain model at once, so any model with attention and any decoder can be used.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.multi_head import SelfAttentionBase
from regard.model import Seq2SeqLM
from regard.model.before import SequenceToSequence


def plain_models(model: Any) -> list[Any]:
    """The models in plain PyTorch that a decoder runs: one, or the members of an ensemble."""
    members = getattr(model, "members", None)
    if members is not None:
        return [plain for member in members for plain in plain_models(member)]
    return [getattr(model, "model", model)]


def has_cross_attention(model: Any) -> bool:
    """Whether the decoder attends to the source."""
    if isinstance(model, SequenceToSequence):
        return "cross" in model.attention_modules()
    return isinstance(model, Seq2SeqLM)


@torch.no_grad()
def cross_attention(model: Any, sources: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> list[Tensor]:
    """The weights of each layer that attends to the source, the mean of its heads; none without attention.

    sources: ids without EOS; outputs: ids, with EOS if they end with it. Each tensor is (outputs, steps, keys): row i
    has the attention of each token of `outputs[i]` to those of `sources[i]` and the EOS after it, and then padding.
    """
    longest = max(map(len, outputs))
    state, start = model.prefill(sources, longest)
    inputs = torch.tensor([([*output] + [0] * longest)[: longest - 1] for output in outputs], device=start.device)
    tokens = torch.cat((start[:, None], inputs.view(len(outputs), -1).to(start)), dim=1)
    recorder = _Recorder()
    model.step(tokens, state, attention_hook=recorder)  # what follows an output's end changes nothing before it
    if not recorder.weights:
        return []
    keys = model.pad_sources(sources)[0].shape[1]  # the target so far may be attended to as well, behind the source
    return [torch.cat(parts, dim=2).mean(dim=1)[:, :longest, :keys] for parts in recorder.weights.values()]


class _Recorder:
    """Collects the weights of all cross-attention; a model may report a pass in several parts."""

    def __init__(self) -> None:
        self.weights: dict[nn.Module, list[Tensor]] = {}

    def __call__(self, module: nn.Module, weights: Tensor) -> None:
        """weights: # (batch, heads, query, key)"""
        if not isinstance(module, SelfAttentionBase):
            self.weights.setdefault(module, []).append(weights.double())
