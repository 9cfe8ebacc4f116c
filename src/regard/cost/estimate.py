"""What a model costs to train, known before it is trained: parameters, arithmetic, memory, minutes.

**Nothing is allocated.** Parameters are counted on a model without storage. All else follows from the config and the
shape of a batch (see `effort.py`), so that a line says where each number comes from. Backward takes twice the FLOPs of
forward, for every product has two gradients.

**Memory** is that of an eager step when the loss is taken, which is when most is held:

- weights in float32, and for bf16 a second time, cast, because backward needs them;
- gradients and what the optimiser remembers, both in float32 (see `estimate` for several processes);
- what forward keeps for backward, and the gradient of the logits, which the loss leaves (see train/loss.py);
- for that moment the logits themselves, and where no kernel does it some rows of them in float32, several times;
- on a GPU what its library of matrix products sets aside for every thread and stream: one thread goes forward, one
  backward, and recorded passes (train/gradient.py) warm up on streams of their own (`Cost.peak`).

A compiled step fuses parts of this and takes less.

**Minutes** are a range, because arithmetic is not all that a model waits for; see `Hardware`.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from regard.cost.effort import Device, Effort, Precision, cache_numbers, forward, number_size, step, sublayers
from regard.cost.hardware import Hardware
from regard.cost.words import short, span
from regard.errors import UserError
from regard.model import EncoderDecoderConfig, ModelConfig, count_parameters
from regard.model.block import Block
from regard.model.embedding import Vocabulary

REACHED = (0.9, 0.6)
"""The share of a machine's FLOP/s that matrix products of models reach, at best and at worst."""
USABLE = 0.9
"""The share of a machine's memory that training can count on: the rest goes to the driver and to gaps."""
LossWay = Literal["rows", "kernel", "over"]
"""How the loss is taken: some rows at a time with PyTorch's own operations, by a kernel that needs no room of its own
(train/triton_loss.py), or by that kernel with the gradient of the logits written over them."""
LOSS_CELLS: dict[Device, int] = {"cpu": 1 << 19, "cuda": 1 << 23}
"""Logits that the loss looks at together where it takes some rows at a time."""
STREAMS = 32
"""How many streams PyTorch hands out on a GPU, one after another, before the first comes again."""


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

    def shared(self, processes: int) -> "Work":
        """What each of some processes does of a step that stays as large.

        Whole micro-batches where they go evenly, else a part of each. Rows that do not go evenly count in full: the
        others wait for whoever has one more.
        """
        if self.accumulate % processes == 0:
            return replace(self, accumulate=self.accumulate // processes)
        tokens = None if self.tokens is None else max(self.longest, math.ceil(self.tokens / processes))
        return replace(self, rows=math.ceil(self.rows / processes), tokens=tokens)


@dataclass(frozen=True)
class Cost:
    """What `estimate` found, and for what. Bytes are those of one device, at the largest micro-batch."""

    config: ModelConfig
    work: Work
    precision: Precision
    optimiser: str
    device: Device
    processes: int
    shards: int
    loss: LossWay
    parameters: int
    non_embedding: int  # parameters outside the tables of word vectors
    sides: tuple[Effort, Effort]  # of one micro-batch of mean size: source, target
    weights_bytes: int
    gradients_bytes: int
    optimiser_bytes: int
    activations_bytes: int  # kept from forward for backward, the gradient of the logits included
    loss_bytes: int  # held for a moment while the gradient of the logits is made
    moved_bytes_per_step: int  # through memory, in one pass over all that a step of mean size makes

    @property
    def forward_flops_per_step(self) -> int:
        return sum(side.flops for side in self.sides) * self.work.accumulate

    @property
    def flops_per_step(self) -> int:
        """Forward and backward, of all processes."""
        return 3 * self.forward_flops_per_step

    @property
    def total_flops(self) -> int:
        return self.flops_per_step * self.work.steps

    @property
    def flops_per_token(self) -> tuple[float, float]:
        """Forward, for one token of the source (0 without one) and one of the target; three times that with backward.

        Where each row goes through the model twice, a token costs that twice.
        """
        source, target = self.sides
        return source.flops / max(1, self.work.rows * self.work.source), target.flops / (
            self.work.rows * self.work.target
        )

    @property
    def attention_share(self) -> float:
        """The part of all FLOPs that compares queries with keys and mixes values: what grows with length."""
        return sum(side.attention for side in self.sides) / sum(side.flops for side in self.sides)

    def generated_token_flops(self, length: int | None = None, source: int | None = None) -> int:
        """One more token behind a cache, as the last of `length`; those of the work if not given."""
        found = step(self.config, length or self.work.target, self.work.source if source is None else source)
        return found.flops

    @property
    def cache_bytes_per_token(self) -> tuple[int, int]:
        """While generating: for a token written, and for a token of the source."""
        written, source = cache_numbers(self.config)
        return written * number_size(self.precision), source * number_size(self.precision)

    @property
    def lasting_bytes(self) -> int:
        """What is there whatever the batch: weights, gradients, optimiser."""
        return self.weights_bytes + self.gradients_bytes + self.optimiser_bytes

    @property
    def exchanged_bytes_per_step(self) -> int:
        """What each process sends: all gradients twice round; where weights are shared out, also those, twice."""
        a_parameter = 8 if self.shards == 1 else 4 + 2 * number_size(self.precision)
        return self.parameters * a_parameter * (self.processes - 1) // self.processes

    @property
    def memory(self) -> int:
        """What tensors take; see `peak` for what a library adds."""
        return self.lasting_bytes + self.activations_bytes + self.loss_bytes

    def peak(self, hardware: Hardware, *, captured: bool = False) -> int:
        """What one device of this hardware must hold.

        `captured`: passes are recorded, each shape's on a stream of its own until PyTorch has no more to hand out.
        """
        return self.on(hardware).memory + workspace_bytes(hardware, captured=captured)

    def on(self, hardware: Hardware) -> "Cost":
        """The same by the rules of this hardware's device."""
        if hardware.device == self.device:
            return self
        return self.anew(device=hardware.device)

    def anew(self, *, precision: Precision | None = None, device: Device | None = None) -> "Cost":
        """The same work in another precision or by the rules of another device."""
        return estimate(
            self.config,
            self.work,
            precision=precision or self.precision,
            optimiser=self.optimiser,
            device=device or self.device,
            processes=self.processes,
            shards=self.shards,
            loss=self.loss if device in (None, self.device) else None,
        )

    def minutes(self, hardware: Hardware, *, captured: bool = False) -> tuple[float, float]:
        """Training alone, at best (compiled) and at worst (eager): no compiling, no validation, data always there.

        `captured`: passes are recorded and replayed (train.capture), so that even eager ones hardly wait for launches.
        Several processes each add up all gradients once a step; at best that is done while backward still runs.
        """
        rate = hardware.fp32 if self.precision == "fp32" else hardware.bf16
        mine = self.work.shared(self.processes)
        share = mine.rows * mine.accumulate / (self.work.rows * self.work.accumulate)
        quick, slow = (mine.accumulate * sublayers(self.config) * pause for pause in hardware.pause)
        exchange = self.exchanged_bytes_per_step / hardware.link

        def busy(reached: float, passes: int) -> float:
            moved = share * passes * self.moved_bytes_per_step + 2 * self.lasting_bytes
            return share * self.flops_per_step / (reached * rate) + moved / hardware.bandwidth

        best, worst = map(busy, REACHED, hardware.passes)
        # Kernels are launched while others run, so a step takes the longer of the two; replayed ones leave small gaps.
        worst = min(worst + 2 * quick if captured else math.inf, max(worst, slow)) + exchange
        return self.work.steps * max(best, quick, exchange) / 60, self.work.steps * worst / 60

    def describe(self, hardware: Hardware | None = None, *, captured: bool = False) -> str:
        """One line for a person."""
        memory = self.memory if hardware is None else self.peak(hardware, captured=captured)
        parts = [
            f"{self.parameters:,} parameters ({short(self.non_embedding)} without word vectors)",
            f"{short(self.total_flops)}FLOP in all",
            f"about {short(memory)}B of memory",
        ]
        if hardware is not None:
            parts.append(f"{span(*self.minutes(hardware, captured=captured))} on {hardware.name}")
        return " · ".join(parts)

    def __str__(self) -> str:
        return self.describe()


def estimate(
    config: ModelConfig,
    work: Work,
    *,
    precision: Precision,
    optimiser: str = "adam",
    device: Device = "cuda",
    processes: int = 1,
    shards: int = 1,
    loss: LossWay | None = None,
) -> Cost:
    """What it takes to train a model of this config on this work, a step shared by `processes`.

    Weights, gradients and what the optimiser remembers are float32. In bf16 the weights are there a second time, cast,
    and activations take half. `shards` is over how many of the processes weights are shared out (fsdp; 1 is ddp).
    `loss` is how it is taken: by a kernel on a GPU, unless something else is said, and some rows at a time on a CPU.
    """
    if (work.source > 0) != isinstance(config, EncoderDecoderConfig):
        raise UserError(f"An encoder–decoder has a source, a language model has none; found {config.kind} and {work}.")
    if precision not in ("fp32", "bf16"):
        raise UserError(f"There is no precision {precision!r}; choose fp32 or bf16.")
    if processes < 1 or shards < 1 or processes % shards:
        raise UserError(f"Training needs at least 1 process, in groups of equal size; found {processes} and {shards}.")
    with torch.device("meta"):
        model = config.build()
    parameters = count_parameters(model)
    tables = sum(count_parameters(part) for part in model.modules() if isinstance(part, Vocabulary))
    matrices = sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear))
    # Adam keeps two means of each gradient; Muon one, of the matrices inside the stacks.
    remembered = {"adam": 2 * parameters, "adamw": 2 * parameters, "muon": 2 * parameters - matrices}
    if optimiser not in remembered:
        raise UserError(f"There is no optimiser {optimiser!r}; choose one of {', '.join(remembered)}.")
    way: LossWay = "rows" if device == "cpu" else loss or "kernel"
    activations, moment = _batch_bytes(config, work.shared(processes).largest, precision, device, way)
    return Cost(
        config,
        work,
        precision,
        optimiser,
        device,
        processes,
        shards,
        way,
        parameters=parameters,
        non_embedding=parameters - tables,
        sides=forward(config, work.rows * work.passes, work.source, work.target, device),
        weights_bytes=_weights_bytes(model, precision, shards),
        # DistributedDataParallel puts gradients into buckets to exchange them: they are there twice.
        gradients_bytes=parameters * 4 // shards * (2 if processes > 1 and shards == 1 else 1),
        optimiser_bytes=remembered[optimiser] * 4 // shards,
        activations_bytes=activations,
        loss_bytes=moment,
        moved_bytes_per_step=_moved_bytes(config, work, precision) * work.accumulate,
    )


