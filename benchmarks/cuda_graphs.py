"""Training with and without CUDA graphs on a GPU: equal losses, and the speedup.

    python benchmarks/cuda_graphs.py

The same training run is done twice from one seed: once with every forward and backward pass captured and replayed as a
CUDA graph, once with kernels launched one by one. The losses are compared step by step, and steps are timed once every
batch shape has been captured. Two further checks: peak memory against its estimate, and a run whose batches do not fit
into the device's memory.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import log, write_results

from regard.cost import Precision, TrainingSetup, Workload, estimate
from regard.model import SpecialTokensConfig, transformer_base
from regard.task.translation.prepare import prepare_pairs
from regard.task.translation.recipe import read_translation_recipe
from regard.task.translation.task import TranslationTask
from regard.train.callback import Callback
from regard.train.loss import cross_entropy
from regard.train.optimizer import OptimizerConfig
from regard.train.step import forward_in_precision
from regard.train.trainer import Trainer

STEPS = 300
TIMED_STEPS = 100


def train(overrides: list[str], cuda_graphs: bool) -> tuple[list[float], float, float]:
    """The loss of every step, the seconds of the whole run, and the seconds per step at its end."""
    recipe = read_translation_recipe("multi30k-en-de", [*overrides, f"train.cuda_graphs={str(cuda_graphs).lower()}"])
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare_pairs(recipe, Path(folder), lambda message: None, None)
        torch.manual_seed(recipe.train.seed)
        model = recipe.make_encoder_decoder_config(prepared.target.vocab_size).build()
        task = TranslationTask(recipe, prepared, model)
        trainer = Trainer(task, recipe.train, Path(folder), device="cuda")
        losses = []
        torch.cuda.synchronize()
        start = timed_start = time.perf_counter()
        for step, loss in enumerate(trainer.steps(STEPS), start=1):
            losses.append(loss.total / loss.count)
            if step == STEPS - TIMED_STEPS:
                torch.cuda.synchronize()
                timed_start = time.perf_counter()
        torch.cuda.synchronize()
        end = time.perf_counter()
    return torch.stack(losses).tolist(), end - start, (end - timed_start) / TIMED_STEPS


def compare_with_eager(name: str, overrides: list[str]) -> dict[str, Any]:
    """Training with CUDA graphs against the same steps launched kernel by kernel."""
    graph_losses, graph_seconds, graph_step = train(overrides, cuda_graphs=True)
    eager_losses, eager_seconds, eager_step = train(overrides, cuda_graphs=False)
    difference = max(abs(graph - eager) for graph, eager in zip(graph_losses[:50], eager_losses[:50], strict=True))
    return {
        "case": name,
        "captured_step_ms": 1e3 * graph_step,
        "plain_step_ms": 1e3 * eager_step,
        "ratio": eager_step / graph_step,
        "captured_seconds_of_all": graph_seconds,
        "plain_seconds_of_all": eager_seconds,
        "largest_difference_of_50_losses": difference,
        "passed": difference < 0.02,
    }


def peak_memory(rows: int, length: int, precision: Precision) -> dict[str, Any]:
    """Peak memory of the base model's unfused training steps, against the estimate of `regard.cost`."""
    config = transformer_base(32_768).model_copy(update={"special_tokens": SpecialTokensConfig(pad=0, bos=1, eos=2)})
    torch.cuda.empty_cache()
    model = config.build().to("cuda").train()
    optimizer = OptimizerConfig().build(model)
    forward = forward_in_precision(model, precision)
    ids = torch.randint(3, 32_768, (rows, length), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        cross_entropy(forward(ids, ids), ids, None, 0.1).mean.backward()
        optimizer.step(1e-4)
        optimizer.zero_grad()
    measured = torch.cuda.max_memory_allocated()
    estimated = estimate(
        config, Workload(rows, length, length), TrainingSetup(precision, fused=False, loss="fused")
    ).tensor_bytes
    return {
        "case": f"peak memory of the base model in {precision}, {rows} × {length}",
        "seen_bytes": measured,
        "estimated_bytes": estimated,
        "passed": 0.8 < estimated / measured < 1.25,
    }


def out_of_memory() -> dict[str, Any]:
    """Batches that do not fit into the device's memory: the trainer splits them and goes on."""
    recipe = read_translation_recipe(
        "multi30k-en-de", ["train.batch_tokens=65536", "train.steps=4", "train.schedule.warmup_steps=1"]
    )
    messages: list[str] = []

    class MessageRecorder(Callback):
        def log(self, message: str) -> None:
            messages.append(message)

    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.03)
    try:
        with tempfile.TemporaryDirectory() as folder:
            prepared = prepare_pairs(recipe, Path(folder), messages.append, None)
            torch.manual_seed(1)
            model = recipe.make_encoder_decoder_config(prepared.target.vocab_size).build()
            task = TranslationTask(recipe, prepared, model)
            trainer = Trainer(task, recipe.train, Path(folder), device="cuda", callback=MessageRecorder())
            losses = [float(loss.mean) for loss in trainer.steps(4)]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    splits = trainer.splitter.splits
    return {"case": "out of memory", "parts": splits, "losses": losses, "said": messages, "passed": splits > 1}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("CUDA graphs need a GPU, and none was found")
    cases = [
        log(compare_with_eager("float32", ["train.precision=float32", "train.loss.r_drop=0.0"])),
        log(compare_with_eager("bf16", ["train.loss.r_drop=0.0"])),
        log(compare_with_eager("bf16, two passes (R-Drop)", [])),
        log(peak_memory(768, 32, "bfloat16")),
        log(peak_memory(768, 32, "float32")),
        log(out_of_memory()),
    ]
    print(f"Results written to {write_results('capture-gpu', cases)}")
    return 0 if all(case["passed"] for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main())
