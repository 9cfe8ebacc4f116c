"""What to change where training does not fit into memory."""

import math
from dataclasses import replace

from regard.cost.estimate import Cost
from regard.cost.hardware import Hardware
from regard.cost.words import short

USABLE = 0.9
"""The share of a machine's memory that training can count on: the rest goes to the driver and to gaps."""


def advice_for_memory(cost: Cost, hardware: Hardware, *, captured: bool = False) -> str | None:
    """None if it fits (or nobody knows); otherwise what to change, in one sentence."""
    cost = cost.on(hardware, captured=captured)
    room = int(hardware.memory * USABLE)
    needed, aside = cost.peak(hardware, captured=captured), cost.beside(hardware, captured=captured)
    if hardware.memory == 0 or needed <= room:
        return None
    found = f"Training takes about {short(needed)}B, and {hardware.name} has {short(room)}B to count on"
    longest, lasting = cost.work.longest, cost.lasting_bytes
    others = [
        f"{setting}, which takes about {short(peak)}B"
        for setting, peak in _other_ways(cost, hardware, captured=captured)
        if peak <= room
    ]
    rows = _most_rows(cost, room - lasting - aside)
    if rows == 0:
        first = f"set {', or '.join(others)}; or " if others else ""
        return (
            f"{found}: not even one row of {longest:,} tokens fits beside the {short(lasting)}B of weights, gradients "
            f"and optimiser; {first}choose a smaller model, shorter rows or a larger machine."
        )
    pieces = math.ceil(cost.work.largest.rows / rows) * cost.work.accumulate
    change = f"set train.tokens to {rows * longest:,} or less, with train.accumulate at {pieces} for as large a step"
    return f"{found}: {', or '.join([change, *others])}."


def _other_ways(cost: Cost, hardware: Hardware, *, captured: bool) -> list[tuple[str, int]]:
    """Settings that take less memory for as large a batch, and the peak with each of them."""
    ways: dict[str, Cost] = {}
    if cost.precision == "fp32":
        ways["train.precision to bf16"] = cost.anew(precision="bf16")
    if not cost.recompute:
        ways["train.recompute to true"] = cost.anew(recompute=True)
    return [(name, way.peak(hardware, captured=captured and way.recordable)) for name, way in ways.items()]


def _most_rows(cost: Cost, room: int) -> int:
    """How many of the longest rows a micro-batch can have."""
    longest, most = cost.work.longest, cost.work.largest.rows

    def needed(rows: int) -> int:
        work = replace(cost.work, tokens=rows * longest).largest
        return sum(cost.batch_bytes(work))

    rows = 0
    for part in (1 << bit for bit in reversed(range(most.bit_length()))):
        if rows + part <= most and needed(rows + part) <= room:
            rows += part
    return rows
