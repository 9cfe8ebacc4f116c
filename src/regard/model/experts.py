"""A feed-forward of many experts, of which each token goes to a few (Shazeer et al. 2017).

A router gives every expert a gate for every token. The `active` best compute, and their outputs are added up, each
times its gate. A model so gets many more parameters than a token pays for. Next to them `shared` experts see every
token (Dai et al. 2024).

**Nothing is dropped.** Tokens are sorted by their expert and each expert takes all of its own, whatever their number
(`grouped.py`). Padding is sent to nobody: where lengths are known it gets zeros from the experts and does not count.

**Experts have to be kept busy.** Left alone, a router soon sends most tokens to the few experts that learnt first.
Either a loss on the loads evens them out (Fedus et al. 2021), or a bias that counts for choosing alone is moved a
little after each step (Wang et al. 2024; DeepSeek-V3).

**Who wants to know gathers.** `with gathered() as notes:` around a pass collects how busy every layer's experts were,
and the loss on it. A pass that nobody learns from pays nothing for that.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import Context, LayerState
from regard.config import ConfigError
from regard.model.dense import FeedForwardConfig, bend_of, is_gated
from regard.model.grouped import grouped, is_swift


class ExpertsConfig(FeedForwardConfig):
    """Settings of `Experts`. Those it has in common with the dense kind are those of each single expert."""

    kind: Literal["experts"] = "experts"  # type: ignore[assignment]
    experts: int = Field(default=8, ge=1)
    active: int = Field(default=2, ge=1)
    """How many of them each token goes to."""
    shared: int = Field(default=0, ge=0)
    """How many more see every token. They are computed as one that is so many times as wide."""
    gate: Literal["softmax", "sigmoid"] = "softmax"
    normalise: bool = True
    """Whether the gates of a token's experts are divided by their sum."""
    factor: float = Field(default=1.0, gt=0)
    """What the gates are multiplied by in the end."""
    groups: int = Field(default=1, ge=1)
    """Experts stand in so many groups of equal size, and a token's must be from `active_groups` of them."""
    active_groups: int = Field(default=1, ge=1)
    group_score: Literal["best", "best-two"] = "best"
    """How groups are compared: by their best expert (DeepSeek-V2), or by the sum of their two best (V3)."""
    balancing: Literal["loss", "bias"] = "loss"
    """How experts are kept equally busy: by a loss, or by a bias for choosing that moves after each step."""
    balance: float | None = Field(default=None, ge=0)
    """How much the loss on the loads counts. Left out, 0.01 where balancing is "loss", and 0 where it is "bias"."""
    rate: float = Field(default=0.001, gt=0)
    """How far the bias of an expert moves in a step."""

    @model_validator(mode="after")
    def _choosable(self) -> Self:
        each, rest = divmod(self.experts, self.groups)
        if self.active > self.experts:
            raise ConfigError(
                "active", f"found {self.active}; expected no more than there are experts ({self.experts})."
            )
        if rest:
            raise ConfigError(
                "groups", f"found {self.groups}; expected a number that divides experts ({self.experts})."
            )
        if self.active_groups > self.groups:
            raise ConfigError(
                "active_groups", f"found {self.active_groups}; expected no more than there are groups ({self.groups})."
            )
        if self.active > self.active_groups * each:
            raise ConfigError(
                "active",
                f"found {self.active}; active groups ({self.active_groups}) have {self.active_groups * each} experts. "
                "Raise active_groups.",
            )
        if self.group_score == "best-two" and each < 2:
            raise ConfigError("group_score", "found 'best-two'; groups of one expert have no two, choose 'best'.")
        if self.normalise and self.active == 1 < self.experts:
            raise ConfigError(
                "normalise",
                "the gate of a single expert divided by itself is 1, and the router cannot learn; choose false.",
            )
        return self

    @property
    def strength(self) -> float:
        """How much the loss on the loads counts."""
        return (0.01 if self.balancing == "loss" else 0.0) if self.balance is None else self.balance

    def build(self, width: int) -> nn.Module:
        return Experts(self, width)


class Note(NamedTuple):
    """What one layer did in one pass."""

    layer: "Experts"
    load: Tensor
    """Tokens that went to each expert.  # (experts,)"""
    balance: Tensor
    """The loss on that, times its strength: 1 where all are equally busy, up to `experts` where one does all.  # ()"""


_gathering: ContextVar[list[Note] | None] = ContextVar("gathering", default=None)


@contextmanager
def gathered() -> Iterator[list[Note]]:
    """Collect a note of every layer of experts in the passes inside; not in ones that are compiled.

    What is computed again on the way back comes when this is over, and is not counted twice.
    """
    notes: list[Note] = []
    before = _gathering.set(notes)
    try:
        yield notes
    finally:
        _gathering.reset(before)


