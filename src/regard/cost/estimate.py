"""What a model costs to train, known before it is trained: parameters, arithmetic, memory, minutes.

**Nothing is allocated.** Parameters are counted on a model without storage. All else follows from the config and the
shape of a batch, one sublayer after another (`_forward` below), so that a line says where each number comes from.

**Arithmetic** is matrix products, a multiply-add being 2 FLOPs. Backward takes twice as much as forward, for every
product has two gradients. Attention is counted over the pairs within reach of strips of 256 queries, which is what
fused kernels compute: all pairs of a short text, about half of those of a long causal one, a band under a window.

**Memory** is weights, gradients, what the optimiser remembers, what forward keeps for backward, and what the loss needs
while its gradient is taken. It is that of an eager step, within a few per cent; a compiled one fuses the loss and can
take half. Attention is taken as fused, so that it keeps no weights. On a CPU it is not where it has dropout of its
own: then it keeps several numbers for each head, query and key on top.

**Minutes** are a range, because arithmetic is not all that a model waits for; see `Hardware`.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from regard.attention import Causal, HeadsConfig, read_pattern
from regard.cost.hardware import Hardware
from regard.errors import UserError
from regard.model import EncoderDecoderConfig, FeedForwardConfig, ModelConfig, StackConfig, count_parameters
from regard.model.embedding import Vocabulary

Precision = Literal["fp32", "bf16"]


REACHED = (0.9, 0.6)
"""The share of a machine's FLOP/s that matrix products of models reach, at best and at worst."""
USABLE = 0.9
"""The share of a machine's memory that training can count on: the rest goes to the driver and to gaps."""


@dataclass(frozen=True)
class Work:
    """What is trained on: `steps` times `accumulate` micro-batches of `rows` × `source` and `rows` × `target` cells.

    The numbers are those of a micro-batch of mean size, padding included; a language model has a target only. `tokens`
    is the most cells a side can have (train.tokens), where batches differ: memory must hold that one.
    """

    rows: int
    target: int
    source: int = 0
    steps: int = 1
    accumulate: int = 1
    tokens: int | None = None
    passes: int = 1
    """How often each micro-batch goes through the model at once (2 for regularised dropout)."""

    def __post_init__(self) -> None:
        if min(self.rows, self.target, self.steps, self.accumulate, self.passes) < 1 or self.source < 0:
            raise UserError(f"Work needs at least 1 for rows, target, steps, accumulate and passes; found {self}.")
        if self.tokens is not None and self.tokens < self.longest:
            raise UserError(f"A row of {self.longest} cells does not fit a batch of {self.tokens} tokens a side.")

    @property
    def longest(self) -> int:
        return max(self.source, self.target)

    @property
    def largest(self) -> "Work":
        """The largest micro-batch there can be: as many rows as `tokens` allows, both sides as long as the longer."""
        if self.tokens is None:
            return self
        side = self.longest
        return replace(self, rows=self.tokens // side, target=side, source=side if self.source else 0)


@dataclass(frozen=True)
class Cost:
    """What `estimate` found, and for what. Bytes are those of one device, at the largest micro-batch."""

    config: ModelConfig
    work: Work
    precision: Precision
    optimiser: str
    parameters: int
    non_embedding: int  # parameters outside the tables of word vectors
    forward_flops_per_step: int
    weights_bytes: int
    gradients_bytes: int
    optimiser_bytes: int
    activations_bytes: int  # kept from forward for backward, logits included
    loss_bytes: int  # held for a moment while the gradient of the logits is made
    moved_bytes_per_step: int  # through memory, in one pass over all that a step of mean size makes

    @property
    def flops_per_step(self) -> int:
        """Forward and backward."""
        return 3 * self.forward_flops_per_step

    @property
    def total_flops(self) -> int:
        return self.flops_per_step * self.work.steps

    @property
    def lasting_bytes(self) -> int:
        """What is there whatever the batch: weights, gradients, optimiser."""
        return self.weights_bytes + self.gradients_bytes + self.optimiser_bytes

    @property
    def memory(self) -> int:
        return self.lasting_bytes + self.activations_bytes + self.loss_bytes

    def minutes(self, hardware: Hardware, *, captured: bool = False) -> tuple[float, float]:
        """Training alone, at best (compiled) and at worst (eager): no compiling, no validation, data always there.

        `captured`: passes are recorded and replayed (train.capture), so that even eager ones hardly wait for launches.
        """
        rate = hardware.fp32 if self.precision == "fp32" else hardware.bf16
        sublayers = 2 * self.config.decoder.layers
        if isinstance(self.config, EncoderDecoderConfig):
            sublayers += self.config.decoder.layers + 2 * self.config.encoder.layers
        quick, slow = (self.work.accumulate * sublayers * pause for pause in hardware.pause)

        def busy(reached: float, passes: int) -> float:
            moved = passes * self.moved_bytes_per_step + 2 * self.lasting_bytes
            return self.flops_per_step / (reached * rate) + moved / hardware.bandwidth

        best, worst = map(busy, REACHED, hardware.passes)
        # Kernels are launched while others run, so a step takes the longer of the two; replayed ones leave small gaps.
        worst = min(worst + 2 * quick if captured else math.inf, max(worst, slow))
        return self.work.steps * max(best, quick) / 60, self.work.steps * worst / 60

    def describe(self, hardware: Hardware | None = None, *, captured: bool = False) -> str:
        """One line for a person."""
        parts = [
            f"{self.parameters:,} parameters ({_short(self.non_embedding)} without word vectors)",
            f"{_short(self.total_flops)}FLOP in all",
            f"about {_short(self.memory)}B of memory",
        ]
        if hardware is not None:
            parts.append(f"{_span(*self.minutes(hardware, captured=captured))} on {hardware.name}")
        return " · ".join(parts)

    def __str__(self) -> str:
        return self.describe()


def estimate(config: ModelConfig, work: Work, *, precision: Precision, optimiser: str = "adam") -> Cost:
    """What it takes to train a model of this config on this work.

    Weights, gradients and what the optimiser remembers are float32. In bf16 the weights are there a second time, cast,
    and activations take half.
    """
    if (work.source > 0) != isinstance(config, EncoderDecoderConfig):
        raise UserError(f"An encoder–decoder has a source, a language model has none; found {config.kind} and {work}.")
    if precision not in ("fp32", "bf16"):
        raise UserError(f"There is no precision {precision!r}; choose fp32 or bf16.")
    with torch.device("meta"):
        model = config.build()
    parameters = count_parameters(model)
    tables = sum(count_parameters(part) for part in model.modules() if isinstance(part, Vocabulary))
    matrices = sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear))
    # Adam keeps two means of each gradient; Muon one, of the matrices inside the stacks.
    remembered = {"adam": 2 * parameters, "adamw": 2 * parameters, "muon": 2 * parameters - matrices}
    if optimiser not in remembered:
        raise UserError(f"There is no optimiser {optimiser!r}; choose one of {', '.join(remembered)}.")
    activations, loss = _batch_bytes(config, work.largest, precision)
    return Cost(
        config,
        work,
        precision,
        optimiser,
        parameters=parameters,
        non_embedding=parameters - tables,
        forward_flops_per_step=_forward(config, work).flops * work.accumulate,
        weights_bytes=parameters * (4 if precision == "fp32" else 4 + 2),
        gradients_bytes=parameters * 4,
        optimiser_bytes=remembered[optimiser] * 4,
        activations_bytes=activations,
        loss_bytes=loss,
        moved_bytes_per_step=_moved_bytes(config, work, precision) * work.accumulate,
    )