def _weights_bytes(model: nn.Module, precision: Precision, shards: int) -> int:
    """Weights in float32, and as they are computed with: all of them, or of shared ones two blocks and the rest."""
    parameters = count_parameters(model)
    if shards == 1:
        return parameters * (4 if precision == "fp32" else 4 + 2)
    blocks = [count_parameters(part) for part in model.modules() if isinstance(part, Block)]
    gathered = parameters - sum(blocks) + 2 * max(blocks)
    return parameters * 4 // shards + min(parameters, gathered) * number_size(precision)


def workspace_bytes(hardware: Hardware, *, captured: bool) -> int:
    """What the library of matrix products sets aside: once for each thread and stream, and never given back."""
    streams = 1 + (STREAMS if captured and hardware.captures else 0)
    return 2 * streams * hardware.workspace


def advice_for_memory(cost: Cost, hardware: Hardware, *, captured: bool = False) -> str | None:
    """None if it fits (or nobody knows); otherwise what to change, in one sentence."""
    cost = cost.on(hardware)
    room = int(hardware.memory * USABLE)
    needed, aside = cost.peak(hardware, captured=captured), workspace_bytes(hardware, captured=captured)
    if hardware.memory == 0 or needed <= room:
        return None
    found = f"Training takes about {short(needed)}B, and {hardware.name} has {short(room)}B to count on"
    longest, lasting = cost.work.longest, cost.lasting_bytes
    rows = _most_rows(cost, room - lasting - aside)
    if rows == 0:
        return (
            f"{found}: not even one row of {longest:,} tokens fits beside the {short(lasting)}B of weights, gradients "
            "and optimiser; choose a smaller model, shorter rows or a larger machine."
        )
    parts = math.ceil(cost.work.largest.rows / rows) * cost.work.accumulate
    change = f"set train.tokens to {rows * longest:,} or less, with train.accumulate at {parts} for as large a step"
    half = cost.anew(precision="bf16").peak(hardware, captured=captured)
    if half <= room:
        change += f", or train.precision to bf16, which takes about {short(half)}B"
    return f"{found}: {change}."


