"""The section of a report about time and memory, in training and in decoding."""

from collections.abc import Sequence

from regard.lab.compare.measure import DECODED_TOKENS
from regard.lab.compare.report.analysis import Summary
from regard.lab.compare.speed import Speeds
from regard.lab.processes import minutes
from regard.lab.report import Section, Table, bytes_cell, number_cell, score_cell

_HEADER = (
    "model",
    "target tokens",
    "tokens/s",
    "training time",
    "peak memory",
    "per token",
    "ms per decoded token",
    "decoding state",
    "more per token",
)


def speed_section(full: Sequence[Summary], speeds: Speeds) -> Section:
    """Time and memory of each rung; what was not measured has no number."""
    if not full:
        return Section("")
    return Section(
        "Time and memory", _notes(speeds), table=Table("Time and memory", _HEADER, tuple(_rows(full, speeds)))
    )


def _notes(speeds: Speeds) -> tuple[str, ...]:
    alone = (
        "Speeds are those of a model that has the machine to itself, measured one after the other once all runs had "
        "ended; the training time is that of all tokens at this speed. "
        if speeds
        else "Speeds are measured once all runs have ended, which is not yet the case here. "
    )
    return (
        f"{alone}Memory is the most that a training step needs, and how much of that each target token costs besides "
        "the weights and their optimizer state; on a CPU, that of the whole process. Decoding is greedy, one sentence "
        "at a time, on the plain PyTorch model. Its state is what a sentence keeps between two steps, with room for "
        f"{DECODED_TOKENS} tokens, and how much it grows with each of them.",
    )


def _rows(full: Sequence[Summary], speeds: Speeds) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for one in full:
        alone = speeds.get(one.rung.name, {})
        rate, tokens = alone.get("tokens_per_second"), one.mean("tokens")
        rows.append(
            (
                one.rung.label,
                number_cell(tokens),
                number_cell(rate),
                "–" if not rate or tokens is None else minutes(tokens / rate),
                bytes_cell(alone.get("peak_memory") or one.mean("peak_memory") or None),
                bytes_cell(alone.get("bytes_per_token")),
                score_cell(alone.get("ms_per_decoded_token")),
                bytes_cell(one.mean("decode", "state_bytes")),
                bytes_cell(one.mean("decode", "bytes_per_token")),
            )
        )
    return rows
