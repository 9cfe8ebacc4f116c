"""What each box of the model diagram costs in a pass, after the cost model (`regard.cost`)."""

from typing import Any

from regard.cost import BatchShape
from regard.cost.forward import forward_cost
from regard.cost.op_cost import Device, OpCost, Precision
from regard.cost.parts import part_costs
from regard.look.schema import ModuleBox
from regard.model import SequenceConfig


class BoxCosts:
    """FLOPs and bytes of a pass over one row: in all, and of each box with the boxes inside it.

    Bytes are those that training saves for the backward pass, without the logits, whose bytes depend on the loss.
    """

    def __init__(self, model: Any, root: ModuleBox, source_length: int, target_length: int) -> None:
        config = model.config
        batch = BatchShape(1, target_length, source_length)
        self._device: Device = "cuda" if model.device.type == "cuda" else "cpu"
        dtype = str(next(model.parameters()).dtype) if any(True for _ in model.parameters()) else ""
        self._precision: Precision = "bfloat16" if dtype.endswith("16") else "float32"
        source, target = forward_cost(config, batch, self._device)
        self.flops, self.bytes = self._numbers(source + target)
        self.by_path: dict[str, tuple[int, int]] = {}
        if not isinstance(config, SequenceConfig):
            self._fill(root, part_costs(config, batch, self._device))

    def _fill(self, box: ModuleBox, parts: dict[str, OpCost]) -> tuple[int, int]:
        numbers = [self._numbers(parts[box.path])] if box.path in parts else []
        numbers += [self._fill(child, parts) for child in box.children]
        self.by_path[box.path] = sum(flops for flops, _ in numbers), sum(size for _, size in numbers)
        return self.by_path[box.path]

    def _numbers(self, cost: OpCost) -> tuple[int, int]:
        return cost.flops, cost.bytes(self._precision, self._device)
