"""Backends for search: which implementation of the decoder runs.

The plain PyTorch model always works. The fused decoder for CPUs is compiled by numba and can have int8 weights; the one
for CUDA is written in Triton and can compute in bfloat16. Compiling takes some seconds, once per machine, so `Backend`
uses a fused decoder where it pays: for many inputs, or where its kernels have been compiled before.
"""

import copy
from collections.abc import Generator
from typing import Any, Generic, Literal, TypeVar, get_args

import torch

from regard.decode import BatchDecoderModel, DecodeConfig, Engine, Request
from regard.errors import UserError
from regard.fused import cpu_decoder, cuda_decoder
from regard.fused.support import cpu_decoder_unsupported_reason, cuda_decoder_unsupported_reason
from regard.kernels.cpu.threads import watch_cores
from regard.model.autoregressive import AutoregressiveModel, GenerativeModel
from regard.run import LoadedModel

Precision = Literal["float32", "bfloat16", "int8"]

BATCH_TOKENS = {"cpu": 1024, "cuda": 16384}
"""How many source or prompt tokens are searched at once, padding included."""
CPU_THRESHOLDS = 16, 1000
"""From how many inputs the fused CPU decoder pays: if its kernels are compiled, and if they must be compiled first."""
CUDA_THRESHOLDS = 1, 16
"""The same on CUDA, where the steps of the plain model wait for kernel launches."""
_MIN_INPUTS_FOR_THREADS = 8
AnyAutoregressive = TypeVar("AnyAutoregressive", bound=GenerativeModel)


class Backend(Generic[AnyAutoregressive]):
    """A model and its decoders, each made when it is first used."""

    def __init__(self, model: AnyAutoregressive) -> None:
        self.model = model
        self.fused: bool | None = None
        """Whether to use the fused decoder; None decides by the number of inputs."""
        self.precision: Precision = "float32"
        self._decoders: dict[tuple[Precision, bool], BatchDecoderModel[Any]] = {}
        watch_cores()

    def configure(self, precision: Precision, fused: bool | None = None) -> None:
        """Set precision and kernels; an error if this model or device does not support them."""
        if precision not in get_args(Precision):
            raise UserError(f"dtype: found {precision!r}; expected {', '.join(get_args(Precision))}.")
        self.precision, self.fused = precision, fused
        self.check()

    def reset(self) -> None:
        """Drop the decoders, because the model has changed or moved."""
        self._decoders.clear()

    @property
    def on_cuda(self) -> bool:
        return self.model.device.type == "cuda"

    def unsupported_reason(self) -> str | None:
        """Why the fused decoder cannot run this model on this device; None if it can."""
        reason = cuda_decoder_unsupported_reason if self.on_cuda else cpu_decoder_unsupported_reason
        return reason(self.model)

    def is_compiled(self) -> bool:
        """Whether the fused kernels have been compiled on this machine before."""
        return cuda_decoder.is_compiled() if self.on_cuda else cpu_decoder.is_compiled()

    def uses_fused(self, inputs: int) -> bool:
        """Whether this many inputs are decoded by the fused decoder."""
        if self.precision == "int8":
            return True
        compiled, uncompiled = CUDA_THRESHOLDS if self.on_cuda else CPU_THRESHOLDS
        if self.fused is False or (self.fused is None and inputs < compiled) or self.unsupported_reason() is not None:
            return False
        return self.fused is True or inputs >= (compiled if self.is_compiled() else uncompiled)

    def check(self) -> None:
        """Raise an error if the precision is not available."""
        if self.precision == "bfloat16" and not self.on_cuda:
            raise UserError("bfloat16 is for CUDA; on a CPU use float32 or int8.")
        if self.precision != "int8":
            return
        if self.on_cuda:
            raise UserError("int8 is for CPUs; on CUDA use float32 or bfloat16.")
        if self.fused is False:
            raise UserError("int8 needs fused kernels; leave out --no-fused, or use float32.")
        if (reason := self.unsupported_reason()) is not None:
            raise UserError(f"int8 is not available: {reason}.")

    def decoder_model(self, inputs: int) -> BatchDecoderModel[Any]:
        """The decoder for this many inputs."""
        self.check()
        key = self.precision, self.uses_fused(inputs)
        if key not in self._decoders:
            self._decoders[key] = self._make(fused=key[1])
        return self._decoders[key]

    def stream(self, request: Request, eos: int) -> Generator[tuple[int, ...], None, None]:
        """The tokens of an output while it is decoded: all so far after each step, and those of the result at last."""
        engine = Engine(self.decoder_model(1), eos, max_rows=1, max_length=request.max_length)
        received: list[tuple[int, ...]] = []
        future = engine.submit(request, received.append)
        try:
            while engine.step():
                yield from received
                received.clear()
            (best,) = future.result(0)
            yield best.tokens
        finally:
            future.cancel()

    def _make(self, *, fused: bool) -> BatchDecoderModel[Any]:
        dtype = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
        if not fused:
            return self.model if dtype == torch.float32 else copy.deepcopy(self.model).to(dtype)  # type: ignore[return-value]
        assert isinstance(self.model, AutoregressiveModel)  # other models have no fused form
        if self.on_cuda:
            return cuda_decoder.CudaDecoder(self.model, dtype)
        return cpu_decoder.CpuDecoder(self.model, "int8" if self.precision == "int8" else "float32")


def batch_tokens_for(model: BatchDecoderModel[Any]) -> int:
    """How many source tokens a model searches at once on its device."""
    return BATCH_TOKENS.get(model.device.type, 2048)


def threads_for(model: BatchDecoderModel[Any], inputs: int) -> int:
    """How many batches are searched in parallel.

    The fused CPU decoder takes one batch per core, because its steps are too short to be worth splitting.
    """
    parallel = isinstance(model, cpu_decoder.CpuDecoder) and inputs >= _MIN_INPUTS_FOR_THREADS
    return torch.get_num_threads() if parallel else 1


def recorded_search(loaded: LoadedModel) -> DecodeConfig:
    """The search settings that a run folder records; the defaults if it records none."""
    recorded = loaded.origin.get("decode")
    where = "" if loaded.path is None else f"{loaded.path / 'run.json'}: "
    return DecodeConfig() if recorded is None else DecodeConfig.read(recorded, f"{where}origin.decode")
