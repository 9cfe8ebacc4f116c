"""The cost of training a model, estimated before it is trained: parameters, FLOPs, memory, minutes.

**Nothing is allocated.** Parameters are counted on a model on the meta device. Everything else follows from the config
and the shape of a batch (`forward.py`). Backward takes twice the FLOPs of forward, because every matmul has two
gradients; under activation checkpointing the layers' forward is computed once more.

**Memory** is the peak of a step (`memory.py`), in the implementation that training uses: on one GPU the fused model
with deferred logits. It consists of:

- float32 weights, and for bfloat16 a second, cast copy, because backward needs it;
- gradients and optimizer state, both in float32 (`TrainingSetup` for several processes);
- activations saved for backward (`fused_forward.py`, `forward.py`);
- temporaries: logits, gradients in flight, a recomputed layer;
- on a GPU cuBLAS workspaces, and while the pass of another batch shape is captured (train/step.py) a second copy of the
  gradients accumulated so far (`Cost.peak_bytes`).

**Minutes** are a range, because a step waits for more than arithmetic; see `Hardware`.
"""

import math
from dataclasses import dataclass, replace

from torch import nn

from regard.cost.counted import state_cost
from regard.cost.encoder_models import predictions
from regard.cost.format import duration_range, si_prefixed
from regard.cost.forward import (
    decode_step_cost,
    forward_cost,
    kv_cache_capacity,
    kv_cache_values,
    stack_costs,
    sublayer_count,
)
from regard.cost.fused_forward import has_static_rotations, is_capturable
from regard.cost.hardware import Hardware
from regard.cost.memory import batch_bytes, weight_bytes, workspace_bytes
from regard.cost.op_cost import OpCost, Precision, bytes_per_value
from regard.cost.setup import TrainingSetup
from regard.cost.workload import BatchShape, Workload
from regard.errors import UserError
from regard.model import (
    AnyModelConfig,
    EncoderDecoderConfig,
    GenerativeConfig,
    SequenceConfig,
    StaticVectorsConfig,
    VisionTransformerConfig,
    build_meta,
    count_embedding_parameters,
    count_parameters,
)
from regard.model.before.base import Seq2SeqConfig
from regard.model.mixture_of_experts import Router

ACHIEVED_FLOPS = (0.9, 0.6)
"""The fraction of a device's FLOP/s that the matmuls of models achieve, at best and at worst."""