def balance_of(notes: list[Note]) -> Tensor | None:
    """The loss of all layers, to be added to what each word costs; None where there are no experts."""
    return torch.stack([note.balance for note in notes]).sum() if notes else None


@torch.no_grad()
def loads(model: nn.Module, *inputs: Any, **settings: Any) -> dict[str, Tensor]:
    """How many tokens go to each expert of each layer when a model is called with these inputs."""
    with gathered() as notes:
        model(*inputs, **settings)
    names = {part: name for name, part in model.named_modules()}
    return {names[note.layer]: note.load for note in notes}


class Routes(NamedTuple):
    """Where tokens go."""

    experts: Tensor  # (tokens, active)
    gates: Tensor  # (tokens, active)
    scores: Tensor
    """What the gates are made of.  # (tokens, experts)"""


class Experts(nn.Module):
    """Σ gᵢ(x) · FFNᵢ(x) over the chosen experts, plus the shared ones."""

    correction: Tensor | None
    load: Tensor | None = None
    """Tokens that went to each expert since it was last set to zero; in training only, and where someone gathers."""

    def __init__(self, config: ExpertsConfig, width: int) -> None:
        super().__init__()
        self.config, experts, hidden = config, config.experts, config.hidden
        self.bend: Callable[[Tensor], Tensor] = bend_of(config.activation)
        self.router = Router(experts, width)
        self.widen = Products(experts, width, hidden, bias=config.bias)
        self.gate = Products(experts, width, hidden, bias=config.bias) if is_gated(config.activation) else None
        self.narrow = Products(experts, hidden, width, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)
        dense = {name: getattr(config, name) for name in ("activation", "bias", "dropout")}
        wide = FeedForwardConfig(hidden=config.shared * hidden, **dense) if config.shared else None
        self.shared = None if wide is None else wide.build(width)
        self.register_buffer("correction", torch.zeros(experts) if config.balancing == "bias" else None)

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        """x: # (batch, tokens, width)"""
        tokens = x.flatten(0, 1)
        routes = self.route(tokens)
        real = _real(context)
        deal = _deal(routes.experts, self.config.experts, real)
        self._note(routes, deal, real)
        taken = tokens.index_select(0, deal.tokens)  # (tokens · active, width), experts in turn
        wide = self.widen(taken, deal)
        wide = self.bend(wide) if self.gate is None else self.bend(self.gate(taken, deal)) * wide
        made = self.narrow(self.dropout(wide), deal).index_select(0, deal.places).unflatten(0, routes.gates.shape)
        gates = routes.gates if real is None else routes.gates * real[:, None]
        mixed = torch.bmm(gates[:, None].to(x.dtype), made).view_as(x)
        return mixed if self.shared is None else mixed + self.shared(x, context, state)

    def route(self, x: Tensor) -> Routes:
        """Which experts each token goes to.  x: # (tokens, width)"""
        config, logits = self.config, self.router(x)
        scores = logits.softmax(dim=-1) if config.gate == "softmax" else logits.sigmoid()  # (tokens, experts)
        ranks = scores.detach() if self.correction is None else scores.detach() + self.correction.to(scores.dtype)
        if config.groups > 1:
            ranks = ranks.masked_fill(~self._open(ranks), -math.inf)
        chosen = ranks.topk(config.active, dim=-1).indices  # (tokens, active)
        gates = scores.gather(-1, chosen)
        if config.normalise:
            gates = gates / gates.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
        return Routes(chosen, config.factor * gates, scores)

    @torch.no_grad()
    def correct(self, load: Tensor) -> None:
        """Let experts that had less than their share be chosen more easily, and the others less.  load: # (experts,)"""
        if self.correction is not None:
            load = load.to(self.correction)
            self.correction.add_(self.config.rate * (load.mean() - load).sign())

    def waits(self, dtype: torch.dtype) -> bool:
        """Whether on a GPU a pass in this precision stops to ask how many tokens each expert has.

        A recorded pass cannot: it lets every expert compute every token instead, which is right but wasteful.
        """
        return not all(is_swift(part.weight, dtype) for part in (self.widen, self.narrow))

    def _open(self, ranks: Tensor) -> Tensor:
        """Which experts are in groups that a token may go to.  ranks: # (tokens, experts)"""
        config = self.config
        each = ranks.unflatten(-1, (config.groups, -1))  # (tokens, groups, experts of a group)
        score = each.amax(dim=-1) if config.group_score == "best" else each.topk(2, dim=-1).values.sum(dim=-1)
        best = score.topk(config.active_groups, dim=-1).indices
        opened = torch.zeros_like(score, dtype=torch.bool).scatter(-1, best, True)
        return opened.repeat_interleave(each.shape[-1], dim=-1)

    def _note(self, routes: Routes, deal: "Deal", real: Tensor | None) -> None:
        """Tell whoever gathers.

        A loss to learn from is computed whether or not someone does: a pass that is computed again, when nobody gathers
        any more, must keep the same tensors as the first.
        """
        notes = None if torch.compiler.is_compiling() else _gathering.get()
        learns = self.training and torch.is_grad_enabled()
        if notes is None and not (learns and self.config.strength):
            return
        load = deal.load()
        with torch.set_grad_enabled(learns and self.config.strength > 0):
            balance = self.config.strength * _balance(load, routes.scores, real)
        if notes is None:
            return
        notes.append(Note(self, load, balance))
        if learns:
            if self.load is None or self.load.device != load.device:
                self.load = torch.zeros_like(load)
            self.load += load


