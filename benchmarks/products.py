"""What it buys to take products from cuBLASLt: its fastest kernel, without memory to work in, beside PyTorch's own.

    python benchmarks/products.py                # GPT-2's products and the base model's, on a GPU
    python benchmarks/products.py --kernels      # every kernel that the library names, hot, for each of them

Both multiply the same matrices in bf16 and take turns. A block of each is long enough for the clocks to settle: large
products reach the power that a chip may take, and the kernel that is fastest on a cool chip need not be so on a hot
one. `same` says whether both gave the same bits.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from common import median_ratio, say, time_in_blocks, write_results
from torch import Tensor
from torch.nn import functional

from regard.fast import cublas_lt

_OPERATIONS = 5e12
"""Operations that are started at once: some milliseconds."""


class Work(NamedTuple):
    """A product: x Wᵀ for (size, inner) weights, or on the way back x W for (inner, size), `added` onto another."""

    name: str
    rows: int
    inner: int
    size: int
    back: bool = False
    added: bool = False


GPT2 = [
    Work("query, key and value", 32_768, 768, 2304),
    Work("output of attention", 32_768, 768, 768),
    Work("narrow", 32_768, 3072, 768),
    Work("scores", 16_384, 768, 50_304),
    Work("back to query", 32_768, 768, 768, back=True),
    Work("back to key, onto that", 32_768, 768, 768, back=True, added=True),
    Work("back to widen", 32_768, 3072, 768, back=True),
]
BASE = [
    Work("query, key and value", 24_576, 512, 1536),
    Work("widen", 24_576, 512, 2048),
    Work("narrow", 24_576, 2048, 512),
    Work("scores", 24_576, 512, 32_768),
    Work("back to widen", 24_576, 2048, 512, back=True),
    Work("back to narrow", 24_576, 512, 2048, back=True),
]


Multiply = Callable[[], Tensor]


def ways(work: Work) -> tuple[Multiply, Multiply]:
    """Ours and PyTorch's."""
    torch.manual_seed(1)
    shape = (work.inner, work.size) if work.back else (work.size, work.inner)
    x, weight, onto = (
        torch.randn(size, device="cuda", dtype=torch.bfloat16) / 16
        for size in ((work.rows, work.inner), shape, (work.rows, work.size))
    )
    other = onto.clone()
    if not work.back:
        return lambda: cublas_lt.product(x, weight, None), lambda: functional.linear(x, weight)
    if not work.added:
        return lambda: cublas_lt.product_back(x, weight), lambda: x @ weight
    return lambda: cublas_lt.product_back(x, weight, onto), lambda: other.addmm_(x, weight)


def steadily(multiply: Multiply, work: Work) -> Callable[[], None]:
    """So many products that the device is busy for a while."""

    def several() -> None:
        for _ in range(_calls(work)):
            multiply()

    return several


def _calls(work: Work) -> int:
    return max(1, round(_OPERATIONS / _operations(work)))


def _operations(work: Work) -> int:
    return 2 * work.rows * work.inner * work.size


def compare(model: str, work: Work, rounds: int) -> dict[str, Any]:
    ours, peer = ways(work)
    same = torch.equal(ours(), peer())
    taken = time_in_blocks([steadily(each, work) for each in (ours, peer)], rounds=rounds)
    speeds = [_operations(work) * _calls(work) / statistics.median(each) for each in taken]
    return {
        "case": f"{model}: {work.name}, {work.rows:,} × {work.inner:,} by {work.size:,}",
        "ours": speeds[0],
        "peer": speeds[1],
        "unit": "operations a second",
        "ratio": median_ratio(*taken),
        "same": same,
    }


def each_kernel(work: Work, rounds: int) -> list[float]:
    """Microseconds with every kernel that the library names, in their order."""
    ours, _ = ways(work)
    epilogue = cublas_lt._EPILOGUE_NONE
    device = torch.device("cuda", torch.cuda.current_device())
    plan = cublas_lt._plan(
        device, torch.bfloat16, work.rows, work.inner, work.size,
        transposed=not work.back, epilogue=epilogue, added=work.added,
    )  # fmt: skip
    assert plan is not None
    kernels = plan.kernels

    def with_kernel(kernel: Any) -> Multiply:
        def multiply() -> Tensor:
            plan.kernels, plan.tried = [kernel], True
            return ours()

        return multiply

    taken = time_in_blocks([steadily(with_kernel(kernel), work) for kernel in kernels], rounds=rounds)
    plan.kernels, plan.tried = kernels, False
    return [round(1e6 * statistics.median(each) / _calls(work), 1) for each in taken]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kernels", action="store_true", help="time every kernel too, before one is chosen")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs a GPU")
    cases = []
    for model, works in (("GPT-2", GPT2), ("base", BASE)):
        for work in works:
            every = {"microseconds_by_kernel": each_kernel(work, given.rounds)} if given.kernels else {}
            cases.append(say(compare(model, work, given.rounds) | every))
            torch.cuda.empty_cache()
    print(f"written: {write_results('products-gpu', cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
