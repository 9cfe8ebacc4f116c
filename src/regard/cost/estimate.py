"""What a model costs to train, known before it is trained: parameters, arithmetic, memory, minutes.

**Nothing is allocated.** Parameters are counted on a model without storage. All else follows from the config and the
shape of a batch (see `forward.py`), so that a line says where each number comes from. Backward takes twice the FLOPs of
forward, for every product has two gradients. Where layers are computed again on the way back (train.recompute), their
products take a third more.

**Memory** is that of a step at the moment when most is held (see `memory.py`), in the form that training takes: on one
GPU the fast one, with words scored in the loss. It is made of:

- weights in float32, and for bf16 a second time, cast, because backward needs them;
- gradients and what the optimiser remembers, both in float32 (see `estimate` for several processes);
- what forward keeps for backward (`fast.py`, `forward.py`);
- what is there for a moment only: scores of words, gradients on their way, the inside of a layer computed again;
- on a GPU what its library of matrix products sets aside for every thread and stream, and while a pass that adds to
  others is recorded (train/gradient.py) the gradients so far, kept aside (`Cost.peak`).

**Minutes** are a range, because arithmetic is not all that a model waits for; see `Hardware`.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import nn

from regard.cost.effort import Device, Effort, Precision, number_size
from regard.cost.fast import is_fast, is_recordable
from regard.cost.forward import cache_numbers, cache_slots, forward, parts, step, sublayers
from regard.cost.hardware import Hardware
from regard.cost.memory import Form, LossWay, batch_bytes, computed_again, weights_bytes, workspace_bytes
from regard.cost.readers import answers
from regard.cost.words import short, span
from regard.cost.work import Work
from regard.errors import UserError
from regard.model import (
    AnyModelConfig,
    EncoderDecoderConfig,
    ModelConfig,
    VisionTransformerConfig,
    count_parameters,
    count_table_parameters,
)
from regard.model.experts import Router

REACHED = (0.9, 0.6)
"""The share of a machine's FLOP/s that matrix products of models reach, at best and at worst."""


