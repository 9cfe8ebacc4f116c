"""How training grows with length, width and depth on a CPU; how much memory it takes on a GPU, beside the estimate.

`python benchmarks/cost.py` times whole steps (forward, loss, backward, Adam) of small language models with as many
tokens a batch whatever the size, so that time and computed FLOPs of a token can be laid side by side. All sizes are
timed in turn. It writes results/cost-cpu.json in a few minutes.

`python benchmarks/cost.py --gpu` measures peak memory of several models on a CUDA device, each in a process of its own
(what one leaves behind must not count for the next). Most take the steps that the training loop takes: the fast form,
recorded and replayed. A batch of one row comes first, so that the optimiser has its memory and there are gradients to
keep aside when the large one is recorded, as in a run with batches of many shapes. Some take plain steps. Also: what
products on the streams of recording leave set aside. It writes results/cost-gpu.json in about a minute.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from common import say, time_in_turn, write_results
from torch import nn

from regard.attention import HeadsConfig
from regard.cost import HARDWARE, Precision, Work, estimate, workspace_bytes
from regard.cost.memory import Form
from regard.data.batch import Batch
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
from regard.train import OptimiserConfig, word_loss
from regard.train.gradient import CapturedGradients, for_steps, in_precision
from regard.train.loss import Loss
from regard.train.mover import mover_of

TOKENS = 2048
LENGTH, WIDTH, LAYERS, VOCABULARY = 64, 128, 4, 1000
SIZES: list[dict[str, int]] = [
    {},
    *({"length": size} for size in (32, 128, 512, 2048)),
    *({"width": size} for size in (64, 256, 512)),
    *({"layers": size} for size in (1, 2, 8, 16)),
]
"""The model all others are compared with, then what is changed of it."""


def language_model(width: int, layers: int, vocabulary: int = VOCABULARY, dropout: float = 0.1) -> LanguageModelConfig:
    stack = StackConfig(
        layers=layers,
        attention=HeadsConfig(heads=max(1, width // 32)),
        feed_forward=FeedForwardConfig(hidden=4 * width),
        dropout=dropout,
    )
    return LanguageModelConfig(vocabulary=vocabulary, width=width, decoder=stack)


def training_step(config: ModelConfig, work: Work, precision: str, device: str) -> Callable[[], None]:
    model = config.build().to(device).train()
    optimiser = OptimiserConfig().build(model)
    forward = in_precision(model, precision)
    target = torch.randint(3, config.vocabulary, (work.rows, work.target), device=device)
    source = torch.randint(3, config.vocabulary, (work.rows, work.source or 1), device=device)
    ids = (source, target) if isinstance(config, EncoderDecoderConfig) else (target,)

    def step() -> None:
        word_loss(forward(*ids), target, None, 0.1).mean.backward()
        optimiser.step(1e-4)
        optimiser.forget_gradients()

    return step


def growth(repeats: int) -> list[dict[str, Any]]:
    """Every size, all in turn, so that a busy neighbour hits all alike; then each beside the first, round by round."""
    steps, costs = [], []
    for size in SIZES:
        given = {"length": LENGTH, "width": WIDTH, "layers": LAYERS, **size}
        config = language_model(given["width"], given["layers"])
        work = Work(TOKENS // given["length"], given["length"])
        steps.append(training_step(config, work, "fp32", "cpu"))
        costs.append(estimate(config, work, precision="fp32", device="cpu"))
    seconds = time_in_turn(steps, repeats, warm=1)
    cases = []
    for size, cost, taken in zip(SIZES, costs, seconds, strict=True):
        middle = statistics.median(taken)
        case = {
            "case": next((f"{name} {number}" for name, number in size.items()), "the model itself"),
            "training_flops_a_token": 3 * cost.flops_per_token[1],
            "attention_share": cost.attention_share,
            "flops_beside": cost.flops_per_step / costs[0].flops_per_step,
            "time_beside": statistics.median(one / base for one, base in zip(taken, seconds[0], strict=True)),
            "microseconds_a_token": 1e6 * middle / TOKENS,
            "fastest_microseconds_a_token": 1e6 * min(taken) / TOKENS,
            "gflops_a_second": cost.flops_per_step / middle / 1e9,
            "repeats": repeats,
        }
        cases.append(say(case))
    return cases


def memory_models() -> dict[str, tuple[ModelConfig, Work]]:
    grouped = StackConfig(
        layers=8,
        attention=HeadsConfig(heads=16, key_heads=4),
        feed_forward=FeedForwardConfig(hidden=2816, activation="swiglu"),
        dropout=0.1,
    )
    return {
        "base, 768 × 32": (transformer_base(32_768), Work(768, 32, 32)),
        "base, 96 × 256": (transformer_base(32_768), Work(96, 256, 256)),
        "big, 8 × 32": (transformer_big(32_768), Work(8, 32, 32)),
        "few words, 1024 × 64": (EncoderDecoderConfig(vocabulary=300, width=256), Work(1024, 64, 64)),
        "GPT-2, 32 × 1024": (language_model(768, 12, 50_304), Work(32, 1024)),
        "grouped and gated, 16 × 512": (
            LanguageModelConfig(vocabulary=16_000, width=1024, decoder=grouped, tie=False),
            Work(16, 512),
        ),
    }


MEMORY_CASES: list[tuple[str, Precision, Form]] = [
    ("base, 768 × 32", "bf16", "fast"),
    ("base, 768 × 32", "fp32", "fast"),
    ("base, 96 × 256", "bf16", "fast"),
    ("big, 8 × 32", "bf16", "fast"),
    ("few words, 1024 × 64", "bf16", "fast"),
    ("GPT-2, 32 × 1024", "bf16", "fast"),
    ("grouped and gated, 16 × 512", "bf16", "fast"),
    ("base, 768 × 32", "bf16", "plain"),
]
"""Most held when words are scored, by attention of both kinds, when all gradients are there (a large model with a small
batch), when the way back begins (few words), and where the kernels do not know the feed-forward."""


class Likely:
    """The task of predicting the words of a batch."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def loss(self, forward: Any, batch: Batch) -> Loss:
        ids = (batch.source, batch.target) if isinstance(self.model, EncoderDecoder) else (batch.target,)
        return word_loss(forward(*ids), batch.target, None, 0.1, overwrite=True)


