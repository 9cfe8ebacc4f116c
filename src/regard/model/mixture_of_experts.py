"""A mixture of experts: each token is routed to a few of many feed-forwards (Shazeer et al. 2017).

A router computes a gate for every expert and token. The `top_k` experts with the largest gates are applied, and their
outputs are summed, weighted by their gates. The model has many more parameters than it uses for each token. Beside the
routed experts, `shared_experts` are applied to every token (Dai et al. 2024).

**No token is dropped.** Tokens are sorted by expert, and each expert takes all of its tokens, whatever their number
(`grouped_linear.py`). Padding is not routed: where lengths are known, its output is zero and it does not count.

**Load balancing.** Left alone, a router soon sends most tokens to the few experts that learned first. Either an
auxiliary loss on the load evens it out (Fedus et al. 2021), or a bias on the router's choice is updated after each step
(Wang et al. 2024; DeepSeek-V3).

**Recording.** `with record_routing() as records:` around a forward pass collects every layer's expert load and
auxiliary loss. Outside of it, inference computes neither.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import Context, LayerState
from regard.config import ConfigError
from regard.model.feed_forward import FeedForwardConfig, activation_function, is_gated
from regard.model.grouped_linear import grouped_linear, uses_grouped_mm


class MixtureOfExpertsConfig(FeedForwardConfig):
    """A mixture of experts: a router selects some of many feed-forward networks for each token. The keys of the dense
    network describe each expert."""

    kind: Literal["moe"] = "moe"  # type: ignore[assignment]
    experts: int = Field(default=8, ge=1, le=10_000)
    """The number of experts that the router selects from."""
    top_k: int = Field(default=2, ge=1, le=10_000)
    """The number of experts that are selected for each token."""
    shared_experts: int = Field(default=0, ge=0, le=1_000)
    """Experts applied to every token, computed as one feed-forward that many times as wide."""
    router: Literal["softmax", "sigmoid"] = "softmax"
    """How the router's logits become gates."""
    normalize: bool = True
    """Whether the gates of a token's top-k experts are divided by their sum."""
    routed_scale: float = Field(default=1.0, gt=0, le=1e3)
    """A factor on the gates."""
    groups: int = Field(default=1, ge=1, le=10_000)
    """The number of groups of experts. A token's experts are all from `top_groups` of them."""
    top_groups: int = Field(default=1, ge=1, le=10_000)
    """The number of groups that a token's experts may come from."""
    group_score: Literal["max", "top2_sum"] = "max"
    """How groups are ranked: by their best expert (DeepSeek-V2), or by the sum of their two best (V3)."""
    balancing: Literal["loss", "bias"] = "loss"
    """Load balancing by an auxiliary loss, or by a bias on the choice of experts that is updated after each step."""
    aux_loss: float | None = Field(default=None, ge=0, le=1e3)
    """The weight of the auxiliary loss. The default is 0.01 if balancing is "loss", else 0."""
    bias_update_rate: float = Field(default=0.001, gt=0, le=1)
    """How much an expert's bias changes per step."""

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        each, rest = divmod(self.experts, self.groups)
        if self.top_k > self.experts:
            raise ConfigError("top_k", f"found {self.top_k}; expected no more than there are experts ({self.experts}).")
        if rest:
            raise ConfigError(
                "groups", f"found {self.groups}; expected a number that divides experts ({self.experts})."
            )
        if self.top_groups > self.groups:
            raise ConfigError(
                "top_groups", f"found {self.top_groups}; expected no more than there are groups ({self.groups})."
            )
        if self.top_k > self.top_groups * each:
            raise ConfigError(
                "top_k",
                f"found {self.top_k}; active groups ({self.top_groups}) have {self.top_groups * each} experts. "
                "Raise top_groups.",
            )
        if self.group_score == "top2_sum" and each < 2:
            raise ConfigError("group_score", "found 'top2_sum'; groups have a single expert, so choose 'max'.")
        if self.normalize and self.top_k == 1 < self.experts:
            raise ConfigError(
                "normalize",
                "with top_k = 1 the normalized gate is always 1 and the router cannot learn; choose false.",
            )
        return self

    @property
    def aux_loss_weight(self) -> float:
        """The weight of the auxiliary loss, with its default."""
        return (0.01 if self.balancing == "loss" else 0.0) if self.aux_loss is None else self.aux_loss

    def build(self, width: int) -> nn.Module:
        return MixtureOfExperts(self, width)