@dataclass(frozen=True)
class Cost:
    """What `estimate` found, and for what. Bytes are those of one device, at the largest micro-batch."""

    config: AnyModelConfig
    work: Work
    precision: Precision
    optimiser: str
    device: Device
    processes: int
    shards: int
    form: Form
    loss: LossWay
    recompute: bool  # whether the inside of layers is computed again on the way back
    recorded: bool  # whether that is in passes that are recorded, where some layers keep everything all the same
    parameters: int
    non_embedding: int  # parameters outside the tables of word vectors
    sides: tuple[Effort, Effort]  # of one micro-batch of mean size: source, target
    again: tuple[int, int]  # of their FLOPs, those that are computed again on the way back
    weights_bytes: int
    gradients_bytes: int
    optimiser_bytes: int
    activations_bytes: int  # kept from forward for backward, the logits included where they are kept whole
    loss_bytes: int  # held for a moment beside them, when the loss is taken or on the way back
    moved_bytes_per_step: int  # through memory, in one pass over all that a step of mean size makes

    @property
    def lowered(self) -> bool:
        """Whether passes have copies of all weights in bf16, with gradients of their own (train/lowered.py)."""
        return self.form == "fast" and self.precision == "bf16" and self.processes == 1

    @property
    def writes(self) -> bool:
        """Whether the model writes word after word, behind a cache; or only reads."""
        return isinstance(self.config, ModelConfig)

    @property
    def forward_flops_per_step(self) -> int:
        return sum(side.flops for side in self.sides) * self.work.accumulate

    @property
    def flops_per_step(self) -> int:
        """Forward and backward, of all processes."""
        return 3 * self.forward_flops_per_step + sum(self.again) * self.work.accumulate

    @property
    def total_flops(self) -> int:
        return self.flops_per_step * self.work.steps

    @property
    def flops_per_token(self) -> tuple[float, float]:
        """Forward, for one token of the source (0 without one) and one of the target.

        Where each row goes through the model twice, a token costs that twice.
        """
        source, target = self.sides
        return self._a_token(source.flops, target.flops)

    @property
    def training_flops_per_token(self) -> tuple[float, float]:
        """The same with backward: three times as much, and what is computed again."""
        source, target = (3 * side.flops + again for side, again in zip(self.sides, self.again, strict=True))
        return self._a_token(source, target)

    def _a_token(self, source: int, target: int) -> tuple[float, float]:
        work = self.work
        return source / max(1, work.rows * work.source), target / (work.rows * work.target)

    @property
    def attention_share(self) -> float:
        """The part of all FLOPs that compares queries with keys and mixes values: what grows with length."""
        return sum(side.attention for side in self.sides) / sum(side.flops for side in self.sides)

    def generated_token_flops(
        self, length: int | None = None, source: int | None = None, room: int | None = None
    ) -> int:
        """One more token behind a cache, as the last of `length`; those of the work if not given.

        `room` is for how many tokens the cache was made, `length` if not given. It makes a difference under a window,
        whose slots are all looked at.
        """
        source = self.work.source if source is None else source
        return step(self._writer, length or self.work.target, source, room).flops

    @property
    def cache_bytes_per_token(self) -> tuple[int, int]:
        """While generating: for a token written, and for a token of the source."""
        written, source = cache_numbers(self._writer)
        return written * number_size(self.precision), source * number_size(self.precision)

    @property
    def cache_tokens(self) -> int | None:
        """Of how many tokens written a cache holds anything at most: those a window reaches; None without one."""
        return cache_slots(self._writer)

    def cache_bytes(self, length: int | None = None, source: int | None = None) -> int:
        """Of one text of `length` tokens about a source; those of the work if not given."""
        length, source = length or self.work.target, self.work.source if source is None else source
        written, read = self.cache_bytes_per_token
        return written * min(length, self.cache_tokens or length) + read * source

    @property
    def _writer(self) -> ModelConfig:
        if not isinstance(self.config, ModelConfig):
            raise UserError(f"A model of the kind {self.config.kind!r} writes nothing, so it has no cache.")
        return self.config

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
        """What tensors take; see `peak` for what comes on top."""
        return self.lasting_bytes + self.activations_bytes + self.loss_bytes

    def batch_bytes(self, work: Work) -> tuple[int, int]:
        """What a micro-batch of some work keeps for backward, and what is held beside that when most is."""
        shape = (work.rows * work.passes, work.source, work.target)
        return batch_bytes(
            self.config,
            *shape,
            self.precision,
            self.device,
            self.form,
            self.loss,
            self.parameters if self.lowered else 0,
            asked=work.asked,
            recompute=self.recompute,
            recorded=self.recorded,
        )

    @property
    def recordable(self) -> bool:
        """Whether a GPU can record passes: those of one process, and none that would have to draw the same twice."""
        return self.processes == 1 and not (self.recompute and not is_recordable(self.config))

    def peak(self, hardware: Hardware, *, captured: bool = False) -> int:
        """What CUDA reports at most for one device of this hardware; `captured`: passes are recorded."""
        cost = self.on(hardware, captured=captured)
        return cost.memory + cost.beside(hardware, captured=captured)

    def beside(self, hardware: Hardware, *, captured: bool) -> int:
        """What is held besides a step's own tensors: workspaces, and gradients kept aside."""
        return workspace_bytes(hardware, captured=captured) + self.recording_bytes(hardware, captured=captured)

    def recording_bytes(self, hardware: Hardware, *, captured: bool) -> int:
        """The gradients so far, a second time, while the pass for another shape is recorded.

        None where a step's first pass takes the place of what was there before, and there is no other.
        """
        if not (captured and hardware.captures) or (self.lowered and self.work.accumulate == 1):
            return 0
        return 4 * self.parameters

    def on(self, hardware: Hardware, *, captured: bool = False) -> "Cost":
        """The same by the rules of this hardware's device; `captured`: passes are recorded."""
        if hardware.device == self.device and (hardware.captures or self.form == "plain"):
            return self._in_passes(recorded=captured and hardware.captures)
        moved = self.anew(device=hardware.device, form=None if hardware.captures else "plain")
        return moved._in_passes(recorded=captured and hardware.captures)

    def _in_passes(self, *, recorded: bool) -> "Cost":
        """The same with passes that are recorded, or not: that makes a difference only where layers are recomputed."""
        return self.anew(recorded=recorded) if self.recompute and recorded != self.recorded else self

    def anew(
        self,
        *,
        precision: Precision | None = None,
        device: Device | None = None,
        form: Form | None = None,
        recompute: bool | None = None,
        recorded: bool | None = None,
    ) -> "Cost":
        """The same work in another way, or by the rules of another device and form."""
        moved = (device or self.device, form or self.form) != (self.device, self.form)
        return estimate(
            self.config,
            self.work,
            precision=precision or self.precision,
            optimiser=self.optimiser,
            device=device or self.device,
            processes=self.processes,
            shards=self.shards,
            form=form if moved else self.form,
            loss=None if moved else self.loss,
            recompute=self.recompute if recompute is None else recompute,
            recorded=self.recorded if recorded is None else recorded,
        )

    def minutes(self, hardware: Hardware, *, captured: bool = False) -> tuple[float, float]:
        """Training alone, at best (compiled) and at worst (eager): no compiling, no validation, data always there.

        `captured`: passes are recorded and replayed (train.capture), so that even eager ones hardly wait for launches.
        Several processes each add up all gradients once a step; at best that is done while backward still runs.
        """
        return self._in_passes(recorded=captured and hardware.captures)._minutes(hardware, captured)

    def _minutes(self, hardware: Hardware, captured: bool) -> tuple[float, float]:
        rate = hardware.fp32 if self.precision == "fp32" else hardware.bf16
        mine = self.work.shared(self.processes)
        share = mine.rows * mine.accumulate / (self.work.rows * self.work.accumulate)
        more = self.flops_per_step / (3 * self.forward_flops_per_step)  # what is computed again is launched again, too
        quick, slow = (more * mine.accumulate * sublayers(self.config) * pause for pause in hardware.pause)
        exchange = self.exchanged_bytes_per_step / hardware.link

        def busy(reached: float, passes: int) -> float:
            moved = more * share * passes * self.moved_bytes_per_step + 2 * self.lasting_bytes
            return share * self.flops_per_step / (reached * rate) + moved / hardware.bandwidth

        best, worst = map(busy, REACHED, hardware.passes)
        # Kernels are launched while others run, so a step takes the longer of the two; replayed ones leave small gaps.
        worst = min(worst + 2 * quick if captured else math.inf, max(worst, slow)) + exchange
        return self.work.steps * max(best, quick, exchange) / 60, self.work.steps * worst / 60

    def describe(self, hardware: Hardware | None = None, *, captured: bool = False) -> str:
        """One line for a person."""
        cost = self if hardware is None else self.on(hardware, captured=captured)
        memory = self.memory if hardware is None else self.peak(hardware, captured=captured)
        each = "" if self.processes == 1 else f" in each of {self.processes} processes"
        facts = [
            f"{self.parameters:,} parameters ({short(self.non_embedding)} without word vectors)",
            f"{short(cost.total_flops)}FLOP in all",
            f"about {short(memory)}B of memory{each}",
        ]
        if hardware is not None:
            facts.append(f"{span(*self.minutes(hardware, captured=captured))} on {hardware.name}")
        return " · ".join(facts)

    def __str__(self) -> str:
        return self.describe()


