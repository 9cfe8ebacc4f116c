"""Training cost against the estimates of `regard.cost`: step time on a CPU, peak memory on a GPU.

`python benchmarks/cost.py` times training steps (forward, loss, backward, Adam) of small language models that differ in
length, width and depth. All have the same number of tokens per batch, so that time and FLOPs per token are comparable;
all sizes are timed alternately. It writes results/cost-cpu.json in a few minutes.

`python benchmarks/cost.py --gpu` measures the peak memory of several models on a CUDA device, each in a fresh process.
Most run the trainer's own steps: fused kernels, captured as CUDA graphs. A batch of one row comes first, so that the
optimizer state and gradients exist when the large batch is captured, as in a run with batches of many shapes. One
runs unfused steps. It also measures the cuBLAS workspaces that capturing allocates. It writes results/cost-gpu.json in
about a minute.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Literal

import torch
from benchmarks.common import log, time_alternating, write_results
from torch import nn

from regard.attention import MultiHeadConfig
from regard.cost import HARDWARE, Precision, TrainingSetup, Workload, estimate, workspace_bytes
from regard.data.batching.token_batches import Batch
from regard.model import (
    EncoderDecoder,
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    ModelConfig,
    StackConfig,
    transformer_base,
    transformer_big,
)
from regard.train import OptimizerConfig, cross_entropy
from regard.train.cuda_graph_step import CudaGraphStep
from regard.train.fused_adam import fused_adam_for
from regard.train.loss import Loss
from regard.train.step import forward_in_precision, training_forward

Form = Literal["plain", "fast"]

BATCH_TOKENS = 2048
LENGTH, WIDTH, LAYERS, VOCAB_SIZE = 64, 128, 4, 1000
SIZES: list[dict[str, int]] = [
    {},
    *({"length": size} for size in (32, 128, 512, 2048)),
    *({"width": size} for size in (64, 256, 512)),
    *({"layers": size} for size in (1, 2, 8, 16)),
]
"""The baseline model, then the one size in which each other model differs from it."""


def language_model(width: int, layers: int, vocab_size: int = VOCAB_SIZE, dropout: float = 0.1) -> LanguageModelConfig:
    stack = StackConfig(
        layers=layers,
        attention=MultiHeadConfig(heads=max(1, width // 32)),
        feed_forward=FeedForwardConfig(hidden=4 * width),
        dropout=dropout,
    )
    return LanguageModelConfig(vocab_size=vocab_size, width=width, decoder=stack)


def unfused_step(config: ModelConfig, workload: Workload, precision: str, device: str) -> Callable[[], None]:
    """A training step on PyTorch's kernels, on one random batch."""
    model = config.build().to(device).train()
    optimizer = OptimizerConfig().build(model)
    forward = forward_in_precision(model, precision)
    target = torch.randint(3, config.vocab_size, (workload.batch_size, workload.target_length), device=device)
    source = torch.randint(3, config.vocab_size, (workload.batch_size, workload.source_length or 1), device=device)
    ids = (source, target) if isinstance(config, EncoderDecoderConfig) else (target,)

    def step() -> None:
        cross_entropy(forward(*ids), target, None, 0.1).mean.backward()
        optimizer.step(1e-4)
        optimizer.zero_grad()

    return step