class Router(nn.Module):
    """How well each expert suits a token: in float32 at least, whatever the model is in (Fedus et al. 2021, §2.4).

    For that it is no `nn.Linear`, which may be exchanged for a faster one that rounds more.
    """

    def __init__(self, experts: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, width))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """x: # (tokens, width); gives (tokens, experts)"""
        exact = torch.promote_types(x.dtype, torch.float32)
        return functional.linear(x.to(exact), self.weight.to(exact))


class Products(nn.Module):
    """A linear map for each expert."""

    def __init__(self, experts: int, width: int, made: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, made, width))
        self.bias = nn.Parameter(torch.empty(experts, made)) if bias else None
        self.initialise()

    def forward(self, x: Tensor, deal: "Deal") -> Tensor:
        """x: # (places, width)"""
        product = grouped(x, self.weight, deal.ends, padded=deal.padded)
        return product if self.bias is None else product + self.bias.index_select(0, deal.experts)

    def initialise(self, gain: float = 1.0) -> None:
        """Glorot's uniform weights, those of each expert as if it were alone; zero biases."""
        _, made, width = self.weight.shape
        limit = gain * math.sqrt(6 / (made + width))
        nn.init.uniform_(self.weight, -limit, limit)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Deal(NamedTuple):
    """Tokens dealt to experts. A place is a token at one of its experts; they stand sorted by expert, padding last."""

    tokens: Tensor
    """The token at each place.  # (places,)"""
    experts: Tensor
    """The expert at each place; for padding, any.  # (places,)"""
    places: Tensor
    """Where each token's experts are, one token after the other.  # (places,)"""
    ends: Tensor
    """Where each expert's places end.  # (experts,)"""
    padded: bool
    """Whether there may be places behind the last end."""

    def load(self) -> Tensor:
        """The number of places of each expert.  # (experts,)"""
        return self.ends.long().diff(prepend=self.ends.new_zeros(1, dtype=torch.long))


def _deal(chosen: Tensor, experts: int, real: Tensor | None) -> Deal:
    """chosen: # (tokens, active); real: # (tokens,)"""
    whose = chosen if real is None else chosen.masked_fill(~real[:, None], experts)
    sorted_, order = whose.flatten().sort(stable=True)
    everyone = torch.arange(experts, device=chosen.device)
    ends = torch.searchsorted(sorted_, everyone, right=True, out_int32=True)
    places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    return Deal(order // chosen.shape[1], sorted_.clamp(max=experts - 1), places, ends, real is not None)


def _real(context: Context) -> Tensor | None:
    """Which tokens are not padding; None where nobody said.  # (tokens,)"""
    if context.lengths is None:
        return None
    start = context.start[:, None] if isinstance(context.start, Tensor) else context.start
    place = torch.arange(context.queries, device=context.device) + start
    return (place < context.lengths[:, None]).flatten()


def _balance(load: Tensor, scores: Tensor, real: Tensor | None) -> Tensor:
    """experts · Σ fᵢ Pᵢ, with f the experts' shares of tokens and P their mean gates (Fedus et al. 2021, eq. 4).

    Gates are divided by their sum over all experts, which changes sigmoids only (DeepSeek-V3, eq. 19).
    """
    shares = scores / scores.sum(dim=-1, keepdim=True)
    if real is not None:
        shares = shares * real[:, None]
    tokens = max(len(shares), 1) if real is None else real.sum().clamp(min=1)
    busy = load.to(shares.dtype) / load.sum().clamp(min=1)
    return len(load) * (busy * shares.sum(dim=0) / tokens).sum()
