"""Matmuls on a GPU: the fastest cuBLASLt kernel that needs no workspace, against PyTorch's matmul.

    python benchmarks/gemm.py                # the matmuls of GPT-2 and of the base model
    python benchmarks/gemm.py --kernels      # also time every kernel that cuBLASLt proposes for each of them

Both multiply the same matrices in bf16 and are timed in alternating blocks. A block is long enough for the clocks to
settle: large matmuls reach the power limit of a GPU, and the kernel that is fastest on a cool GPU need not be the
fastest on a hot one. `same` tells whether both results are bit-identical.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from benchmarks.common import log, median_ratio, time_in_blocks, write_results
from torch import Tensor
from torch.nn import functional

from regard.kernels.cuda import cublaslt, cublaslt_api

_FLOPS_PER_SAMPLE = 5e12
"""FLOPs enqueued at once: a few milliseconds."""


class Gemm(NamedTuple):
    """One matmul: x Wᵀ with weights (size, inner), or its input gradient x W with weights (inner, size).

    `accumulate` adds the result to an existing tensor.
    """

    name: str
    rows: int
    inner: int
    size: int
    dgrad: bool = False
    accumulate: bool = False

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.inner * self.size

    @property
    def calls_per_sample(self) -> int:
        return max(1, round(_FLOPS_PER_SAMPLE / self.flops))


GPT2 = [
    Gemm("query, key and value", 32_768, 768, 2304),
    Gemm("output of attention", 32_768, 768, 768),
    Gemm("narrow", 32_768, 3072, 768),
    Gemm("scores", 16_384, 768, 50_304),
    Gemm("back to query", 32_768, 768, 768, dgrad=True),
    Gemm("back to key, onto that", 32_768, 768, 768, dgrad=True, accumulate=True),
    Gemm("back to widen", 32_768, 3072, 768, dgrad=True),
]
BASE = [
    Gemm("query, key and value", 24_576, 512, 1536),
    Gemm("widen", 24_576, 512, 2048),
    Gemm("narrow", 24_576, 2048, 512),
    Gemm("scores", 24_576, 512, 32_768),
    Gemm("back to widen", 24_576, 2048, 512, dgrad=True),
    Gemm("back to narrow", 24_576, 512, 2048, dgrad=True),
]


Matmul = Callable[[], Tensor]


def make_matmuls(gemm: Gemm) -> tuple[Matmul, Matmul]:
    """The matmul by regard's cuBLASLt call and by PyTorch, on the same random matrices."""
    torch.manual_seed(1)
    weight_shape = (gemm.inner, gemm.size) if gemm.dgrad else (gemm.size, gemm.inner)
    x, weight, our_sum = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16) / 16
        for shape in ((gemm.rows, gemm.inner), weight_shape, (gemm.rows, gemm.size))
    )
    peer_sum = our_sum.clone()
    if not gemm.dgrad:
        return lambda: cublaslt.linear(x, weight, None), lambda: functional.linear(x, weight)
    if not gemm.accumulate:
        return lambda: cublaslt.linear_dgrad(x, weight), lambda: x @ weight
    return lambda: cublaslt.linear_dgrad(x, weight, our_sum), lambda: peer_sum.addmm_(x, weight)


def repeated(matmul: Matmul, gemm: Gemm) -> Callable[[], None]:
    """The matmul several times, which keeps the device busy for a few milliseconds."""

    def run() -> None:
        for _ in range(gemm.calls_per_sample):
            matmul()

    return run


def compare(model: str, gemm: Gemm, rounds: int) -> dict[str, Any]:
    """FLOP/s of both, and whether they compute the same bits."""
    ours, peer = make_matmuls(gemm)
    same = torch.equal(ours(), peer())
    seconds = time_in_blocks([repeated(matmul, gemm) for matmul in (ours, peer)], rounds=rounds)
    flop_rates = [gemm.flops * gemm.calls_per_sample / statistics.median(samples) for samples in seconds]
    return {
        "case": f"{model}: {gemm.name}, {gemm.rows:,} × {gemm.inner:,} by {gemm.size:,}",
        "ours": flop_rates[0],
        "peer": flop_rates[1],
        "unit": "operations a second",
        "ratio": median_ratio(*seconds),
        "same": same,
    }


def time_kernels(gemm: Gemm, rounds: int) -> list[float]:
    """Microseconds of every kernel that cuBLASLt proposes, in its order."""
    ours, _ = make_matmuls(gemm)
    epilogue = cublaslt_api.EPILOGUE_NONE
    device = torch.device("cuda", torch.cuda.current_device())
    plan = cublaslt_api.make_plan(
        device, torch.bfloat16, gemm.rows, gemm.inner, gemm.size,
        transposed=not gemm.dgrad, epilogue=epilogue, accumulate=gemm.accumulate,
    )  # fmt: skip
    assert plan is not None
    kernels = plan.kernels

    def with_kernel(kernel: Any) -> Matmul:
        def run() -> Tensor:
            plan.kernels, plan.tried = [kernel], True
            return ours()

        return run

    seconds = time_in_blocks([repeated(with_kernel(kernel), gemm) for kernel in kernels], rounds=rounds)
    plan.kernels, plan.tried = kernels, False
    return [round(1e6 * statistics.median(samples) / gemm.calls_per_sample, 1) for samples in seconds]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="rounds of alternating blocks (default: 2)")
    parser.add_argument("--kernels", action="store_true", help="also time every kernel that cuBLASLt proposes")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a GPU, and none was found")
    cases = []
    for model, gemms in (("GPT-2", GPT2), ("base", BASE)):
        for gemm in gemms:
            by_kernel = {"microseconds_by_kernel": time_kernels(gemm, args.rounds)} if args.kernels else {}
            cases.append(log(compare(model, gemm, args.rounds) | by_kernel))
            torch.cuda.empty_cache()
    print(f"Results written to {write_results('products-gpu', cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
