"""A cost on some hardware: as JSON data, and as a table for reading."""

import math
from dataclasses import dataclass
from typing import Any

from regard.cost.advice import memory_advice
from regard.cost.estimate import Cost
from regard.cost.format import duration_range, number_range, si_prefixed
from regard.cost.growth import Growth
from regard.cost.hardware import Hardware
from regard.cost.memory import workspace_bytes
from regard.errors import UserError
from regard.model import SequenceConfig


@dataclass(frozen=True)
class Report:
    """A cost on some hardware, at a price per hour of one device (None if not given).

    `has_duration`: whether the number of steps is known; if not, everything that depends on it is left out.
    """

    cost: Cost
    hardware: Hardware
    price_per_hour: float | None = None
    cuda_graphs: bool = False
    has_duration: bool = True

    def __post_init__(self) -> None:
        price = self.price_per_hour
        if price is not None and (price < 0 or not math.isfinite(price)):
            raise UserError(f"A price per hour is a number of at least 0; found {price:g}.")

    @property
    def minutes(self) -> tuple[float, float]:
        return self.cost.minutes(self.hardware, cuda_graphs=self.cuda_graphs)

    @property
    def device_hours(self) -> tuple[float, float]:
        low, high = self.minutes
        return self.cost.setup.processes * low / 60, self.cost.setup.processes * high / 60

    @property
    def advice(self) -> str | None:
        return memory_advice(self.cost, self.hardware, cuda_graphs=self.cuda_graphs)

    @property
    def growth(self) -> Growth:
        """The model's formulas, with their values for a row of the workload."""
        return Growth(self.cost.config, self.cost.workload.source_length, self.cost.workload.target_length)

    def to_dict(self) -> dict[str, Any]:
        """Everything under stable names. Values about generation are None for a model that does not generate."""
        cost, work = self.cost.on(self.hardware, cuda_graphs=self.cuda_graphs), self.cost.workload
        values: dict[str, Any] = {
            "parameters": cost.parameters,
            "embedding_parameters": cost.embedding_parameters,
            "non_embedding_parameters": cost.non_embedding_parameters,
            "precision": cost.setup.precision,
            "optimizer": cost.setup.optimizer,
            "source_length": work.source_length,
            "target_length": work.target_length,
            "batch_size": work.batch_size,
            "grad_accumulation": work.grad_accumulation,
            "forward_passes": work.forward_passes,
            "activation_checkpointing": cost.setup.activation_checkpointing,
            "predicted_tokens": work.predicted_tokens,
            "kv_cache_tokens": cost.kv_cache_tokens if cost.is_autoregressive else None,
            "flops": _flops(cost),
            "bytes": self._bytes(cost),
            "hardware": self.hardware.name,
            "processes": cost.setup.processes,
            "advice": self.advice,
            **self.growth.to_dict(),
        }
        if self.has_duration:
            values |= {
                "steps": work.steps,
                "training_flops": cost.training_flops,
                "minutes": list(self.minutes),
                "device_hours": list(self.device_hours),
            }
            if self.price_per_hour is not None:
                price = [self.price_per_hour * hours for hours in self.device_hours]
                values |= {"price_per_hour": self.price_per_hour, "price": price}
        return values

    def table(self) -> str:
        """A line for each number."""
        values = self.to_dict()
        flops, held = values["flops"], values["bytes"]
        sides = ("source", "target") if values["source_length"] else ("target",)

        def per_token(key: str) -> str:
            numbers = [f"{si_prefixed(flops[key.format(side)])}FLOP" for side in sides]
            if not self.cost.is_autoregressive:
                return numbers[0]
            return ", ".join(f"{number} ({side})" for number, side in zip(numbers, sides, strict=True))

        lengths = " and ".join(str(values[f"{side}_length"]) for side in sides)
        checkpointing = ", with activation checkpointing" * values["activation_checkpointing"]
        lines = [
            ("parameters", f"{values['parameters']:,}"),
            ("  embeddings", f"{values['embedding_parameters']:,}"),
            ("  everything else", f"{values['non_embedding_parameters']:,}"),
            (
                "micro-batch",
                f"{values['batch_size']:,} rows of {lengths} tokens, {values['grad_accumulation']:,} per step",
            ),
            ("forward, per token", per_token("forward_{}_token")),
            ("forward and backward, per token", per_token("training_{}_token")),
            ("  attention at this length", f"{100 * flops['attention_fraction']:.1f} %"),
            *self._generation_lines(values, sides),
            ("weights", f"{si_prefixed(held['weights'])}B"),
            ("gradients", f"{si_prefixed(held['gradients'])}B"),
            ("optimizer state", f"{si_prefixed(held['optimizer'])}B"),
            ("activations", f"{si_prefixed(held['activations'])}B{checkpointing}"),
            ("temporaries", f"{si_prefixed(held['temporaries'])}B"),
            ("gradient copy for graph capture", f"{si_prefixed(held['graph_capture'])}B"),
            ("cuBLAS workspaces", f"{si_prefixed(held['workspaces'])}B"),
            ("peak memory per process", f"{si_prefixed(held['peak'])}B"),
        ]
        if self.has_duration:
            lines += self._duration_lines(values)
        width = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)

    def _bytes(self, cost: Cost) -> dict[str, Any]:
        generated, source = cost.kv_cache_bytes_per_token if cost.is_autoregressive else (None, None)
        return {
            "weights": cost.weight_bytes,
            "gradients": cost.gradient_bytes,
            "optimizer": cost.optimizer_bytes,
            "activations": cost.activation_bytes,
            "temporaries": cost.temporary_bytes,
            "graph_capture": cost.graph_capture_bytes(self.hardware, cuda_graphs=self.cuda_graphs),
            "workspaces": workspace_bytes(self.hardware, cuda_graphs=self.cuda_graphs),
            "peak": cost.peak_bytes(self.hardware, cuda_graphs=self.cuda_graphs),
            "kv_cache_target_token": generated,
            "kv_cache_source_token": source,
            "state": cost.state_bytes if cost.is_autoregressive else None,
        }

    def _generation_lines(self, values: dict[str, Any], sides: tuple[str, ...]) -> list[tuple[str, str]]:
        if not self.cost.is_autoregressive:
            return []
        limit = "" if values["kv_cache_tokens"] is None else f", at most {values['kv_cache_tokens']:,}"
        cache = ", ".join(
            f"{si_prefixed(values['bytes'][f'kv_cache_{side}_token'])}B ({side}{limit if side == 'target' else ''})"
            for side in sides
        )
        generated = f"{si_prefixed(values['flops']['generated_token'])}FLOP"
        if isinstance(self.cost.config, SequenceConfig):
            state = f"{si_prefixed(values['bytes']['state'])}B and per token {cache}"
            return [("generated token, from the state", generated), ("decoding state, per row", state)]
        return [("generated token, with KV cache", generated), ("KV cache, per token", cache)]

    def _duration_lines(self, values: dict[str, Any]) -> list[tuple[str, str]]:
        processes = "" if values["processes"] == 1 else f", {values['processes']} processes"
        lines = [
            ("training", f"{values['steps']:,} steps, {si_prefixed(values['training_flops'])}FLOP"),
            ("time", f"{duration_range(*self.minutes)} on {values['hardware']}{processes}"),
            ("device hours", number_range(*self.device_hours)),
        ]
        if self.price_per_hour is not None:
            lines.append(("price", f"{number_range(*values['price'])} at {self.price_per_hour:g} an hour"))
        return lines


def _flops(cost: Cost) -> dict[str, Any]:
    (source, target), training = cost.flops_per_token, cost.training_flops_per_token
    return {
        "forward_source_token": source,
        "forward_target_token": target,
        "training_source_token": training[0],
        "training_target_token": training[1],
        "attention_fraction": cost.attention_fraction,
        "training_step": cost.flops_per_step,
        "generated_token": cost.generated_token_flops() if cost.is_autoregressive else None,
    }
