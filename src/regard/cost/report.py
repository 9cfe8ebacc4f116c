"""All that is known of a cost: as plain data, and as a table for a person."""

import math
from dataclasses import dataclass
from typing import Any

from regard.cost.advice import advice_for_memory
from regard.cost.estimate import Cost
from regard.cost.hardware import Hardware
from regard.cost.memory import workspace_bytes
from regard.cost.words import between, short, span
from regard.errors import UserError


@dataclass(frozen=True)
class Report:
    """A cost on some hardware, at a price for an hour of one device (None if nobody asked).

    `trained`: whether it is known how long training goes; if not, all that depends on it is left out.
    """

    cost: Cost
    hardware: Hardware
    price: float | None = None
    captured: bool = False
    trained: bool = True

    def __post_init__(self) -> None:
        if self.price is not None and (self.price < 0 or not math.isfinite(self.price)):
            raise UserError(f"A price for an hour is a number of at least 0; found {self.price:g}.")

    @property
    def minutes(self) -> tuple[float, float]:
        return self.cost.minutes(self.hardware, captured=self.captured)

    @property
    def device_hours(self) -> tuple[float, float]:
        low, high = self.minutes
        return self.cost.processes * low / 60, self.cost.processes * high / 60

    @property
    def advice(self) -> str | None:
        return advice_for_memory(self.cost, self.hardware, captured=self.captured)

    def plain(self) -> dict[str, Any]:
        """Everything, under names that stay. What is written, and the cache, are None for a model that only reads."""
        cost, work = self.cost.on(self.hardware, captured=self.captured), self.cost.work
        (source, target), trained = cost.flops_per_token, cost.training_flops_per_token
        written, read = cost.cache_bytes_per_token if cost.writes else (None, None)
        facts: dict[str, Any] = {
            "parameters": cost.parameters,
            "embedding_parameters": cost.parameters - cost.non_embedding,
            "other_parameters": cost.non_embedding,
            "precision": cost.precision,
            "optimiser": cost.optimiser,
            "source_length": work.source,
            "target_length": work.target,
            "rows": work.rows,
            "accumulate": work.accumulate,
            "passes": work.passes,
            "recompute": cost.recompute,
            "asked": work.asked,
            "cache_tokens": cost.cache_tokens if cost.writes else None,
            "flops": {
                "forward_source_token": source,
                "forward_target_token": target,
                "training_source_token": trained[0],
                "training_target_token": trained[1],
                "attention_share": cost.attention_share,
                "training_step": cost.flops_per_step,
                "generated_token": cost.generated_token_flops() if cost.writes else None,
            },
            "bytes": {
                "weights": cost.weights_bytes,
                "gradients": cost.gradients_bytes,
                "optimiser": cost.optimiser_bytes,
                "activations": cost.activations_bytes,
                "loss": cost.loss_bytes,
                "recording": cost.recording_bytes(self.hardware, captured=self.captured),
                "workspaces": workspace_bytes(self.hardware, captured=self.captured),
                "peak": cost.peak(self.hardware, captured=self.captured),
                "cache_target_token": written,
                "cache_source_token": read,
            },
            "hardware": self.hardware.name,
            "processes": cost.processes,
            "advice": self.advice,
        }
        if self.trained:
            facts |= {
                "steps": work.steps,
                "training_flops": cost.total_flops,
                "minutes": list(self.minutes),
                "device_hours": list(self.device_hours),
            }
            if self.price is not None:
                facts |= {"price": self.price, "money": [self.price * hours for hours in self.device_hours]}
        return facts

    def table(self) -> str:
        """One line for all of it, then a line for each number."""
        facts = self.plain()
        flops, held = facts["flops"], facts["bytes"]
        sides = ("source", "target") if facts["source_length"] else ("target",)

        def each(form: str) -> str:
            numbers = [f"{short(flops[form.format(side)])}FLOP" for side in sides]
            if not self.cost.writes:
                return numbers[0]
            return ", ".join(f"{number} ({side})" for number, side in zip(numbers, sides, strict=True))

        shape = " and ".join(str(facts[f"{side}_length"]) for side in sides)
        lines = [
            ("parameters", f"{facts['parameters']:,}"),
            ("  tables of word vectors", f"{facts['embedding_parameters']:,}"),
            ("  everything else", f"{facts['other_parameters']:,}"),
            ("micro-batch", f"{facts['rows']:,} rows of {shape} tokens, {facts['accumulate']:,} a step"),
            ("a token, forward", each("forward_{}_token")),
            ("a token, forward and backward", each("training_{}_token")),
            ("  attention's share at this length", f"{100 * flops['attention_share']:.1f} %"),
            *self._written(facts, sides),
            ("weights", f"{short(held['weights'])}B"),
            ("gradients", f"{short(held['gradients'])}B"),
            ("optimiser", f"{short(held['optimiser'])}B"),
            ("activations", f"{short(held['activations'])}B{', layers computed again' * facts['recompute']}"),
            ("loss and gradients on their way", f"{short(held['loss'])}B"),
            ("gradients kept aside to record", f"{short(held['recording'])}B"),
            ("set aside by the library", f"{short(held['workspaces'])}B"),
            ("peak memory of a process", f"{short(held['peak'])}B"),
        ]
        if self.trained:
            low, high = self.minutes
            many = "" if facts["processes"] == 1 else f", {facts['processes']} processes"
            lines += [
                ("training", f"{facts['steps']:,} steps, {short(facts['training_flops'])}FLOP"),
                ("time", f"{span(low, high)} on {facts['hardware']}{many}"),
                ("device hours", between(*self.device_hours)),
            ]
            if self.price is not None:
                lines.append(("money", f"{between(*facts['money'])} at {self.price:g} an hour"))
        width = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)

    def _written(self, facts: dict[str, Any], sides: tuple[str, ...]) -> list[tuple[str, str]]:
        """Of a model that writes: a token behind the cache, and the cache itself."""
        if not self.cost.writes:
            return []
        most = "" if facts["cache_tokens"] is None else f", at most {facts['cache_tokens']:,}"
        cache = ", ".join(
            f"{short(facts['bytes'][f'cache_{side}_token'])}B ({side}{most if side == 'target' else ''})"
            for side in sides
        )
        return [
            ("a token written with the cache", f"{short(facts['flops']['generated_token'])}FLOP"),
            ("cache, for each token", cache),
        ]
