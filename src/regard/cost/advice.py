"""What to change where training does not fit into memory."""

import math
from dataclasses import replace

from regard.cost.estimate import Cost, estimate
from regard.cost.format import si_prefixed
from regard.cost.hardware import Hardware
from regard.cost.setup import TrainingSetup
from regard.cost.workload import Workload
from regard.errors import UserError
from regard.model import AnyModelConfig, SequenceConfig

USABLE_MEMORY = 0.9
"""The fraction of a device's memory that training can count on: the rest goes to the driver and to fragmentation."""


def memory_advice(cost: Cost, hardware: Hardware, *, cuda_graphs: bool = False) -> str | None:
    """None if it fits (or the memory is unknown); otherwise what to change, in one sentence."""
    cost = cost.on(hardware, cuda_graphs=cuda_graphs)
    available = int(hardware.memory * USABLE_MEMORY)
    needed = cost.peak_bytes(hardware, cuda_graphs=cuda_graphs)
    if hardware.memory == 0 or needed <= available:
        return None
    found = f"Training needs about {si_prefixed(needed)}B, and {hardware.name} has {si_prefixed(available)}B to use"
    length, state = cost.workload.max_length, cost.model_state_bytes
    alternatives = [
        f"{setting}, which needs about {si_prefixed(peak)}B"
        for setting, peak in _alternatives(cost, hardware, cuda_graphs=cuda_graphs)
        if peak <= available
    ]
    rows = _max_rows(cost, available - state - cost.overhead_bytes(hardware, cuda_graphs=cuda_graphs))
    if rows == 0:
        settings = f"set {', or '.join(alternatives)}; or " if alternatives else ""
        return (
            f"{found}: not even one row of {length:,} tokens fits beside the {si_prefixed(state)}B of weights, "
            f"gradients and optimizer state; {settings}choose a smaller model, shorter rows or a larger device."
        )
    accumulation = math.ceil(cost.workload.largest.batch_size / rows) * cost.workload.grad_accumulation
    smaller = (
        f"set train.batch_tokens to {rows * length:,} or less, with train.grad_accumulation at {accumulation} for as "
        "large a step"
    )
    return f"{found}: {', or '.join([smaller, *alternatives])}."


def check_model_fits(config: AnyModelConfig, workload: Workload, setup: TrainingSetup, memory: int) -> None:
    """Refuse a model that cannot be trained in this many bytes (0: unknown), not even with one row at a time.

    It is called before the model is built. Whether a whole batch fits depends on the data; see `memory_advice`.
    """
    one_row = replace(workload, batch_size=1, batch_tokens=None, grad_accumulation=1)
    cost = estimate(config, one_row, setup)
    if not memory or cost.tensor_bytes <= memory:
        return
    raise UserError(
        f"This model has {cost.parameters:,} parameters: training needs about {si_prefixed(cost.model_state_bytes)}B "
        f"for weights, gradients and optimizer state and {si_prefixed(cost.tensor_bytes - cost.model_state_bytes)}B "
        f"for one row of {one_row.max_length:,} tokens, and this {setup.device} has {si_prefixed(memory)}B of memory; "
        f"{_smaller_model(config)}, the vocabulary size, or the length of rows."
    )


def _smaller_model(config: AnyModelConfig) -> str:
    if isinstance(config, SequenceConfig):
        return "lower the widths and layers of the model"
    return "lower model.width, the layers, heads or feed_forward.hidden of its stacks"


def _alternatives(cost: Cost, hardware: Hardware, *, cuda_graphs: bool) -> list[tuple[str, int]]:
    """Settings that need less memory for as large a batch, and the peak with each of them."""
    variants: dict[str, Cost] = {}
    if cost.setup.precision == "float32":
        variants["train.precision to bfloat16"] = cost.with_setup(replace(cost.setup, precision="bfloat16"))
    if not (cost.setup.activation_checkpointing or isinstance(cost.config, SequenceConfig)):
        variants["train.activation_checkpointing to true"] = cost.with_setup(
            replace(cost.setup, activation_checkpointing=True)
        )
    return [
        (setting, variant.peak_bytes(hardware, cuda_graphs=cuda_graphs and variant.supports_cuda_graphs))
        for setting, variant in variants.items()
    ]


def _max_rows(cost: Cost, available: int) -> int:
    """How many rows of the maximum length a micro-batch can have: a binary search, bit by bit."""
    length, limit = cost.workload.max_length, cost.workload.largest.batch_size

    def needed(rows: int) -> int:
        return sum(cost.batch_bytes(replace(cost.workload, batch_tokens=rows * length).largest))

    rows = 0
    for bit in (1 << index for index in reversed(range(limit.bit_length()))):
        if rows + bit <= limit and needed(rows + bit) <= available:
            rows += bit
    return rows
