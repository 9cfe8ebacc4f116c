"""The overhead of `attend` over PyTorch's SDPA, and the speedup of sliding-window attention.

    python benchmarks/attention.py            on a CPU: `attend` against SDPA, and a sliding window on a long sequence
    python benchmarks/attention.py --gpu      on a GPU: checks, then a sliding window against full causal SDPA

On a GPU it also measures memory by sequence length, and the length from which FlexAttention beats SDPA with a dense
mask (the source of FLEX_FROM in attend.py). The full causal baseline runs on SDPA's fastest backend.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from benchmarks.common import log, median_ratio, time_alternating, time_in_blocks, write_results
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from regard.attention import (
    Causal,
    Documents,
    Full,
    Global,
    Lengths,
    MultiHeadConfig,
    Pattern,
    RotaryConfig,
    Sliding,
    attend,
)
from regard.attention.attend import Backend
from regard.model import LanguageModelConfig, StackConfig

ATTEND_BACKENDS: tuple[Backend, ...] = ("flex", "sdpa")
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def overhead_on_cpu(repeats: int) -> list[dict[str, Any]]:
    """`attend` against the SDPA call that it dispatches to: batch 8, 8 heads, length 512."""
    query, key, value = (torch.randn(8, 8, 512, 64) for _ in range(3))
    cases = []
    for name, pattern, causal in (("full", Full(), False), ("causal", Causal(), True)):

        def ours(pattern: Pattern = pattern) -> Tensor:
            return attend(query, key, value, pattern)

        def peer(causal: bool = causal) -> Tensor:
            return scaled_dot_product_attention(query, key, value, is_causal=causal)

        with torch.no_grad():
            our_seconds, peer_seconds = time_alternating([ours, peer], repeats)
        ratio = median_ratio(our_seconds, peer_seconds)
        milliseconds = [1e3 * statistics.median(seconds) for seconds in (our_seconds, peer_seconds)]
        case = {"case": f"attend over SDPA, {name}, cpu, 8×8×512×64", "unit": "ms", "repeats": repeats}
        cases.append(log({**case, "ours": milliseconds[0], "peer": milliseconds[1], "ratio": ratio}))
    return cases


def window_on_cpu(length: int = 4096, window: int = 256, repeats: int = 7) -> list[dict[str, Any]]:
    """A causal sliding window against full causal SDPA: 8 heads of dimension 64, float32, forward and backward."""
    tensors = [torch.randn(1, 8, length, 64, requires_grad=True) for _ in range(3)]
    ours = forward_and_backward(partial(attend, pattern=Causal() & Sliding(window)), tensors)
    peer = forward_and_backward(partial(scaled_dot_product_attention, is_causal=True), tensors)
    our_seconds, peer_seconds = time_alternating([ours, peer], repeats, warmup=1)
    milliseconds = [1e3 * statistics.median(seconds) for seconds in (our_seconds, peer_seconds)]
    case = {"case": f"causal window {window} over full causal SDPA, cpu, 1×8×{length}×64, forward and backward"}
    times = {"unit": "ms", "repeats": repeats, "ours": milliseconds[0], "peer": milliseconds[1]}
    return [log({**case, **times, "ratio": median_ratio(our_seconds, peer_seconds)})]


def random_qkv(batch: int, heads: int, length: int, head_dim: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    shape = (batch, heads, length, head_dim)
    return [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]


def forward_and_backward(function: Callable[..., Tensor], tensors: list[Tensor]) -> Callable[[], object]:
    grad_output = torch.randn_like(tensors[0])

    def run() -> object:
        return torch.autograd.grad(function(*tensors), tensors, grad_output)

    return run


def window_on_gpu(length: int = 16_384, window: int = 512) -> list[dict[str, Any]]:
    """A causal sliding window against full causal SDPA on its fastest backend: batch 8, 16 heads of size 128, bf16.

    Forward and backward, timed in blocks: in single alternating calls the window, which has a sixth of the work, would
    run at the reduced clocks that full attention leaves behind.
    """
    tensors = random_qkv(8, 16, length, 128)
    ours = forward_and_backward(partial(attend, pattern=Causal() & Sliding(window)), tensors)

    def full(*qkv: Tensor, backend: SDPBackend) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)

    peers = {name: forward_and_backward(partial(full, backend=backend), tensors) for name, backend in BACKENDS.items()}
    backend_ms = {name: 1e3 * statistics.median(time_alternating([peer], 5)[0]) for name, peer in peers.items()}
    fastest = min(backend_ms, key=lambda name: backend_ms[name])
    our_seconds, peer_seconds = time_in_blocks([ours, peers[fastest]])
    ratio_call_by_call = median_ratio(*time_alternating([ours, peers[fastest]], 15))
    case = {"case": f"causal window {window} over full causal SDPA, 8×16×{length}×128, bf16, forward and backward"}
    figures = {
        "unit": "ms",
        "ours": 1e3 * statistics.median(our_seconds),
        "peer": 1e3 * statistics.median(peer_seconds),
        "ratio": statistics.median(peer_seconds) / statistics.median(our_seconds),
        "ratio_call_by_call": ratio_call_by_call,
        "peer_backend": fastest,
        "every_backend": backend_ms,
        "repeats": len(our_seconds),
    }
    return [log({**case, **figures})]


def memory_by_length(lengths: tuple[int, ...] = (4096, 8192, 16_384, 32_768, 65_536)) -> list[dict[str, Any]]:
    """Peak memory of forward and backward with a window of 512, block mask included: linear in the length."""
    cases = []
    for length in lengths:
        tensors = random_qkv(8, 16, length, 128)
        run = forward_and_backward(partial(attend, pattern=Causal() & Sliding(512)), tensors)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        (seconds,) = time_alternating([run], repeats=5, warmup=1)
        cases.append(
            log(
                {
                    "case": f"causal window 512, 8×16×{length}×128, bf16, forward and backward",
                    "length": length,
                    "peak_bytes": peak,
                    "peak_bytes_a_token": peak / (8 * length),
                    "ms": 1e3 * statistics.median(seconds),
                }
            )
        )
        del tensors, run
        torch.cuda.empty_cache()
    return cases


def flex_against_dense_mask(repeats: int = 15) -> list[dict[str, Any]]:
    """FlexAttention against SDPA with a dense mask, forward and backward, bf16.

    The mask is made once outside the timing, as the layers of a model share it.
    """
    cases = []
    for length in (1024, 2048, 4096):
        rows = 16_384 // length
        tensors = random_qkv(rows, 8, length, 64)
        documents = (torch.arange(length, device="cuda") // 128).expand(rows, -1).contiguous()
        for name, pattern in {
            "causal window 128": Causal() & Sliding(128),
            "causal documents of 128": Documents(documents, Causal()),
        }.items():
            mask = pattern.bind(length, rows=rows, device="cuda")
            functions = [partial(attend, pattern=mask, backend=backend) for backend in ATTEND_BACKENDS]
            flex, dense = time_alternating([forward_and_backward(each, tensors) for each in functions], repeats)
            case = {"case": f"flex over dense mask, {name}", "length": length, "shape": list(tensors[0].shape)}
            times = {"flex_ms": 1e3 * statistics.median(flex), "dense_ms": 1e3 * statistics.median(dense)}
            cases.append(log({**case, **times, "ratio": median_ratio(flex, dense)}))
    return cases


def check_backends_on_gpu() -> list[dict[str, Any]]:
    """Every backend of `attend` on a GPU against the float64 reference: outputs and gradients, also of masked rows."""
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
    for (name, pattern), dtype, kv_heads in itertools.product(
        patterns.items(), (torch.float32, torch.bfloat16), (8, 2)
    ):
        query = torch.randn(4, 8, 300, 64, device="cuda", dtype=dtype, requires_grad=True)
        key, value = (
            torch.randn(4, kv_heads, 300, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(2)
        )
        grad_output = torch.randn_like(query)
        exact = [tensor.detach().double().requires_grad_() for tensor in (query, key, value)]
        output = attend(exact[0], exact[1], exact[2], pattern, backend="reference")
        expected = [output, *torch.autograd.grad(output, exact, grad_output.double())]
        backends: tuple[Backend, ...] = (*ATTEND_BACKENDS, "blockwise", "reference")
        for backend in backends:
            output = attend(query, key, value, pattern, backend=backend)
            actual = [output, *torch.autograd.grad(output, (query, key, value), grad_output)]
            error = max(
                float(((tensor.double() - reference).norm() / reference.norm()).detach())
                for tensor, reference in zip(actual, expected, strict=True)
            )
            limit = {torch.float32: 2e-3, torch.bfloat16: 2e-2}[dtype]  # flex may compute float32 matmuls in TF32
            case = {"case": f"{backend} against float64 reference, {name}, {dtype}, {kv_heads} KV heads"}
            cases.append({**case, "relative_error": error, "limit": limit, "passed": error < limit})
    log(
        {
            "case": "all ways against the float64 reference",
            "checks": len(cases),
            "passed": sum(c["passed"] for c in cases),
        }
    )
    return cases


def check_model_on_gpu() -> list[dict[str, Any]]:
    """A language model on the flex backend: logits against those of the CPU, cached decoding against uncached."""
    heads = MultiHeadConfig(heads=4, kv_heads=2, head_dim=32, pattern="global(2) | sliding(64)")
    config = LanguageModelConfig(
        vocab_size=100, width=64, decoder=StackConfig(layers=2, attention=heads), position=RotaryConfig()
    )
    model = config.build().eval()
    tokens = torch.randint(0, 100, (2, 2304))
    limit = 1e-4
    with torch.no_grad():
        cpu_logits = model(tokens)
        model.cuda()
        logits = model(tokens.cuda())
        cache = model.start(2, 2304)
        first_chunk, _ = model.step(tokens[:, :2048].cuda(), cache, torch.tensor([2048, 1500], device="cuda"))
        ragged = torch.stack((tokens[0, 2048:2148], tokens[1, 1500:1600])).cuda()
        second_chunk, _ = model.step(ragged, cache)
    errors = {
        "flex on the GPU against dense on the CPU": (logits.cpu() - cpu_logits).abs().max(),
        "first chunk from the cache": (first_chunk[0] - logits[0, :2048]).abs().max(),
        "second chunk, first row": (second_chunk[0] - logits[0, 2048:2148]).abs().max(),
        "second chunk, shorter row": (second_chunk[1] - logits[1, 1500:1600]).abs().max(),
    }
    cases = [
        {"case": f"language model, {name}", "error": float(error), "limit": limit, "passed": bool(error < limit)}
        for name, error in errors.items()
    ]
    return [log(case) for case in cases]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="measure on a GPU instead of the CPU")
    parser.add_argument("--repeats", type=int, default=60, help="timed calls per function on the CPU (default: 60)")
    args = parser.parse_args()
    torch.manual_seed(0)
    if not args.gpu:
        cases = [*overhead_on_cpu(args.repeats), *window_on_cpu()]
        print(f"Results written to {write_results('attention-cpu', cases)}")
        return 0
    if not torch.cuda.is_available():
        parser.error("--gpu needs a GPU, and none was found; leave it out to measure on the CPU")
    checks = [*check_backends_on_gpu(), *check_model_on_gpu()]
    cases = [*checks, *window_on_gpu(), *memory_by_length(), *flex_against_dense_mask()]
    print(f"Results written to {write_results('attention-gpu', cases)}")
    return 0 if all(case["passed"] for case in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
