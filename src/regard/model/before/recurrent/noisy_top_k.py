"""A mixture of experts between recurrent layers, with noisy top-k gating (Shazeer et al. 2017).

G(x) = softmax(KeepTopK(H(x), k)) with H(x) = x W_g + ε · softplus(x W_n) and ε ~ N(0, 1): noise lets experts take turns
at the border of the top k, and the network learns how much of it each needs. Without training there is no noise. W_g
and W_n start at zero, so that all experts are equal at first. The output goes through a sigmoid, and the layer has a
residual connection, as all layers of the paper's networks.

Two losses keep the load balanced: the squared coefficient of variation (variance over squared mean) of each expert's
importance, Σ_x G(x), and of its load. A number of tokens has no gradient, so the load is a smooth estimate: the sum of
the probabilities that an expert stays among the top k if its noise is drawn again.
"""

from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import Context, LayerState
from regard.config import Config, ConfigError
from regard.model.mixture_of_experts import MixtureOfExperts, MixtureOfExpertsConfig, Routing


class NoisyTopKConfig(Config):
    """A mixture of experts between recurrent layers."""

    experts: int = Field(default=8, ge=3, le=10_000)
    """The number of experts."""
    top_k: int = Field(default=2, ge=2, le=10_000)
    """The number of experts that are selected for each token. The gate of a single one would always be 1."""
    hidden: int = Field(default=512, ge=1, le=10_000_000)
    """The width of each expert's hidden layer."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """The dropout probability of each expert's hidden layer."""
    importance_loss: float = Field(default=0.01, ge=0, le=1e3)
    """The weight of the importance loss."""
    load_loss: float = Field(default=0.01, ge=0, le=1e3)
    """The weight of the load loss."""

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        if self.top_k >= self.experts:
            raise ConfigError("top_k", f"found {self.top_k}; expected fewer than there are experts ({self.experts}).")
        return self

    def build(self, width: int, dropout: float) -> "NoisyTopK":
        return NoisyTopK(self, width, dropout)


class NoisyGate(nn.Module):
    """H(x), and the standard deviation of its noise."""

    def __init__(self, experts: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(experts, width))
        self.noise_weight = nn.Parameter(torch.zeros(experts, width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Clean logits, logits with noise, the noise's deviation, in float32 or better.

        x: # (tokens, width); gives (tokens, experts) each
        """
        exact = torch.promote_types(x.dtype, torch.float32)
        clean = functional.linear(x.to(exact), self.weight.to(exact))
        deviation = functional.softplus(functional.linear(x.to(exact), self.noise_weight.to(exact)))
        return clean, clean + torch.randn_like(clean) * deviation if self.training else clean, deviation


class NoisyExperts(MixtureOfExperts):
    """Σ G(x)ᵢ · FFNᵢ(x) over the top k experts."""

    def __init__(self, config: NoisyTopKConfig, width: int) -> None:
        balanced = config.importance_loss + config.load_loss > 0
        shared = {"experts": config.experts, "top_k": config.top_k, "hidden": config.hidden, "dropout": config.dropout}
        super().__init__(MixtureOfExpertsConfig(**shared, aux_loss=float(balanced)), width)  # type: ignore[arg-type]
        self.importance_loss, self.load_loss = config.importance_loss, config.load_loss
        self.router = NoisyGate(config.experts, width)  # type: ignore[assignment]

    def route(self, x: Tensor) -> Routing:
        """Choose the experts of each token. The scores are G(x), followed by the probabilities of staying chosen.

        x: # (tokens, width)
        """
        top_k = self.config.top_k
        clean, noisy, deviation = self.router(x)
        largest = noisy.topk(top_k + 1, dim=-1)
        chosen, gates = largest.indices[:, :top_k], largest.values[:, :top_k].softmax(dim=-1)
        all_gates = torch.zeros_like(noisy).scatter(-1, chosen, gates)
        kth, next_one = largest.values[:, top_k - 1 : top_k], largest.values[:, top_k:]  # (tokens, 1)
        threshold = torch.where(all_gates > 0, next_one, kth)  # the kth largest of the others
        kept_probability = torch.special.ndtr((clean - threshold) / deviation)
        return Routing(chosen, gates, torch.cat((all_gates, kept_probability), dim=-1))

    def aux_loss(self, routing: Routing, load: Tensor, real: Tensor | None) -> Tensor:
        scores = routing.scores if real is None else routing.scores * real[:, None]
        importance, smooth_load = scores.sum(dim=0).chunk(2)
        return self.importance_loss * cv_squared(importance) + self.load_loss * cv_squared(smooth_load)


class NoisyTopK(nn.Module):
    """x + dropout(sigmoid(Σ G(x)ᵢ · FFNᵢ(x)))."""

    def __init__(self, config: NoisyTopKConfig, width: int, dropout: float) -> None:
        super().__init__()
        self.experts = NoisyExperts(config, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """x: # (batch, tokens, width); lengths: # (batch,), None if no row is padded"""
        context = Context(x[..., 0], lengths=lengths)  # only the number of tokens and their padding matter
        output: Tensor = self.dropout(self.experts(x, context, LayerState()).sigmoid())
        return x + output


def cv_squared(x: Tensor) -> Tensor:
    """The squared coefficient of variation: variance over squared mean.  x: # (experts,)"""
    return x.var(unbiased=False) / (x.mean().square() + 1e-10)