def random_batch(config: ModelConfig, work: Work, rows: int) -> Batch:
    ids = [
        torch.randint(3, config.vocabulary, (rows, length or 1), device="cuda") for length in (work.source, work.target)
    ]
    lengths = [torch.full((rows,), part.shape[1], device="cuda") for part in ids]
    counts = (ids[0].numel(), ids[1].numel())
    return Batch((ids[0], ids[1]), (lengths[0], lengths[1]), torch.arange(rows, device="cuda"), counts, 0, 0)


def loop_step(config: ModelConfig, precision: Precision) -> Callable[[Batch], None]:
    """A step as the loop takes it on one GPU."""
    model = config.build().to("cuda").train()
    optimiser = OptimiserConfig().build(model)
    forward = for_steps(model, precision)
    gradients = CapturedGradients[Batch](Likely(model), precision, forward, mover_of(optimiser, forward))  # type: ignore[arg-type]

    def step(batch: Batch) -> None:
        gradients.add(batch, torch.full((), 1.0 / batch.count, device="cuda"), only=True)
        gradients.move(optimiser, 1e-4, 1.0)

    return step


def peak(name: str, precision: Precision, form: Form) -> dict[str, Any]:
    """Some steps in this process, at their peak."""
    config, work = memory_models()[name]
    machine, captured = HARDWARE["h200"], form == "fast"
    if form == "fast":
        cost, step = estimate(config, work, precision=precision), loop_step(config, precision)
        for rows in (1, work.rows, work.rows):
            step(random_batch(config, work, rows))
    else:
        cost = estimate(config, work, precision=precision, form="plain", loss="kernel")
        plain = training_step(config, work, precision, "cuda")
        for _ in range(3):
            plain()
    torch.cuda.synchronize()
    seen, said = torch.cuda.max_memory_allocated(), cost.peak(machine, captured=captured)
    if form == "plain":  # gradients are let go of before forward, so they are not there when the loss is taken
        said -= cost.gradients_bytes
    return {
        "case": f"peak memory in {precision}, {form} form: {name}",
        "seen_bytes": seen,
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "estimated_bytes": said,
        "estimated_parts": {
            "lasting": cost.lasting_bytes,
            "activations": cost.activations_bytes,
            "loss": cost.loss_bytes,
            "recording": cost.recording_bytes(machine, captured=captured),
            "workspaces": workspace_bytes(machine, captured=captured),
        },
        "ratio": said / seen,
        "passed": 0.9 < said / seen < 1.1,
    }


def set_aside() -> dict[str, Any]:
    """What is held after products, forward and backward, on the main stream, on a second and while recording."""
    weight = torch.randn(64, 64, device="cuda", requires_grad=True)

    def products() -> None:
        (weight @ weight).sum().backward()

    products()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        products()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        products()
    graph.replay()
    torch.cuda.synchronize()
    seen, said = torch.cuda.memory_allocated(), workspace_bytes(HARDWARE["h200"], captured=True)
    return {
        "case": "set aside after products on the streams of recording",
        "seen_bytes": seen,
        "estimated_bytes": said,
        "ratio": said / seen,
        "passed": 0.9 < said / seen < 1.1,
    }


def in_a_process(*words: str) -> dict[str, Any]:
    """What this file prints when called with these words: a process of its own, with nothing left over."""
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"case": " ".join(words), "failed": done.stderr[-500:], "passed": False}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def on_gpu() -> int:
    if not torch.cuda.is_available():
        print("There is no GPU here; leave --gpu out.", file=sys.stderr)
        return 2
    cases = [
        say(in_a_process("--peak", name, "--precision", precision, "--form", form))
        for name, precision, form in MEMORY_CASES
    ]
    cases.append(say(in_a_process("--set-aside")))
    print(f"written: {write_results('cost-gpu', cases)}")
    return 0 if all(case["passed"] for case in cases) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Time and memory of training, beside what is computed.")
    parser.add_argument("--gpu", action="store_true", help="measure memory on a CUDA device")
    parser.add_argument("--peak", choices=list(memory_models()), help="one model, in this process")
    parser.add_argument("--set-aside", action="store_true", help="what streams leave behind, in this process")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--form", choices=("plain", "fast"), default="fast", help="how steps are computed")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    if given.peak or given.set_aside:
        say(peak(given.peak, given.precision, given.form) if given.peak else set_aside())
        return 0
    if given.gpu:
        return on_gpu()
    torch.set_num_threads(1)  # a busy neighbour halves what two threads do
    print(f"written: {write_results('cost-cpu', growth(given.repeats))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
