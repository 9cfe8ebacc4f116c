"""The forms a model can be searched in: as it is, or laid out for the hardware it is on.

On a CPU the fast form is compiled by numba and can have its weights rounded to bytes; on a GPU it is written in Triton
and can compute in bf16. Compiling takes some seconds once on a machine, so it is done where it pays: for many inputs,
or where it was done before.
"""

import copy
from typing import Any, Generic, Literal, TypeVar

import torch

from regard.decode import Worker
from regard.errors import UserError
from regard.fast import swift, swift_gpu
from regard.model.writer import Writer

Precision = Literal["float32", "bf16", "int8"]
COMPILED_FROM, COMPILING_FROM = 16, 1000
"""Inputs from which on compiled kernels pay on a CPU: where they are there, and where they are to be compiled first."""
ON_GPU_FROM = 1, 16
"""The same on a GPU, where a step of any other kind waits for its launches."""
AnyWriter = TypeVar("AnyWriter", bound=Writer)


class Forms(Generic[AnyWriter]):
    """One model, and the forms of it that were made so far."""

    def __init__(self, model: AnyWriter) -> None:
        self.model = model
        self.compile: bool | None = None
        """Whether kernels are compiled; None is where they pay."""
        self.precision: Precision = "float32"
        self._made: dict[tuple[Precision, bool], Worker[Any]] = {}

    def forget(self) -> None:
        """Let go of what was made: the model has changed."""
        self._made.clear()

    @property
    def on_gpu(self) -> bool:
        return self.model.device.type == "cuda"

    def why_not(self) -> str | None:
        """What stands against the fast form; None if nothing does."""
        return swift_gpu.why_not(self.model) if self.on_gpu else swift.why_not(self.model)

    def is_compiled(self) -> bool:
        """Whether kernels were compiled on this machine before."""
        return swift_gpu.is_compiled() if self.on_gpu else swift.is_compiled()

    def pays_to_compile(self, inputs: int) -> bool:
        """Whether so many inputs are worth compiled kernels."""
        if self.precision == "int8":
            return True
        if self.compile is False or self.why_not() is not None:
            return False
        there, first = ON_GPU_FROM if self.on_gpu else (COMPILED_FROM, COMPILING_FROM)
        return self.compile is True or inputs >= (there if self.is_compiled() else first)

    def check(self) -> None:
        """Refuse, with the reason, a precision that cannot be had."""
        if self.precision == "bf16" and not self.on_gpu:
            raise UserError("bf16 is for GPUs; on a CPU choose float32 or int8.")
        if self.precision != "int8":
            return
        if self.on_gpu:
            raise UserError("int8 is for CPUs; on a GPU choose float32 or bf16.")
        if self.compile is False:
            raise UserError("int8 needs compiled kernels; leave out --no-compile, or choose float32.")
        if (reason := self.why_not()) is not None:
            raise UserError(f"int8 cannot be had: {reason}.")

    def worker(self, inputs: int) -> Worker[Any]:
        """The form for so many inputs."""
        self.check()
        fast = self.pays_to_compile(inputs)
        key = (self.precision, fast)
        if key not in self._made:
            self._made[key] = self._make(fast)
        return self._made[key]

    def _make(self, fast: bool) -> Worker[Any]:
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        if not fast:
            return self.model if dtype == torch.float32 else copy.deepcopy(self.model).to(dtype)  # type: ignore[return-value]
        if self.on_gpu:
            return swift_gpu.SwiftGpu(self.model, dtype)
        return swift.Swift(self.model, "int8" if self.precision == "int8" else "float32")