def advice_for_memory(cost: Cost, hardware: Hardware) -> str | None:
    """None if it fits (or nobody knows); otherwise what to change, in one sentence."""
    room = int(hardware.memory * USABLE)
    if hardware.memory == 0 or cost.memory <= room:
        return None
    found = f"Training takes about {_short(cost.memory)}B, and {hardware.name} has {_short(room)}B to count on"
    longest, lasting = cost.work.longest, cost.lasting_bytes
    row = sum(_batch_bytes(cost.config, replace(cost.work, tokens=longest).largest, cost.precision))
    rows = max(0, room - lasting) // row
    if rows == 0:
        return (
            f"{found}: not even one row of {longest:,} tokens fits beside the {_short(lasting)}B of weights, gradients "
            "and optimiser; choose a smaller model, shorter rows or a larger machine."
        )
    parts = math.ceil(cost.work.largest.rows / rows) * cost.work.accumulate
    change = f"set train.tokens to {rows * longest:,} or less, with train.accumulate at {parts} for as large a step"
    half = estimate(cost.config, cost.work, precision="bf16", optimiser=cost.optimiser).memory
    if half <= room:
        change += f", or train.precision to bf16, which takes about {_short(half)}B"
    return f"{found}: {change}."


@dataclass(frozen=True)
class _Effort:
    """Part of a forward pass: its FLOPs, the numbers it keeps for backward, and the bytes of its dropout masks.

    A mask is a byte for each number, as on a GPU; on a CPU it is as large as what it falls on.
    """

    flops: int = 0
    kept: int = 0
    masks: int = 0

    def __add__(self, other: "_Effort") -> "_Effort":
        return _Effort(self.flops + other.flops, self.kept + other.kept, self.masks + other.masks)

    def __mul__(self, times: int) -> "_Effort":
        return _Effort(times * self.flops, times * self.kept, times * self.masks)


def _batch_bytes(config: ModelConfig, work: Work, precision: Precision) -> tuple[int, int]:
    """What a micro-batch keeps for backward, and what its loss holds while the gradient of the logits is made."""
    size = 4 if precision == "fp32" else 2
    effort = _forward(config, work)
    logits = work.rows * work.passes * work.target * config.vocabulary
    # The loss leaves the gradient of the logits, made some rows at a time beside them (see train/loss.py).
    return effort.kept * size + effort.masks + logits * size, logits * size


