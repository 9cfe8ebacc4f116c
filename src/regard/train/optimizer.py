"""Optimizers, which parameters they update how, and the schedule of their learning rate.

Weight decay applies to matrices, not to norms, biases and embeddings. Muon (Jordan et al. 2024) takes the matrices
inside the layers and leaves everything else to AdamW. The optimizer state is given as named tensors, so that a
checkpoint needs no pickles. A schedule is a function of the step alone, so it has no state at all.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.config import Config, ConfigError
from regard.errors import UserError

Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Config):
    """The optimizer. The defaults are the paper's (Vaswani et al. 2017, §5.3)."""

    kind: Literal["adam", "adamw", "muon"] = "adam"
    """The algorithm. adam: weight decay is part of the gradient. adamw: weight decay is decoupled from it (Loshchilov &
    Hutter 2019). muon: updates of weight matrices are orthogonalized, and other parameters are updated by AdamW (Jordan
    et al. 2024)."""
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.98), strict=False)
    """The decay rates β₁ and β₂ of Adam's running averages of the gradient and of its square."""
    eps: float = Field(default=1e-9, gt=0, le=1)
    """Added to Adam's denominator, so that nothing is divided by zero."""
    weight_decay: float = Field(default=0.0, ge=0, le=100)
    """The strength of weight decay. It applies to weight matrices, not to embeddings, norms and biases."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """The momentum of Muon; other optimizers ignore it."""

    def build(self, model: nn.Module) -> "Optimizer":
        return Optimizer(self, model)


class Optimizer:
    """One or two PyTorch optimizers behind one interface, with a state dict whose keys are parameter names."""

    def __init__(self, config: OptimizerConfig, model: nn.Module) -> None:
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        decayed = _matrices(model)
        matrices = [parameter for parameter in named.values() if parameter in decayed]
        others = [parameter for parameter in named.values() if parameter not in decayed]
        self.fused = all(parameter.device.type in ("cuda", "cpu") for parameter in named.values())
        """Whether one kernel updates many parameters. Step counts are then on their device, else on the CPU."""
        settings: dict[str, Any] = {"betas": config.betas, "eps": config.eps, "fused": self.fused}
        self._optimizers: list[torch.optim.Optimizer] = []
        if config.kind == "muon":
            muon = [parameter for parameter in matrices if parameter.dim() == 2]  # it does not take stacked experts
            matrices = [parameter for parameter in matrices if parameter.dim() != 2]
            self._optimizers.append(
                torch.optim.Muon(
                    muon, weight_decay=config.weight_decay, momentum=config.momentum, adjust_lr_fn="match_rms_adamw"
                )
            )
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
        kind = torch.optim.Adam if config.kind == "adam" else torch.optim.AdamW
        self._optimizers.append(kind([group for group in groups if group["params"]], **settings))
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in named.items()}
        self.adam = self._optimizers[0] if len(self._optimizers) == 1 else None
        """Adam or AdamW, if it updates all parameters."""
        self.loads = 0
        """How often `load_state_dict` has replaced the state."""

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their norm is at most `max_norm`; returns the norm before."""
        return nn.utils.clip_grad_norm_(self._names, max_norm)

    def step(self, lr: float) -> None:
        """Update every parameter at this learning rate."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()

    def zero_grad(self, *, in_place: bool = False) -> None:
        """Discard the gradients, or set them to zero `in_place` if the same tensors are to be written again."""
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=not in_place)

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state, under PARAMETER/ENTRY: the parameter's name and PyTorch's name of the entry."""
        tensors = {}
        for optimizer in self._optimizers:
            for parameter, entries in optimizer.state.items():
                for entry, value in entries.items():
                    tensors[f"{self._names[parameter]}/{entry}"] = torch.as_tensor(value)
        return tensors

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave, for the same settings and the same model."""
        parameters = {name: parameter for parameter, name in self._names.items()}
        self.loads += 1
        state: dict[Tensor, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            name, _, entry = key.rpartition("/")
            if name not in parameters:
                raise UserError(f"The optimizer state has an entry for {name!r}, which this model does not have.")
            parameter = parameters[name]
            device = parameter.device if value.dim() or self.fused else "cpu"
            state.setdefault(parameter, {})[entry] = value.clone().to(device)
        for optimizer in self._optimizers:
            owned = {parameter for group in optimizer.param_groups for parameter in group["params"]}
            optimizer.state.clear()
            optimizer.state.update({parameter: entries for parameter, entries in state.items() if parameter in owned})


def _matrices(model: nn.Module) -> set[Tensor]:
    """The parameters of linear maps: matrices, and stacks of them (one per expert).

    Not those that a module lists in `no_weight_decay`: lookup tables such as embeddings, and biases of several
    dimensions.
    """
    excluded: set[Tensor] = set()
    for module in model.modules():
        names = ("weight",) if isinstance(module, nn.Embedding) else getattr(module, "no_weight_decay", ())
        excluded |= {getattr(module, name) for name in names}
    return {parameter for parameter in model.parameters() if parameter.dim() >= 2 and parameter not in excluded}


class ScheduleConfig(Config):
    """The learning rate schedule: `lr` is the peak learning rate, reached after `warmup_steps` steps.

    - inverse-sqrt: lr · √(warmup_steps / step) from then on. With lr = (width · warmup_steps)^-½ this is the paper's
      schedule (Vaswani et al. 2017, eq. 3).
    - cosine: half a cosine down to `min_lr_ratio` · lr at the last of `steps`.
    - linear: a straight line that would reach zero one step after the last of `steps`.
    - constant: stays at the peak.
    """

    kind: Literal["inverse-sqrt", "cosine", "linear", "constant"] = "inverse-sqrt"
    """How the learning rate decays after the warmup."""
    lr: float = Field(gt=0, le=100)
    """The peak learning rate."""
    warmup_steps: int = Field(default=4000, ge=0, le=1_000_000_000)
    """The number of steps in which the learning rate rises linearly from zero to its peak."""
    steps: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """The length of the run, for schedules that end with it. By default `train.steps`."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """The final learning rate of a cosine schedule, as a fraction of the peak."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind in ("cosine", "linear"):
            if self.steps is None:
                raise ConfigError("steps", f"a {self.kind} schedule ends with the run; give its number of steps.")
            if self.warmup_steps >= self.steps:
                raise ConfigError(
                    "warmup_steps", f"found {self.warmup_steps}; it must be less than the run's {self.steps} steps."
                )
        if self.kind != "cosine" and self.min_lr_ratio:
            raise ConfigError("min_lr_ratio", f"only a cosine schedule has one; leave it out for {self.kind}.")
        return self

    def at(self, step: int) -> float:
        """The learning rate of a step."""
        if step < self.warmup_steps:
            return self.lr * step / self.warmup_steps
        match self.kind:
            case "inverse-sqrt":
                return self.lr * math.sqrt(max(self.warmup_steps, 1) / max(step, 1))
            case "cosine":
                progress = self._decay_progress(step)
                return self.lr * (self.min_lr_ratio + (1 - self.min_lr_ratio) * (1 + math.cos(math.pi * progress)) / 2)
            case "linear":
                assert self.steps is not None
                return self.lr * max(0.0, (self.steps + 1 - step) / (self.steps + 1 - max(self.warmup_steps, 1)))
            case "constant":
                return self.lr

    def _decay_progress(self, step: int) -> float:
        """How far the decay has come, from 0 to 1."""
        assert self.steps is not None
        return min(1.0, (step - self.warmup_steps) / (self.steps - self.warmup_steps))
