"""What `attend` costs and what a pattern saves.

    python benchmarks/attention.py            on this machine's CPU: attend beside raw SDPA, and a long local window
    python benchmarks/attention.py --gpu      on a GPU: checks first, then long local attention beside full causal SDPA

On the CPU the question is what the one door adds to the kernel behind it. On the GPU it is whether a window pays: time
against full causal attention on SDPA's fastest backend, memory as the length grows, and from which length on
FlexAttention beats a dense mask (FLEX_FROM in attend.py is set by that table).
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from common import median_ratio, say, time_in_blocks, time_in_turn, write_results
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from regard.attention import (
    Causal,
    Documents,
    Full,
    Global,
    HeadsConfig,
    Lengths,
    Pattern,
    RotaryConfig,
    Sliding,
    attend,
)
from regard.attention.attend import Path
from regard.model import LanguageModelConfig, StackConfig

PATHS: tuple[Path, ...] = ("flex", "sdpa")
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def overhead_on_cpu(repeats: int) -> list[dict[str, Any]]:
    """attend against the SDPA call it ends in: batch 8, 8 heads, length 512."""
    query, key, value = (torch.randn(8, 8, 512, 64) for _ in range(3))
    cases = []
    for name, pattern, causal in (("full", Full(), False), ("causal", Causal(), True)):

        def ours(pattern: Pattern = pattern) -> Tensor:
            return attend(query, key, value, pattern)

        def peer(causal: bool = causal) -> Tensor:
            return scaled_dot_product_attention(query, key, value, is_causal=causal)

        with torch.no_grad():
            mine, theirs = time_in_turn([ours, peer], repeats)
        ratio = median_ratio(mine, theirs)
        milliseconds = [1e3 * statistics.median(taken) for taken in (mine, theirs)]
        case = {"case": f"attend over SDPA, {name}, cpu, 8×8×512×64", "unit": "ms", "repeats": repeats}
        cases.append(say({**case, "ours": milliseconds[0], "peer": milliseconds[1], "ratio": ratio}))
    return cases


def window_on_cpu(length: int = 4096, window: int = 256, repeats: int = 7) -> list[dict[str, Any]]:
    """A causal window against full causal SDPA: 8 heads of width 64, float32, forward and backward."""
    tensors = [torch.randn(1, 8, length, 64, requires_grad=True) for _ in range(3)]
    ours = forward_and_backward(partial(attend, pattern=Causal() & Sliding(window)), tensors)
    peer = forward_and_backward(partial(scaled_dot_product_attention, is_causal=True), tensors)
    mine, theirs = time_in_turn([ours, peer], repeats, warm=1)
    milliseconds = [1e3 * statistics.median(taken) for taken in (mine, theirs)]
    case = {"case": f"causal window {window} over full causal SDPA, cpu, 1×8×{length}×64, forward and backward"}
    times = {"unit": "ms", "repeats": repeats, "ours": milliseconds[0], "peer": milliseconds[1]}
    return [say({**case, **times, "ratio": median_ratio(mine, theirs)})]


def inputs(batch: int, heads: int, length: int, width: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    shape = (batch, heads, length, width)
    return [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]


def forward_and_backward(function: Callable[..., Tensor], tensors: list[Tensor]) -> Callable[[], object]:
    weight = torch.randn_like(tensors[0])

    def run() -> object:
        return torch.autograd.grad(function(*tensors), tensors, weight)

    return run


def window_against_full(length: int = 16_384, window: int = 512) -> list[dict[str, Any]]:
    """Batch 8, 16 heads of width 128, bf16, forward and backward; the peer is SDPA on whichever backend is fastest.

    Timed in blocks. Call by call, in turn with six times its work on a hot chip, ours runs at the clocks the peer left.
    """
    tensors = inputs(8, 16, length, 128)
    ours = forward_and_backward(partial(attend, pattern=Causal() & Sliding(window)), tensors)

    def full(*qkv: Tensor, backend: SDPBackend) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)

    peers = {name: forward_and_backward(partial(full, backend=backend), tensors) for name, backend in BACKENDS.items()}
    alone = {name: 1e3 * statistics.median(time_in_turn([peer], 5)[0]) for name, peer in peers.items()}
    fastest = min(alone, key=lambda name: alone[name])
    mine, theirs = time_in_blocks([ours, peers[fastest]])
    in_turn = median_ratio(*time_in_turn([ours, peers[fastest]], 15))
    case = {"case": f"causal window {window} over full causal SDPA, 8×16×{length}×128, bf16, forward and backward"}
    figures = {
        "unit": "ms",
        "ours": 1e3 * statistics.median(mine),
        "peer": 1e3 * statistics.median(theirs),
        "ratio": statistics.median(theirs) / statistics.median(mine),
        "ratio_call_by_call": in_turn,
        "peer_backend": fastest,
        "every_backend": alone,
        "repeats": len(mine),
    }
    return [say({**case, **figures})]


def memory_by_length(lengths: tuple[int, ...] = (4096, 8192, 16_384, 32_768, 65_536)) -> list[dict[str, Any]]:
    """Peak memory of forward and backward, window 512, block mask included. Linear: bytes a token stay level."""
    cases = []
    for length in lengths:
        tensors = inputs(8, 16, length, 128)
        run = forward_and_backward(partial(attend, pattern=Causal() & Sliding(512)), tensors)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        (taken,) = time_in_turn([run], repeats=5, warm=1)
        cases.append(
            say(
                {
                    "case": f"causal window 512, 8×16×{length}×128, bf16, forward and backward",
                    "length": length,
                    "peak_bytes": peak,
                    "peak_bytes_a_token": peak / (8 * length),
                    "ms": 1e3 * statistics.median(taken),
                }
            )
        )
        del tensors, run
        torch.cuda.empty_cache()
    return cases


def where_flex_pays(repeats: int = 15) -> list[dict[str, Any]]:
    """Flex against SDPA with a dense mask, forward and backward, bf16; masks are shared, as a model's layers do."""
    cases = []
    for length in (1024, 2048, 4096):
        rows = 16_384 // length
        tensors = inputs(rows, 8, length, 64)
        documents = (torch.arange(length, device="cuda") // 128).expand(rows, -1).contiguous()
        for name, pattern in {
            "causal window 128": Causal() & Sliding(128),
            "causal documents of 128": Documents(documents, Causal()),
        }.items():
            scope = pattern.over(length, rows=rows, device="cuda")
            ways = [partial(attend, pattern=scope, path=path) for path in PATHS]
            flex, dense = time_in_turn([forward_and_backward(way, tensors) for way in ways], repeats)
            case = {"case": f"flex over dense mask, {name}", "length": length, "shape": list(tensors[0].shape)}
            times = {"flex_ms": 1e3 * statistics.median(flex), "dense_ms": 1e3 * statistics.median(dense)}
            cases.append(say({**case, **times, "ratio": median_ratio(flex, dense)}))
    return cases


def checks_on_gpu() -> list[dict[str, Any]]:
    """Flex and SDPA against the reference on this GPU: outputs, gradients, rows that see nothing."""
    lengths = torch.tensor([300, 0, 129, 1], device="cuda")
    documents = torch.arange(300, device="cuda").expand(4, -1) // 37 - 1  # the first 37 positions are padding
    patterns: dict[str, Pattern] = {
        "causal": Causal(),
        "causal window 40": Causal() & Sliding(40),
        "global or window, causal": Causal() & (Global(3) | Sliding(20)),
        "lengths, one of them 0": Full() & Lengths(lengths),
        "packed documents": Documents(documents.contiguous(), Causal()),
    }
    cases = []
    for (name, pattern), dtype, key_heads in itertools.product(
        patterns.items(), (torch.float32, torch.bfloat16), (8, 2)
    ):
        query = torch.randn(4, 8, 300, 64, device="cuda", dtype=dtype, requires_grad=True)
        key, value = (
            torch.randn(4, key_heads, 300, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(2)
        )
        weight = torch.randn_like(query)
        exact = [tensor.detach().double().requires_grad_() for tensor in (query, key, value)]
        output = attend(exact[0], exact[1], exact[2], pattern, path="reference")
        wanted = [output, *torch.autograd.grad(output, exact, weight.double())]
        ways: tuple[Path, ...] = (*PATHS, "strips", "reference")
        for path in ways:
            output = attend(query, key, value, pattern, path=path)
            found = [output, *torch.autograd.grad(output, (query, key, value), weight)]
            error = max(
                float(((mine.double() - right).norm() / right.norm()).detach())
                for mine, right in zip(found, wanted, strict=True)
            )
            limit = {torch.float32: 2e-3, torch.bfloat16: 2e-2}[dtype]  # float32 products may use TF32 inside flex
            case = {"case": f"{path} against float64 reference, {name}, {dtype}, {key_heads} key heads"}
            cases.append({**case, "relative_error": error, "limit": limit, "passed": error < limit})
    say(
        {
            "case": "all ways against the float64 reference",
            "checks": len(cases),
            "passed": sum(c["passed"] for c in cases),
        }
    )
    return cases


def models_on_gpu() -> list[dict[str, Any]]:
    """A language model whose layers take the flex path: its logits against the CPU's, and cached against uncached."""
    heads = HeadsConfig(heads=4, key_heads=2, head_width=32, pattern="global(2) | sliding(64)")
    config = LanguageModelConfig(
        vocabulary=100, width=64, decoder=StackConfig(layers=2, attention=heads), position=RotaryConfig()
    )
    model = config.build().eval()
    tokens = torch.randint(0, 100, (2, 2304))
    limit = 1e-4
    with torch.no_grad():
        wanted = model(tokens)
        model.cuda()
        found = model(tokens.cuda())
        cache = model.start(2, 2304)
        first, _ = model.step(tokens[:, :2048].cuda(), cache, torch.tensor([2048, 1500], device="cuda"))
        ragged = torch.stack((tokens[0, 2048:2148], tokens[1, 1500:1600])).cuda()
        then, _ = model.step(ragged, cache)
    errors = {
        "flex on the GPU against dense on the CPU": (found.cpu() - wanted).abs().max(),
        "first chunk from the cache": (first[0] - found[0, :2048]).abs().max(),
        "second chunk, first row": (then[0] - found[0, 2048:2148]).abs().max(),
        "second chunk, shorter row": (then[1] - found[1, 1500:1600]).abs().max(),
    }
    cases = [
        {"case": f"language model, {name}", "error": float(error), "limit": limit, "passed": bool(error < limit)}
        for name, error in errors.items()
    ]
    return [say(case) for case in cases]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="measure on the GPU instead of the CPU")
    parser.add_argument("--repeats", type=int, default=60, help="rounds on the CPU (default: 60)")
    options = parser.parse_args()
    torch.manual_seed(0)
    if not options.gpu:
        print(f"written: {write_results('attention-cpu', [*overhead_on_cpu(options.repeats), *window_on_cpu()])}")
        return 0
    if not torch.cuda.is_available():
        print("There is no GPU here; leave --gpu out to measure on the CPU.", file=sys.stderr)
        return 2
    checks = [*checks_on_gpu(), *models_on_gpu()]
    cases = [*checks, *window_against_full(), *memory_by_length(), *where_flex_pays()]
    print(f"written: {write_results('attention-gpu', cases)}")
    return 0 if all(case["passed"] for case in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