def _moved_bytes(config: ModelConfig, work: Work, precision: Precision) -> int:
    """What a micro-batch moves through memory in one pass over all it makes.

    The loss looks at its logits in float32 several times: 20 bytes each fit the steps that were measured.
    """
    size = 4 if precision == "fp32" else 2
    effort = _forward(config, work)
    return effort.kept * size + effort.masks + work.rows * work.passes * work.target * config.vocabulary * 20


def _forward(config: ModelConfig, work: Work) -> _Effort:
    """A micro-batch, from ids to logits; `_batch_bytes` knows what the logits themselves take."""
    width, source, target = config.width, work.source, work.target
    row = _embedding(config, target) + _stack(config.decoder, width, target, causal=True)
    row += _Effort(flops=2 * target * width * config.vocabulary)
    if isinstance(config, EncoderDecoderConfig):
        heads, layers = config.decoder.attention, config.decoder.layers
        row += _embedding(config, source) + _stack(config.encoder, width, source, causal=False)
        row += _keys_and_values(heads, width, source) * (1 if config.memory == "shared" else layers)
        row += (_around(config.decoder, width, target) + _heads(heads, width, target, target * source)) * layers
    return row * (work.rows * work.passes)


def _embedding(config: ModelConfig, tokens: int) -> _Effort:
    """Its result is kept by what comes next."""
    cells = tokens * config.width
    return _Effort(kept=cells * (config.embedding.norm is not None), masks=cells * (config.embedding.dropout > 0))


def _stack(config: StackConfig, width: int, tokens: int, causal: bool) -> _Effort:
    """Self-attention and feed-forward in every layer; cross-attention is counted by `_forward`."""
    seen = read_pattern(config.attention.pattern)
    scope = (Causal() & seen if causal else seen).over(tokens)
    pairs = round(scope.share_in_strips() * tokens * tokens)
    attention = _keys_and_values(config.attention, width, tokens) + _heads(config.attention, width, tokens, pairs)
    layer = attention + _feed_forward(config.feed_forward, width, tokens) + _around(config, width, tokens) * 2
    # What enters the first sublayer of post-norm, or enters and leaves the last norm of the others.
    return layer * config.layers + _Effort(kept=(1 if config.order == "post" else 2) * tokens * width)


def _around(config: StackConfig, width: int, tokens: int) -> _Effort:
    """Norm, dropout and residual of a sublayer: what enters the norm and what leaves it."""
    return _Effort(kept=2 * tokens * width, masks=tokens * width * (config.dropout > 0))


def _keys_and_values(config: HeadsConfig, width: int, tokens: int) -> _Effort:
    sizes = config.sizes(width)
    made = tokens * sizes.key_heads * (sizes.head_width + sizes.value_width)
    normalised = tokens * sizes.key_heads * sizes.head_width * (config.similarity == "cosine")
    return _Effort(flops=2 * width * made, kept=made + normalised)


def _heads(config: HeadsConfig, width: int, queries: int, pairs: int) -> _Effort:
    """Make queries, compare them with keys, mix values, put the heads together."""
    sizes = config.sizes(width)
    asked, mixed = queries * sizes.heads * sizes.head_width, queries * sizes.heads * sizes.value_width
    compared = 2 * pairs * sizes.heads * (sizes.head_width + sizes.value_width)
    flops = 2 * width * asked + compared + (2 * width * mixed if config.output else 0)
    copies = 3 if config.similarity == "cosine" else 1  # as made, normalised, scaled
    return _Effort(flops, kept=mixed + copies * asked)


def _feed_forward(config: FeedForwardConfig, width: int, tokens: int) -> _Effort:
    hidden = tokens * config.hidden
    if "glu" in config.activation:  # both widened copies, the bent one, and their product
        maps, kept = 3, 4
    else:  # before and after the bend; ReLU's gradient needs only what comes after, if dropout leaves it alone
        maps, kept = 2, 1 if config.activation == "relu" and config.dropout == 0 else 2
    return _Effort(2 * width * hidden * maps, hidden * kept, hidden * (config.dropout > 0))


def _short(number: int) -> str:
    """7400000 → 7.4 M; a unit may follow."""
    power = (len(str(number)) - 1) // 3
    return f"{number / 1000**power:.1f} {('', 'k', 'M', 'G', 'T', 'P', 'E', 'Z', 'Y')[power]}"


def _span(low: float, high: float) -> str:
    """A range of minutes, in the unit that suits its upper end."""
    units = (("days", 1440.0, 2880.0), ("hours", 60.0, 120.0), ("minutes", 1.0, 1.0), ("seconds", 1 / 60, 0.0))
    unit, one = next((unit, one) for unit, one, least in units if high >= least)
    return "–".join(f"{time / one:.{0 if time / one >= 10 else 1}f}" for time in (low, high)) + f" {unit}"
