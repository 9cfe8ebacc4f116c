"""A learned mix of a model's layers: γ · Σ softmax(w)ⱼ hⱼ (Peters et al. 2018, eq. 1).

Which layer of a model has what a task needs differs from task to task: syntax is found lower than meaning. A task can
learn the weights, one number per layer and a common scale, while the model itself stays frozen. At the start all layers
count alike (w = 0) and the scale γ is 1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.errors import UserError


class ScalarMix(nn.Module):
    """The weighted mean of the hidden states of a model's layers, the embeddings included."""

    def __init__(self, layers: int) -> None:
        """`layers` counts the embeddings as one."""
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[Tensor] | Tensor) -> Tensor:
        """layers: # (…, width) for each layer, in a list or stacked; gives (…, width)"""
        if len(layers) != len(self.weights):
            raise UserError(f"Expected the vectors of {len(self.weights)} layers, found those of {len(layers)}.")
        if len({tuple(layer.shape) for layer in layers}) > 1:
            shapes = ", ".join(str(tuple(layer.shape)) for layer in layers)
            raise UserError(f"Only layers of the same shape can be mixed; found {shapes}.")
        stacked = layers if isinstance(layers, Tensor) else torch.stack(list(layers))
        mixed: Tensor = self.gamma * torch.tensordot(self.weights.softmax(dim=0), stacked, dims=1)
        return mixed