def estimate(config: AnyModelConfig, workload: Workload, setup: TrainingSetup) -> "Cost":
    """The cost of training a model with this config on this workload.

    Weights, gradients and optimizer state are float32. In bfloat16 there is a second, cast copy of the weights, and
    activations take half.
    """
    if isinstance(config, StaticVectorsConfig):
        raise UserError(
            "Word vectors are trained on one word after the other, without batches and layers, so their cost is not "
            "estimated; a run says how many words per second it trains on."
        )
    _check_workload(config, workload)
    setup = setup.resolved(config, workload)
    model = build_meta(config)
    parameters = count_parameters(model)
    batch = workload.shape
    recomputed = [
        stack.layers.flops if flag else 0
        for stack, flag in zip(
            stack_costs(config, batch, setup.device), setup.uses_checkpointing(config, batch), strict=True
        )
    ]
    # DDP copies gradients into buckets to all-reduce them. Gradients of bfloat16 copies are cast to float32 before they
    # are added to those of earlier micro-batches.
    has_second_copy = (setup.processes > 1 and setup.shards == 1) or (
        setup.has_bfloat16_copies and workload.grad_accumulation > 1
    )
    copies = parameters if setup.has_bfloat16_copies else 0
    largest = workload.per_process(setup.processes).largest
    activations, temporaries = batch_bytes(config, largest.shape, setup, copies)
    return Cost(
        config,
        workload,
        setup,
        parameters=parameters,
        embedding_parameters=count_embedding_parameters(model),
        forward=forward_cost(config, batch, setup.device),
        recomputed_flops=(recomputed[0], recomputed[1]),
        weight_bytes=weight_bytes(model, setup.precision, setup.shards),
        gradient_bytes=(parameters * 4 // setup.shards) * (2 if has_second_copy else 1),
        optimizer_bytes=_optimizer_values(model, setup.optimizer) * 4 // setup.shards,
        activation_bytes=activations,
        temporary_bytes=temporaries,
        memory_traffic_per_step=_memory_traffic(config, batch, setup.precision) * workload.grad_accumulation,
    )


@dataclass(frozen=True)
class Cost:
    """An estimate, and what it is for. Bytes are those of one device, at the largest micro-batch."""

    config: AnyModelConfig
    workload: Workload
    setup: TrainingSetup
    parameters: int
    embedding_parameters: int  # token embeddings and output matrices
    forward: tuple[OpCost, OpCost]  # of one micro-batch of mean size: source, target
    recomputed_flops: tuple[int, int]  # of these, what activation checkpointing computes once more
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int  # saved for backward, the logits included where they are
    temporary_bytes: int  # beside them at the peak: in the loss or in backward
    memory_traffic_per_step: int  # bytes, if a step of mean size read or wrote everything it makes once

    @property
    def non_embedding_parameters(self) -> int:
        return self.parameters - self.embedding_parameters

    @property
    def is_autoregressive(self) -> bool:
        """Whether the model generates token by token, with a KV cache or another state."""
        return isinstance(self.config, GenerativeConfig)

    @property
    def forward_flops_per_step(self) -> int:
        return sum(side.flops for side in self.forward) * self.workload.grad_accumulation

    @property
    def flops_per_step(self) -> int:
        """Forward and backward, of all processes."""
        return 3 * self.forward_flops_per_step + sum(self.recomputed_flops) * self.workload.grad_accumulation

    @property
    def training_flops(self) -> int:
        """Of all steps."""
        return self.flops_per_step * self.workload.steps

    @property
    def flops_per_token(self) -> tuple[float, float]:
        """Forward, for one token of the source (0 without one) and one of the target.

        Under R-Drop, which takes each row through the model twice, that is twice the cost.
        """
        source, target = self.forward
        return self._per_token(source.flops, target.flops)

    @property
    def training_flops_per_token(self) -> tuple[float, float]:
        """Forward and backward, with what is recomputed."""
        source, target = (
            3 * side.flops + again for side, again in zip(self.forward, self.recomputed_flops, strict=True)
        )
        return self._per_token(source, target)

    def _per_token(self, source: int, target: int) -> tuple[float, float]:
        work = self.workload
        return source / max(1, work.batch_size * work.source_length), target / (work.batch_size * work.target_length)

    @property
    def attention_fraction(self) -> float:
        """The fraction of all FLOPs in QKᵀ and weights × V, which grows with length."""
        flops = sum(side.flops for side in self.forward)
        return sum(side.attention_flops for side in self.forward) / flops if flops else 0.0

    # Generation

    def generated_token_flops(
        self, length: int | None = None, source_length: int | None = None, cache_capacity: int | None = None
    ) -> int:
        """One more token with a KV cache, as the last of `length`; lengths are the workload's if not given.

        `cache_capacity` is the number of tokens the cache was allocated for, `length` if not given. It matters under a
        window, where a step attends to all slots.
        """
        source_length = self.workload.source_length if source_length is None else source_length
        length = length or self.workload.target_length
        return decode_step_cost(self._autoregressive, length, source_length, cache_capacity).flops

    @property
    def kv_cache_bytes_per_token(self) -> tuple[int, int]:
        """Per generated token, and per source token; models that are no Transformers also have `state_bytes`."""
        config = self._autoregressive
        if isinstance(config, SequenceConfig):
            length, source_length = self.workload.target_length, self.workload.source_length
            now = self._state_bytes(length, source_length)
            longer_source = self._state_bytes(length, source_length + 1) if source_length else now
            return self._state_bytes(length + 1, source_length) - now, longer_source - now
        generated, source = kv_cache_values(config)
        size = bytes_per_value(self.setup.precision)
        return generated * size, source * size

    @property
    def state_bytes(self) -> int:
        """What one sequence holds whatever its length, such as the hidden states of a recurrent network."""
        if not isinstance(self.config, SequenceConfig):
            return 0
        length, source_length = self.workload.target_length, self.workload.source_length
        generated, source = self.kv_cache_bytes_per_token
        return max(0, self._state_bytes(length, source_length) - generated * length - source * source_length)

    def _state_bytes(self, length: int, source_length: int) -> int:
        assert isinstance(self.config, SequenceConfig)
        return state_cost(self.config, length, source_length).bytes(self.setup.precision, "cuda")

    @property
    def kv_cache_tokens(self) -> int | None:
        """The most generated tokens a KV cache holds: those within the window; None without one."""
        config = self._autoregressive
        return None if isinstance(config, SequenceConfig) else kv_cache_capacity(config)

    def kv_cache_bytes(self, length: int | None = None, source_length: int | None = None) -> int:
        """Of one sequence of `length` tokens with its source; lengths are the workload's if not given."""
        length = length or self.workload.target_length
        source_length = self.workload.source_length if source_length is None else source_length
        if isinstance(self.config, SequenceConfig):
            return self._state_bytes(length, source_length)
        generated, source = self.kv_cache_bytes_per_token
        return generated * min(length, self.kv_cache_tokens or length) + source * source_length

    @property
    def _autoregressive(self) -> GenerativeConfig:
        if not isinstance(self.config, GenerativeConfig):
            raise UserError(f"A model of kind {self.config.kind!r} does not generate, so it has no KV cache.")
        return self.config

    # Memory and communication

    @property
    def model_state_bytes(self) -> int:
        """What does not depend on the batch: weights, gradients, optimizer state."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def communication_bytes_per_step(self) -> int:
        """What each process sends to all-reduce the gradients; with sharded weights also for two all-gathers."""
        per_parameter = 8 if self.setup.shards == 1 else 4 + 2 * bytes_per_value(self.setup.precision)
        return self.parameters * per_parameter * (self.setup.processes - 1) // self.setup.processes

    @property
    def tensor_bytes(self) -> int:
        """What tensors take; see `peak_bytes` for what comes on top."""
        return self.model_state_bytes + self.activation_bytes + self.temporary_bytes

    def batch_bytes(self, workload: Workload) -> tuple[int, int]:
        """What a micro-batch of some workload saves for backward, and what exists beside that at the peak."""
        copies = self.parameters if self.setup.has_bfloat16_copies else 0
        return batch_bytes(self.config, workload.shape, self.setup, copies)

    def peak_bytes(self, hardware: Hardware, *, cuda_graphs: bool = False) -> int:
        """The peak that CUDA reports for one device of this hardware."""
        cost = self.on(hardware, cuda_graphs=cuda_graphs)
        return cost.tensor_bytes + cost.overhead_bytes(hardware, cuda_graphs=cuda_graphs)

    def overhead_bytes(self, hardware: Hardware, *, cuda_graphs: bool) -> int:
        """What is allocated besides a step's own tensors: workspaces, and a copy of the gradients during capture."""
        workspaces = workspace_bytes(hardware, cuda_graphs=cuda_graphs)
        return workspaces + self.graph_capture_bytes(hardware, cuda_graphs=cuda_graphs)

    def graph_capture_bytes(self, hardware: Hardware, *, cuda_graphs: bool) -> int:
        """A copy of the gradients accumulated so far, while the pass of another batch shape is captured.

        None where a step has a single pass, which overwrites the gradients.
        """
        if not (cuda_graphs and hardware.supports_cuda_graphs):
            return 0
        if self.setup.has_bfloat16_copies and self.workload.grad_accumulation == 1:
            return 0
        return 4 * self.parameters

    @property
    def supports_cuda_graphs(self) -> bool:
        """Whether passes can be captured: those of one process, unless they must recompute PyTorch's own dropout."""
        if isinstance(self.config, SequenceConfig) or not has_static_rotations(self.config):
            return False
        return self.setup.processes == 1 and (not self.setup.activation_checkpointing or is_capturable(self.config))

    # Variants

    def on(self, hardware: Hardware, *, cuda_graphs: bool = False) -> "Cost":
        """The same by the rules of this hardware's device, with or without CUDA graphs."""
        cost = self
        if hardware.device != self.setup.device or (self.setup.fused and not hardware.supports_cuda_graphs):
            fused = None if hardware.supports_cuda_graphs else False
            cost = self.with_setup(replace(self.setup, device=hardware.device, fused=fused, loss=None))
        return cost._captured(cuda_graphs and hardware.supports_cuda_graphs)

    def with_setup(self, setup: TrainingSetup) -> "Cost":
        """The same model and workload with another training setup."""
        return estimate(self.config, self.workload, setup)

    def _captured(self, cuda_graphs: bool) -> "Cost":
        """The same with passes captured or not, which matters only under activation checkpointing."""
        if not self.setup.activation_checkpointing or cuda_graphs == self.setup.cuda_graphs:
            return self
        return self.with_setup(replace(self.setup, cuda_graphs=cuda_graphs))

    # Time

    def minutes(self, hardware: Hardware, *, cuda_graphs: bool = False) -> tuple[float, float]:
        """Training alone, at best (compiled) and at worst (eager): no compilation, no validation, data always ready.

        With CUDA graphs even eager steps hardly wait for kernel launches. Several processes all-reduce all gradients
        once per step; at best that overlaps with backward.
        """
        return self._captured(cuda_graphs and hardware.supports_cuda_graphs)._minutes(hardware, cuda_graphs)

    def _minutes(self, hardware: Hardware, cuda_graphs: bool) -> tuple[float, float]:
        peak = hardware.float32_flops if self.setup.precision == "float32" else hardware.bfloat16_flops
        total, mine = self.workload, self.workload.per_process(self.setup.processes)
        fraction = mine.batch_size * mine.grad_accumulation / (total.batch_size * total.grad_accumulation)
        # What is recomputed is launched again, too. A model without FLOPs, such as a table, recomputes nothing.
        recompute = self.flops_per_step / (3 * self.forward_flops_per_step) if self.forward_flops_per_step else 1.0
        launches = recompute * mine.grad_accumulation * sublayer_count(self.config, mine.shape)
        fast_launch, slow_launch = (launches * seconds for seconds in hardware.launch_seconds)
        communication = self.communication_bytes_per_step / hardware.interconnect

        def compute_seconds(achieved: float, memory_passes: int) -> float:
            traffic = recompute * fraction * memory_passes * self.memory_traffic_per_step + 2 * self.model_state_bytes
            return fraction * self.flops_per_step / (achieved * peak) + traffic / hardware.bandwidth

        best, worst = map(compute_seconds, ACHIEVED_FLOPS, hardware.memory_passes)
        # Kernels are launched while others run, so a step takes the longer of the two; replayed ones leave small gaps.
        replayed = worst + 2 * fast_launch if cuda_graphs else math.inf
        worst = min(replayed, max(worst, slow_launch)) + communication
        return total.steps * max(best, fast_launch, communication) / 60, total.steps * worst / 60

    def describe(self, hardware: Hardware | None = None, *, cuda_graphs: bool = False) -> str:
        """One line for a person."""
        if not self.parameters:
            return "no parameters and no multiplications: a table that is counted, not trained"
        cost = self if hardware is None else self.on(hardware, cuda_graphs=cuda_graphs)
        memory = self.tensor_bytes if hardware is None else self.peak_bytes(hardware, cuda_graphs=cuda_graphs)
        each = "" if self.setup.processes == 1 else f" in each of {self.setup.processes} processes"
        parts = [
            f"{self.parameters:,} parameters ({si_prefixed(self.non_embedding_parameters)} without embeddings)",
            f"{si_prefixed(cost.training_flops)}FLOP in all",
            f"about {si_prefixed(memory)}B of memory{each}",
        ]
        if hardware is not None:
            parts.append(f"{duration_range(*self.minutes(hardware, cuda_graphs=cuda_graphs))} on {hardware.name}")
        return " · ".join(parts)

    def __str__(self) -> str:
        return self.describe()


def _check_workload(config: AnyModelConfig, workload: Workload) -> None:
    if (workload.source_length > 0) != isinstance(config, EncoderDecoderConfig | Seq2SeqConfig):
        raise UserError(
            f"An encoder–decoder has a source, other models have none; found a {config.kind} and {workload}."
        )
    if isinstance(config, VisionTransformerConfig):
        special_tokens = config.sequence_length - config.grid[0] * config.grid[1]
        if workload.target_length < special_tokens + 1:
            raise UserError(f"An image has at least one patch beside its special tokens; found {workload}.")


def _optimizer_values(model: nn.Module, optimizer: str) -> int:
    """Adam keeps two moments per parameter; Muon keeps one for the matrices inside the stacks."""
    moments = 2 * count_parameters(model)
    matrices = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear | Router))
    values = {"adam": moments, "adamw": moments, "muon": moments - matrices}
    if optimizer not in values:
        raise UserError(f"There is no optimizer {optimizer!r}; choose one of {', '.join(values)}.")
    return values[optimizer]


def _memory_traffic(config: AnyModelConfig, batch: BatchShape, precision: Precision) -> int:
    """Bytes of everything a micro-batch makes.

    The loss reads its logits in float32 several times: 20 bytes for each fit the steps that were measured.
    """
    per_row, classes = predictions(config, batch.target_length, batch.predicted_tokens)
    source, target = forward_cost(config, batch, "cuda")
    return (source + target).bytes(precision, "cuda") + batch.batch_size * per_row * classes * 20
