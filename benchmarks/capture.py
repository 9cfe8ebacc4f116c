"""Replaying recorded passes on a GPU: the same training, and how much faster (`python benchmarks/capture.py`).

A small model is trained for some steps twice from the same seed, once with every pass recorded and replayed as a CUDA
graph, once launched kernel by kernel. The losses of both are compared step by step, and the time of a step is taken
after all shapes have been met. Then: peak memory beside its estimate, and a device too small for its batches.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import say, write_results

from regard.cost import Precision, Work, estimate
from regard.model import TokensConfig, transformer_base
from regard.task.prepare import prepare
from regard.task.reading import read_translation
from regard.task.translation import TranslationTask
from regard.train.gradient import in_precision
from regard.train.loop import Loop, Silent
from regard.train.loss import word_loss
from regard.train.optimiser import OptimiserConfig

STEPS = 300
TIMED = 100


def train(changes: list[str], capture: bool) -> tuple[list[float], float, float]:
    """The loss of every step, and the seconds of all steps and of one at the end."""
    recipe = read_translation("multi30k-en-de", [*changes, f"train.capture={str(capture).lower()}"])
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(recipe, Path(folder), lambda sentence: None, None)
        torch.manual_seed(recipe.train.seed)
        model = recipe.encoder_decoder_settings(prepared.target.vocabulary).build()
        task = TranslationTask(recipe, prepared, model)
        loop = Loop(task, recipe.train, Path(folder), device="cuda")
        losses = []
        torch.cuda.synchronize()
        begin = late = time.perf_counter()
        for step, loss in enumerate(loop.steps(STEPS), start=1):
            losses.append(loss.total / loss.count)
            if step == STEPS - TIMED:
                torch.cuda.synchronize()
                late = time.perf_counter()
        torch.cuda.synchronize()
        end = time.perf_counter()
    return torch.stack(losses).tolist(), end - begin, (end - late) / TIMED


def compare(name: str, changes: list[str]) -> dict[str, Any]:
    ours, all_ours, step_ours = train(changes, capture=True)
    plain, all_plain, step_plain = train(changes, capture=False)
    difference = max(abs(one - other) for one, other in zip(ours[:50], plain[:50], strict=True))
    return {
        "case": name,
        "captured_step_ms": 1e3 * step_ours,
        "plain_step_ms": 1e3 * step_plain,
        "ratio": step_plain / step_ours,
        "captured_seconds_of_all": all_ours,
        "plain_seconds_of_all": all_plain,
        "largest_difference_of_50_losses": difference,
        "passed": difference < 0.02,
    }


def memory(rows: int, length: int, precision: Precision) -> dict[str, Any]:
    """What steps of the paper's base model take at their peak, beside the estimate made without them."""
    config = transformer_base(32_768).model_copy(update={"tokens": TokensConfig(padding=0, start=1, end=2)})
    torch.cuda.empty_cache()
    model = config.build().to("cuda").train()
    optimiser = OptimiserConfig().build(model)
    forward = in_precision(model, precision)
    ids = torch.randint(3, 32_768, (rows, length), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        word_loss(forward(ids, ids), ids, None, 0.1).mean.backward()
        optimiser.step(1e-4)
        optimiser.forget_gradients()
    seen = torch.cuda.max_memory_allocated()
    said = estimate(config, Work(rows, length, length), precision=precision, form="plain", loss="kernel").memory
    return {
        "case": f"peak memory of the base model in {precision}, {rows} × {length}",
        "seen_bytes": seen,
        "estimated_bytes": said,
        "passed": 0.8 < said / seen < 1.25,
    }


def out_of_memory() -> dict[str, Any]:
    """A device too small for the batches: training goes on, in parts."""
    recipe = read_translation("multi30k-en-de", ["train.tokens=65536", "train.steps=4", "train.schedule.warmup=1"])
    said: list[str] = []

    class Listener(Silent):
        def say(self, sentence: str) -> None:
            said.append(sentence)

    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.03)
    try:
        with tempfile.TemporaryDirectory() as folder:
            prepared = prepare(recipe, Path(folder), said.append, None)
            torch.manual_seed(1)
            model = recipe.encoder_decoder_settings(prepared.target.vocabulary).build()
            task = TranslationTask(recipe, prepared, model)
            loop = Loop(task, recipe.train, Path(folder), device="cuda", listener=Listener())
            losses = [float(loss.mean) for loss in loop.steps(4)]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    parts = loop.progress.parts
    return {"case": "out of memory", "parts": parts, "losses": losses, "said": said, "passed": parts > 1}


def main() -> int:
    if not torch.cuda.is_available():
        print("There is no GPU here, and nothing to record on a CPU.", file=sys.stderr)
        return 2
    cases = [
        say(compare("float32", ["train.precision=fp32", "train.loss.consistency=0.0"])),
        say(compare("bf16", ["train.loss.consistency=0.0"])),
        say(compare("bf16, two passes (R-Drop)", [])),
        say(memory(768, 32, "bf16")),
        say(memory(768, 32, "fp32")),
        say(out_of_memory()),
    ]
    print(f"written: {write_results('capture-gpu', cases)}")
    return 0 if all(case["passed"] for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main())
