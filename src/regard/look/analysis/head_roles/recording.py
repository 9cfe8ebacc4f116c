"""The attention of all heads in a pass over one example, together with the tokens that it is between.

An example is run alone, so there is no padding. The masks are recorded too: what uniform attention would give depends
on how many keys a query may attend to.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.mask import Mask
from regard.errors import UserError
from regard.look.analysis.attention_maps import AttentionKey, AttentionRecorder
from regard.look.analysis.dev_set import run_example
from regard.look.models.traced_model import Example, TracedModel
from regard.look.schema import AttentionType, Token


class LayerAttention(NamedTuple):
    """The attention of one layer's heads."""

    weights: Tensor  # (heads, queries, keys)
    visible: Tensor  # (queries, keys): whether the query may attend to the key
    maxima: Tensor  # (heads, queries): the largest weight of the row
    key_counts: Tensor  # (queries,): how many keys the query may attend to

    # Where a module attends to the source and to the target at once, the last two are over both.


@dataclass(frozen=True)
class RecordedExample:
    """The attention of a pass by type and layer, and the tokens."""

    source: Sequence[Token]
    """What the encoder reads; for a language model nothing."""
    target: Sequence[Token]
    """What the decoder reads, and at the end the token that it writes last: row t reads token t and writes t + 1."""
    layers: dict[AttentionKey, LayerAttention]

    def keys(self, attention_type: AttentionType) -> Sequence[Token]:
        """The tokens that are attended to."""
        return self.target[:-1] if attention_type == "decoder" else self.source


@torch.no_grad()
def record_example(traced_model: TracedModel, example: Example) -> RecordedExample:
    """Run the model on an example and record the attention of all its heads."""
    source, target = traced_model.example_tokens(example)
    recorder = _LayerRecorder(traced_model.model, source_length=len(source))
    run_example(traced_model, example, recorder)
    layers = {
        (attention_type, number): layer
        for attention_type, recorded in recorder.layers.items()
        for number, layer in enumerate(recorded)
    }
    if not all(bool(layer.maxima.isfinite().all()) for layer in layers.values()):
        raise UserError("The attention weights of this model are not finite: its weights are damaged, or it diverged.")
    return RecordedExample(source, target, layers)


@dataclass
class _LayerRecorder(AttentionRecorder):
    """An attention hook that keeps the weights of every module together with its mask."""

    layers: dict[AttentionType, list[LayerAttention]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._allowed: Tensor | None = None

    def on_inputs(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> None:
        self._allowed = None if mask.is_full else mask.dense()[0, 0].cpu()

    def __call__(self, module: nn.Module, weights: Tensor) -> None:
        before = {attention_type: len(recorded) for attention_type, recorded in self.weights.items()}
        super().__call__(module, weights)
        allowed, self._allowed = self._allowed, None
        parts = {
            attention_type: recorded[-1][0].float()
            for attention_type, recorded in self.weights.items()
            if len(recorded) > before.get(attention_type, 0)
        }
        visible = {each: _visible(each, part, allowed) for each, part in parts.items()}
        maxima = weights[0].detach().float().amax(dim=-1).cpu()
        key_counts = torch.stack([each.sum(dim=-1) for each in visible.values()]).sum(dim=0)
        for attention_type, part in parts.items():
            layer = LayerAttention(part, visible[attention_type], maxima, key_counts)
            self.layers.setdefault(attention_type, []).append(layer)


def _visible(attention_type: AttentionType, weights: Tensor, allowed: Tensor | None) -> Tensor:
    """Which keys a query may attend to: those of the mask; without one, in a decoder, those up to itself."""
    queries, keys = weights.shape[-2:]
    if allowed is not None:
        return allowed.expand(queries, keys)
    visible = torch.ones(queries, keys, dtype=torch.bool)
    return visible.tril(keys - queries) if attention_type == "decoder" else visible