def estimate(
    config: AnyModelConfig,
    work: Work,
    *,
    precision: Precision,
    optimiser: str = "adam",
    device: Device = "cuda",
    processes: int = 1,
    shards: int = 1,
    form: Form | None = None,
    loss: LossWay | None = None,
    recompute: bool = False,
    recorded: bool = False,
) -> Cost:
    """What it takes to train a model of this config on this work, a step shared by `processes`.

    Weights, gradients and what the optimiser remembers are float32. In bf16 the weights are there a second time, cast,
    and activations take half. `shards` is over how many of the processes weights are shared out (fsdp; 1 is ddp).
    `form` and `loss` are how a step is computed. Left out, they are what training takes: on a GPU the fast form, unless
    weights are shared out, with words scored in the loss where one process takes one pass, else with the gradient of
    the logits written over them (as of all models that do not write); on a CPU the plain form, some rows at a time.
    `recompute`: the inside of layers is
    computed again on the way back; `recorded`: in passes that are recorded (see `Cost.on`).
    """
    if (work.source > 0) != isinstance(config, EncoderDecoderConfig):
        raise UserError(f"An encoder–decoder has a source, a language model has none; found {config.kind} and {work}.")
    if (
        isinstance(config, VisionTransformerConfig)
        and work.target < config.tokens - config.grid[0] * config.grid[1] + 1
    ):
        raise UserError(f"A picture has at least one patch beside its other tokens; found {work}.")
    if precision not in ("fp32", "bf16"):
        raise UserError(f"There is no precision {precision!r}; choose fp32 or bf16.")
    if processes < 1 or shards < 1 or processes % shards:
        raise UserError(f"Training needs at least 1 process, in groups of equal size; found {processes} and {shards}.")
    with torch.device("meta"):
        model = config.build()
    parameters = count_parameters(model)
    tables = count_table_parameters(model)
    matrices = sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear | Router))
    # Adam keeps two means of each gradient; Muon one, of the matrices inside the stacks.
    remembered = {"adam": 2 * parameters, "adamw": 2 * parameters, "muon": 2 * parameters - matrices}
    if optimiser not in remembered:
        raise UserError(f"There is no optimiser {optimiser!r}; choose one of {', '.join(remembered)}.")
    form = form or ("fast" if device == "cuda" and shards == 1 and is_fast(config) else "plain")
    alone = form == "fast" and processes == 1 and isinstance(config, ModelConfig)
    loss = "rows" if device == "cpu" else loss or ("late" if alone and work.passes == 1 else "over")
    shape = (work.rows * work.passes, work.source, work.target)
    again = computed_again(config, work.source, work.target, form, recompute=recompute, recorded=recorded)
    twice = [
        side.layers.flops if chosen else 0
        for side, chosen in zip(parts(config, *shape, device, work.asked), again, strict=True)
    ]
    found = Cost(
        config,
        work,
        precision,
        optimiser,
        device,
        processes,
        shards,
        form,
        loss,
        recompute,
        recorded,
        parameters=parameters,
        non_embedding=parameters - tables,
        sides=forward(config, *shape, device, work.asked),
        again=(twice[0], twice[1]),
        weights_bytes=weights_bytes(model, precision, shards),
        gradients_bytes=parameters * 4 // shards,
        optimiser_bytes=remembered[optimiser] * 4 // shards,
        activations_bytes=0,
        loss_bytes=0,
        moved_bytes_per_step=_moved_bytes(config, work, precision) * work.accumulate,
    )
    kept, moment = found.batch_bytes(work.shared(processes).largest)
    # DistributedDataParallel puts gradients into buckets to exchange them. Those of copies in bf16 are brought to
    # float32 before they are added to those of the micro-batches before.
    copied = (processes > 1 and shards == 1) or (found.lowered and work.accumulate > 1)
    gradients = found.gradients_bytes * (2 if copied else 1)
    return replace(found, gradients_bytes=gradients, activations_bytes=kept, loss_bytes=moment)


def _moved_bytes(config: AnyModelConfig, work: Work, precision: Precision) -> int:
    """What a micro-batch moves through memory in one pass over all it makes.

    The loss looks at its logits in float32 several times: 20 bytes each fit the steps that were measured.
    """
    rows, (given, classes) = work.rows * work.passes, answers(config, work.target, work.asked)
    source, target = forward(config, rows, work.source, work.target, "cuda", work.asked)
    logits = rows * given * classes
    return (source + target).bytes(precision, "cuda") + logits * 20