def time_by_size(repeats: int) -> list[dict[str, Any]]:
    """Time and FLOPs of a step at every size, relative to the baseline model; ratios are taken round by round."""
    steps, costs = [], []
    for size in SIZES:
        sizes = {"length": LENGTH, "width": WIDTH, "layers": LAYERS, **size}
        config = language_model(sizes["width"], sizes["layers"])
        workload = Workload(BATCH_TOKENS // sizes["length"], sizes["length"])
        steps.append(unfused_step(config, workload, "float32", "cpu"))
        costs.append(estimate(config, workload, TrainingSetup("float32", device="cpu")))
    seconds = time_alternating(steps, repeats, warmup=1)
    cases = []
    for size, cost, step_seconds in zip(SIZES, costs, seconds, strict=True):
        median = statistics.median(step_seconds)
        case = {
            "case": next((f"{name} {number}" for name, number in size.items()), "the model itself"),
            "training_flops_a_token": 3 * cost.flops_per_token[1],
            "attention_fraction": cost.attention_fraction,
            "flops_beside": cost.flops_per_step / costs[0].flops_per_step,
            "time_beside": statistics.median(one / base for one, base in zip(step_seconds, seconds[0], strict=True)),
            "microseconds_a_token": 1e6 * median / BATCH_TOKENS,
            "fastest_microseconds_a_token": 1e6 * min(step_seconds) / BATCH_TOKENS,
            "gflops_a_second": cost.flops_per_step / median / 1e9,
            "repeats": repeats,
        }
        cases.append(log(case))
    return cases


def memory_models() -> dict[str, tuple[ModelConfig, Workload]]:
    grouped_and_gated = StackConfig(
        layers=8,
        attention=MultiHeadConfig(heads=16, kv_heads=4),
        feed_forward=FeedForwardConfig(hidden=2816, activation="swiglu"),
        dropout=0.1,
    )
    return {
        "base, 768 × 32": (transformer_base(32_768), Workload(768, 32, 32)),
        "base, 96 × 256": (transformer_base(32_768), Workload(96, 256, 256)),
        "big, 8 × 32": (transformer_big(32_768), Workload(8, 32, 32)),
        "few words, 1024 × 64": (EncoderDecoderConfig(vocab_size=300, width=256), Workload(1024, 64, 64)),
        "GPT-2, 32 × 1024": (language_model(768, 12, 50_304), Workload(32, 1024)),
        "grouped and gated, 16 × 512": (
            LanguageModelConfig(vocab_size=16_000, width=1024, decoder=grouped_and_gated, tie_weights=False),
            Workload(16, 512),
        ),
    }


MEMORY_CASES: list[tuple[str, Precision, Form]] = [
    ("base, 768 × 32", "bfloat16", "fast"),
    ("base, 768 × 32", "float32", "fast"),
    ("base, 96 × 256", "bfloat16", "fast"),
    ("big, 8 × 32", "bfloat16", "fast"),
    ("few words, 1024 × 64", "bfloat16", "fast"),
    ("GPT-2, 32 × 1024", "bfloat16", "fast"),
    ("grouped and gated, 16 × 512", "bfloat16", "fast"),
    ("base, 768 × 32", "bfloat16", "plain"),
]
"""Cases that peak at different points: in the logits; in attention with long and with grouped rows; once all gradients
exist (a large model with a small batch); at the start of the backward pass (a small vocabulary); and with a
feed-forward layer that has no fused kernel."""


class RandomTokensTask:
    """The training task: predict the target tokens of a random batch."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def loss(self, forward: Any, batch: Batch) -> Loss:
        ids = (batch.source, batch.target) if isinstance(self.model, EncoderDecoder) else (batch.target,)
        return cross_entropy(forward(*ids), batch.target, None, 0.1, inplace=True)


def random_batch(config: ModelConfig, workload: Workload, rows: int) -> Batch:
    ids = [
        torch.randint(3, config.vocab_size, (rows, length or 1), device="cuda")
        for length in (workload.source_length, workload.target_length)
    ]
    lengths = [torch.full((rows,), side.shape[1], device="cuda") for side in ids]
    counts = (ids[0].numel(), ids[1].numel())
    return Batch((ids[0], ids[1]), (lengths[0], lengths[1]), torch.arange(rows, device="cuda"), counts, 0, 0)


def trainer_step(config: ModelConfig, precision: Precision) -> Callable[[Batch], None]:
    """A training step as the trainer runs it on one GPU: fused kernels, captured as a CUDA graph."""
    model = config.build().to("cuda").train()
    optimizer = OptimizerConfig().build(model)
    forward = training_forward(model, precision)
    train_step = CudaGraphStep[Batch](RandomTokensTask(model), precision, forward, fused_adam_for(optimizer, forward))  # type: ignore[arg-type]

    def step(batch: Batch) -> None:
        train_step.backward(batch, torch.full((), 1.0 / batch.count, device="cuda"), only=True)
        train_step.optimizer_step(optimizer, 1e-4, 1.0)

    return step


def measure_peak(name: str, precision: Precision, form: Form) -> dict[str, Any]:
    """Peak memory of three training steps in this process, against the estimate."""
    config, workload = memory_models()[name]
    hardware, cuda_graphs = HARDWARE["h200"], form == "fast"
    if form == "fast":
        cost, step = estimate(config, workload, TrainingSetup(precision)), trainer_step(config, precision)
        for rows in (1, workload.batch_size, workload.batch_size):
            step(random_batch(config, workload, rows))
    else:
        cost = estimate(config, workload, TrainingSetup(precision, fused=False, loss="fused"))
        unfused = unfused_step(config, workload, precision, "cuda")
        for _ in range(3):
            unfused()
    torch.cuda.synchronize()
    measured, estimated = torch.cuda.max_memory_allocated(), cost.peak_bytes(hardware, cuda_graphs=cuda_graphs)
    if form == "plain":  # gradients are freed before the forward pass, so none exist when the loss is computed
        estimated -= cost.gradient_bytes
    return {
        "case": f"peak memory in {precision}, {form} form: {name}",
        "seen_bytes": measured,
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "estimated_bytes": estimated,
        "estimated_parts": {
            "lasting": cost.model_state_bytes,
            "activations": cost.activation_bytes,
            "loss": cost.temporary_bytes,
            "recording": cost.graph_capture_bytes(hardware, cuda_graphs=cuda_graphs),
            "workspaces": workspace_bytes(hardware, cuda_graphs=cuda_graphs),
        },
        "ratio": estimated / measured,
        "passed": 0.9 < estimated / measured < 1.1,
    }


def measure_workspaces() -> dict[str, Any]:
    """Workspaces that cuBLAS holds after matmuls, forward and backward, on two streams and in a graph capture."""
    weight = torch.randn(64, 64, device="cuda", requires_grad=True)

    def matmuls() -> None:
        (weight @ weight).sum().backward()

    matmuls()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        matmuls()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        matmuls()
    graph.replay()
    torch.cuda.synchronize()
    measured, estimated = torch.cuda.memory_allocated(), workspace_bytes(HARDWARE["h200"], cuda_graphs=True)
    return {
        "case": "set aside after products on the streams of recording",
        "seen_bytes": measured,
        "estimated_bytes": estimated,
        "ratio": estimated / measured,
        "passed": 0.9 < estimated / measured < 1.1,
    }


def run_in_subprocess(*arguments: str) -> dict[str, Any]:
    """The case that this script prints when run with these arguments in a fresh process."""
    process = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    if process.returncode:
        return {"case": " ".join(arguments), "failed": process.stderr[-500:], "passed": False}
    case: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return case


def benchmark_gpu_memory() -> int:
    cases = [
        log(run_in_subprocess("--peak", name, "--precision", precision, "--form", form))
        for name, precision, form in MEMORY_CASES
    ]
    cases.append(log(run_in_subprocess("--workspaces")))
    print(f"Results written to {write_results('cost-gpu', cases)}")
    return 0 if all(case["passed"] for case in cases) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Training time and memory against the estimates of regard.cost.")
    parser.add_argument("--gpu", action="store_true", help="measure memory on a CUDA device")
    parser.add_argument("--peak", choices=list(memory_models()), help="only the peak memory of this model")
    parser.add_argument("--workspaces", action="store_true", help="only the cuBLAS workspaces that capturing allocates")
    parser.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16", help="precision for --peak")
    parser.add_argument(
        "--form",
        choices=("plain", "fast"),
        default="fast",
        help="steps for --peak: fast (fused kernels and CUDA graphs) or plain (PyTorch's kernels)",
    )
    parser.add_argument("--repeats", type=int, default=7, help="timed steps per model on the CPU (default: 7)")
    args = parser.parse_args()
    if (args.gpu or args.peak or args.workspaces) and not torch.cuda.is_available():
        parser.error("memory is measured on a GPU, and none was found")
    if args.peak or args.workspaces:
        log(measure_peak(args.peak, args.precision, args.form) if args.peak else measure_workspaces())
        return 0
    if args.gpu:
        return benchmark_gpu_memory()
    torch.set_num_threads(1)  # with two, other load on the machine would distort the times
    print(f"Results written to {write_results('cost-cpu', time_by_size(args.repeats))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
