"""Which parameters are moved how.

Matrices decay towards zero where asked; norms, biases and word vectors do not. Muon (Jordan et al. 2024) takes the
matrices inside the stacks and leaves the rest to AdamW. What an optimiser remembers is handed out as named tensors, so
that a checkpoint can hold it without pickles, and a run that takes it back goes on exactly.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.config import Config
from regard.errors import UserError


class OptimiserConfig(Config):
    """The numbers left out are the paper's (Vaswani et al. 2017, §5.3)."""

    kind: Literal["adam", "adamw", "muon"] = "adam"
    betas: tuple[float, float] = Field(default=(0.9, 0.98), strict=False)
    epsilon: float = Field(default=1e-9, gt=0)
    decay: float = Field(default=0.0, ge=0)
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Muon's."""

    def build(self, model: nn.Module) -> "Optimiser":
        return Optimiser(self, model)


class Optimiser:
    """One or two of PyTorch's optimisers behind one face, with a memory that has names."""

    def __init__(self, config: OptimiserConfig, model: nn.Module) -> None:
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        inside = [parameter for name, parameter in named.items() if _is_map(name, parameter)]
        others = [parameter for name, parameter in named.items() if not _is_map(name, parameter)]
        self.fused = all(parameter.device.type in ("cuda", "cpu") for parameter in named.values())
        """Whether one kernel moves many parameters. It then counts its steps where these are, else on the CPU."""
        shared: dict[str, Any] = {"betas": config.betas, "eps": config.epsilon, "fused": self.fused}
        self._parts: list[torch.optim.Optimizer] = []
        if config.kind == "muon":
            matrices = [parameter for parameter in inside if parameter.dim() == 2]  # it takes no stacks of them
            inside = [parameter for parameter in inside if parameter.dim() != 2]
            self._parts.append(
                torch.optim.Muon(
                    matrices, weight_decay=config.decay, momentum=config.momentum, adjust_lr_fn="match_rms_adamw"
                )
            )
        groups = [{"params": inside, "weight_decay": config.decay}, {"params": others, "weight_decay": 0.0}]
        kind = torch.optim.Adam if config.kind == "adam" else torch.optim.AdamW
        self._parts.append(kind([group for group in groups if group["params"]], **shared))
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in named.items()}
        self.adam = self._parts[0] if len(self._parts) == 1 else None
        """Adam, where it moves everything."""
        self.recalled = 0
        """How often its memory was replaced by another."""

    def clip(self, most: float) -> None:
        """Shorten all gradients alike until their norm is this at most."""
        nn.utils.clip_grad_norm_(self._names, most)

    def step(self, rate: float) -> None:
        """Move every parameter against its gradient at this learning rate."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()

    def forget_gradients(self, *, in_place: bool = False) -> None:
        """Start a new sum of gradients; `in_place` for whoever goes on writing to the same tensors."""
        for part in self._parts:
            part.zero_grad(set_to_none=not in_place)

    def memory(self) -> dict[str, Tensor]:
        """All it remembers, under the parameter's name and what is remembered of it."""
        kept = {}
        for part in self._parts:
            for parameter, state in part.state.items():
                for what, value in state.items():
                    kept[f"{self._names[parameter]}/{what}"] = torch.as_tensor(value)
        return kept

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        """Take back what `memory` gave, made by the same settings for the same model."""
        known = {name: parameter for parameter, name in self._names.items()}
        self.recalled += 1
        states: dict[Tensor, dict[str, Tensor]] = {}
        for key, value in memory.items():
            name, _, what = key.rpartition("/")
            if name not in known:
                raise UserError(f"The optimiser's memory names {name!r}, which this model does not have.")
            parameter = known[name]
            place = parameter.device if value.dim() or self.fused else "cpu"
            states.setdefault(parameter, {})[what] = value.clone().to(place)
        for part in self._parts:
            owned = {parameter for group in part.param_groups for parameter in group["params"]}
            part.state.clear()
            part.state.update({parameter: state for parameter, state in states.items() if parameter in owned})


def _is_map(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is a matrix that maps vectors, or a stack of such (one for each expert)."""
    return parameter.dim() >= 2 and not name.endswith("bias") and not _is_table(name)


def _is_table(name: str) -> bool:
    """Whether a matrix is a table of vectors looked up one by one (words, positions) rather than a map."""
    return "vocabulary" in name or name == "output.weight" or name.endswith(".table")