class RoutingRecord(NamedTuple):
    """What one layer did in one forward pass."""

    layer: "MixtureOfExperts"
    load: Tensor
    """The number of tokens routed to each expert.  # (experts,)"""
    aux_loss: Tensor
    """The weighted auxiliary loss: unweighted, 1 for an even load and up to `experts` if one takes all.  # ()"""


_records: ContextVar[list[RoutingRecord] | None] = ContextVar("records", default=None)


@contextmanager
def record_routing() -> Iterator[list[RoutingRecord]]:
    """Collect a record of every mixture-of-experts layer in the forward passes inside, unless they are compiled.

    Recomputation in the backward pass happens outside of it, so nothing is counted twice.
    """
    records: list[RoutingRecord] = []
    token = _records.set(records)
    try:
        yield records
    finally:
        _records.reset(token)


def total_aux_loss(records: list[RoutingRecord]) -> Tensor | None:
    """The sum of all layers' auxiliary losses, to be added to each token's loss; None without experts."""
    return torch.stack([record.aux_loss for record in records]).sum() if records else None


@torch.no_grad()
def expert_load(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
    """The number of tokens routed to each expert of each layer when a model is called with these arguments."""
    with record_routing() as records:
        model(*args, **kwargs)
    names = {module: name for name, module in model.named_modules()}
    return {names[record.layer]: record.load for record in records}


class Routing(NamedTuple):
    """The experts of each token and their gates."""

    experts: Tensor  # (tokens, top_k)
    gates: Tensor  # (tokens, top_k)
    scores: Tensor
    """The gates of all experts, before the choice.  # (tokens, experts)"""


class MixtureOfExperts(nn.Module):
    """Σ gᵢ(x) · FFNᵢ(x) over the chosen experts, plus the shared ones."""

    expert_bias: Tensor | None
    load: Tensor | None = None
    """The number of tokens routed to each expert since the last reset, in training and while recording."""

    def __init__(self, config: MixtureOfExpertsConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.router = Router(config.experts, width)
        self.experts = Experts(config, width)
        dense = {name: getattr(config, name) for name in ("activation", "bias", "dropout")}
        wide = (
            FeedForwardConfig(hidden=config.shared_experts * config.hidden, **dense) if config.shared_experts else None
        )
        self.shared_experts = None if wide is None else wide.build(width)
        self.register_buffer("expert_bias", torch.zeros(config.experts) if config.balancing == "bias" else None)

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        """x: # (batch, tokens, width)"""
        tokens = x.flatten(0, 1)
        routing = self.route(tokens)
        real = _real_tokens(context)
        dispatch = _dispatch(routing.experts, self.config.experts, real)
        self._record(routing, dispatch, real)
        sorted_tokens = tokens.index_select(0, dispatch.tokens)  # (tokens · top_k, width), sorted by expert
        outputs = self.experts(sorted_tokens, dispatch).index_select(0, dispatch.slots)
        outputs = outputs.unflatten(0, routing.gates.shape)  # (tokens, top_k, width)
        gates = routing.gates if real is None else routing.gates * real[:, None]
        output = torch.bmm(gates[:, None].to(x.dtype), outputs).view_as(x)
        return output if self.shared_experts is None else output + self.shared_experts(x, context, state)

    def route(self, x: Tensor) -> Routing:
        """Choose the experts of each token.  x: # (tokens, width)"""
        config, logits = self.config, self.router(x)
        scores = logits.softmax(dim=-1) if config.router == "softmax" else logits.sigmoid()  # (tokens, experts)
        ranks = scores.detach() if self.expert_bias is None else scores.detach() + self.expert_bias.to(scores.dtype)
        if config.groups > 1:
            ranks = ranks.masked_fill(~self._in_top_groups(ranks), -math.inf)
        chosen = ranks.topk(config.top_k, dim=-1).indices  # (tokens, top_k)
        gates = scores.gather(-1, chosen)
        if config.normalize:
            gates = gates / gates.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
        return Routing(chosen, config.routed_scale * gates, scores)

    def aux_loss(self, routing: Routing, load: Tensor, real: Tensor | None) -> Tensor:
        """The weighted auxiliary loss.  load: # (experts,); real: # (tokens,), None without padding"""
        return self.config.aux_loss_weight * _aux_loss(load, routing.scores, real)

    @torch.no_grad()
    def update_expert_bias(self, load: Tensor) -> None:
        """Raise the bias of experts with less than the mean load, and lower that of the others.  load: # (experts,)"""
        if self.expert_bias is not None:
            load = load.to(self.expert_bias)
            self.expert_bias.add_(self.config.bias_update_rate * (load.mean() - load).sign())

    def needs_host_sync(self, dtype: torch.dtype) -> bool:
        """Whether on a GPU a pass in this precision waits for the number of tokens of each expert.

        A captured CUDA graph cannot: there every expert computes every token instead, which is correct but wasteful.
        """
        projections = (self.experts.up_proj, self.experts.down_proj)
        return not all(uses_grouped_mm(projection.weight, dtype) for projection in projections)

    def _in_top_groups(self, ranks: Tensor) -> Tensor:
        """Which experts are in a token's top groups.  ranks: # (tokens, experts)"""
        config = self.config
        grouped = ranks.unflatten(-1, (config.groups, -1))  # (tokens, groups, experts of a group)
        score = grouped.amax(dim=-1) if config.group_score == "max" else grouped.topk(2, dim=-1).values.sum(dim=-1)
        best = score.topk(config.top_groups, dim=-1).indices
        is_top = torch.zeros_like(score, dtype=torch.bool).scatter(-1, best, True)
        return is_top.repeat_interleave(grouped.shape[-1], dim=-1)

    def _record(self, routing: Routing, dispatch: "Dispatch", real: Tensor | None) -> None:
        """Add a record, if someone collects them.

        In training the loss is computed in any case: a pass that is recomputed (activation checkpointing), when nobody
        records any more, must save the same tensors as the first.
        """
        records = None if torch.compiler.is_compiling() else _records.get()
        trains = self.training and torch.is_grad_enabled()
        if records is None and not (trains and self.config.aux_loss_weight):
            return
        load = dispatch.load()
        with torch.set_grad_enabled(trains and self.config.aux_loss_weight > 0):
            aux_loss = self.aux_loss(routing, load, real)
        if records is None:
            return
        records.append(RoutingRecord(self, load, aux_loss))
        if trains:
            if self.load is None or self.load.device != load.device:
                self.load = torch.zeros_like(load)
            self.load += load


class Router(nn.Module):
    """The router's logits, in float32 or better whatever the model's dtype (Fedus et al. 2021, §2.4).

    It is not an `nn.Linear`, which may be replaced by a faster one that rounds more.
    """

    def __init__(self, experts: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, width))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """x: # (tokens, width); gives (tokens, experts)"""
        exact = torch.promote_types(x.dtype, torch.float32)
        return functional.linear(x.to(exact), self.weight.to(exact))


class Experts(nn.Module):
    """The routed experts' feed-forwards: f(x W₁) W₂, or (f(x G) · x W₁) W₂ where the activation is gated."""

    def __init__(self, config: MixtureOfExpertsConfig, width: int) -> None:
        super().__init__()
        experts, hidden, gated = config.experts, config.hidden, is_gated(config.activation)
        self.activation: Callable[[Tensor], Tensor] = activation_function(config.activation)
        self.up_proj = GroupedLinear(experts, width, hidden, bias=config.bias)
        self.gate_proj = GroupedLinear(experts, width, hidden, bias=config.bias) if gated else None
        self.down_proj = GroupedLinear(experts, hidden, width, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, dispatch: "Dispatch") -> Tensor:
        """x: # (slots, width), sorted by expert"""
        up = self.up_proj(x, dispatch)
        hidden = self.activation(up) if self.gate_proj is None else self.activation(self.gate_proj(x, dispatch)) * up
        output: Tensor = self.down_proj(self.dropout(hidden), dispatch)
        return output


class GroupedLinear(nn.Module):
    """A linear layer per expert."""

    no_weight_decay: ClassVar = ("bias",)

    def __init__(self, experts: int, in_features: int, out_features: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(experts, out_features)) if bias else None
        self.initialize()

    def forward(self, x: Tensor, dispatch: "Dispatch") -> Tensor:
        """x: # (slots, in features)"""
        output = grouped_linear(x, self.weight, dispatch.ends, padded=dispatch.padded)
        return output if self.bias is None else output + self.bias.index_select(0, dispatch.experts)

    def initialize(self, gain: float = 1.0) -> None:
        """Glorot-uniform weights, for each expert on its own, and zero biases."""
        _, out_features, in_features = self.weight.shape
        limit = gain * math.sqrt(6 / (out_features + in_features))
        nn.init.uniform_(self.weight, -limit, limit)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Dispatch(NamedTuple):
    """Tokens sorted by expert. A slot is a token at one of its experts; slots of padding come last."""

    tokens: Tensor
    """The token in each slot.  # (slots,)"""
    experts: Tensor
    """The expert of each slot; any for padding.  # (slots,)"""
    slots: Tensor
    """The slots of each token's experts, token by token.  # (slots,)"""
    ends: Tensor
    """Where each expert's slots end.  # (experts,)"""
    padded: bool
    """Whether there may be slots of padding after the last end."""

    def load(self) -> Tensor:
        """The number of slots of each expert.  # (experts,)"""
        return self.ends.long().diff(prepend=self.ends.new_zeros(1, dtype=torch.long))


def _dispatch(chosen: Tensor, experts: int, real: Tensor | None) -> Dispatch:
    """chosen: # (tokens, top_k); real: # (tokens,)"""
    expert = chosen if real is None else chosen.masked_fill(~real[:, None], experts)
    sorted_experts, order = expert.flatten().sort(stable=True)
    ends = torch.searchsorted(sorted_experts, torch.arange(experts, device=chosen.device), right=True, out_int32=True)
    slots = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    return Dispatch(order // chosen.shape[1], sorted_experts.clamp(max=experts - 1), slots, ends, real is not None)


def _real_tokens(context: Context) -> Tensor | None:
    """Which tokens are not padding; None if lengths are unknown.  # (tokens,)"""
    if context.lengths is None:
        return None
    start = context.start[:, None] if isinstance(context.start, Tensor) else context.start
    position = torch.arange(context.queries, device=context.device) + start
    return (position < context.lengths[:, None]).flatten()


def _aux_loss(load: Tensor, scores: Tensor, real: Tensor | None) -> Tensor:
    """experts · Σ fᵢ Pᵢ, with f each expert's fraction of tokens and P its mean gate (Fedus et al. 2021, eq. 4).

    Gates are divided by their sum over all experts, which changes sigmoids only (DeepSeek-V3, eq. 19).
    """
    gates = scores / scores.sum(dim=-1, keepdim=True)
    if real is not None:
        gates = gates * real[:, None]
    tokens = max(len(gates), 1) if real is None else real.sum().clamp(min=1)
    fraction = load.to(gates.dtype) / load.sum().clamp(min=1)
    return len(load) * (fraction * gates.sum(dim=0) / tokens).sum()