def _most_rows(cost: Cost, room: int) -> int:
    """How many of the longest rows a micro-batch can have."""
    longest, most = cost.work.longest, cost.work.largest.rows

    def needed(rows: int) -> int:
        work = replace(cost.work, tokens=rows * longest).largest
        return sum(_batch_bytes(cost.config, work, cost.precision, cost.device, cost.loss))

    rows = 0
    for part in (1 << bit for bit in reversed(range(most.bit_length()))):
        if rows + part <= most and needed(rows + part) <= room:
            rows += part
    return rows


def _batch_bytes(
    config: ModelConfig, work: Work, precision: Precision, device: Device, loss: LossWay
) -> tuple[int, int]:
    """What a micro-batch keeps for backward, and what its loss holds while the gradient of the logits is made."""
    source, target = forward(config, work.rows * work.passes, work.source, work.target, device)
    size = number_size(precision)
    logits = work.rows * work.passes * work.target * config.vocabulary
    moment = 0 if loss == "over" else logits * size
    if loss == "rows":  # last turn's logarithms and slopes are still there when the next are made of a float32 copy
        moment += 4 * (4 if precision == "bf16" else 3) * min(logits, LOSS_CELLS[device])
    return (source + target).bytes(precision, device) + logits * size, moment


def _moved_bytes(config: ModelConfig, work: Work, precision: Precision) -> int:
    """What a micro-batch moves through memory in one pass over all it makes.

    The loss looks at its logits in float32 several times: 20 bytes each fit the steps that were measured.
    """
    source, target = forward(config, work.rows * work.passes, work.source, work.target, "cuda")
    logits = work.rows * work.passes * work.target * config.vocabulary
    return (source + target).bytes(precision, "cuda") + logits * 20
