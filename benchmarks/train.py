"""Training speed against torch.nn.Transformer and Hugging Face's Marian.

    python benchmarks/train.py             # on a CPU; --quick takes less than a minute
    python benchmarks/train.py --gpu       # on a GPU; see train_gpu.py

On a CPU: a small encoder–decoder (3 + 3 layers, width 256, 4 heads, hidden 1,024, vocabulary of about 8,000) in float32
on two threads, on batches of Multi30k if REGARD_DATA has it, else of the sentences that ship with regard. All models
get the same batches, dropout, label smoothing, gradient clipping and Adam. Ours runs on fused kernels, in the same step
as the trainer's. Every round runs some steps of each model; the ratio is the median over rounds of a peer's time over
ours. Only target tokens that are not padding count. Utilization is relative to the FLOP/s of large matmuls, for the
FLOPs without padding. Memory is the peak of building the model and training some steps, in a separate process for each
(Linux only, and not with --quick).
"""

import argparse
import gc
import itertools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import (
    log,
    median_ratio,
    process_memory_mb,
    time_alternating,
    training_flops_per_token,
    write_results,
)
from benchmarks.quality.translation import TorchTransformer
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batching.token_batches import Batch
from regard.errors import UserError
from regard.fused.training import fuse_for_training
from regard.model import EncoderDecoder, EncoderDecoderConfig
from regard.task.translation.prepare import prepare_pairs
from regard.task.translation.recipe import TranslationRecipe, read_translation_recipe
from regard.task.translation.task import TranslationTask
from regard.train import TrainConfig
from regard.train.loss import cross_entropy

OVERRIDES = [
    "model.width=256",
    "model.encoder.layers=3",
    "model.decoder.layers=3",
    *(f"model.{side}.attention.heads=4" for side in ("encoder", "decoder")),
    *(f"model.{side}.feed_forward.hidden=1024" for side in ("encoder", "decoder")),
    "tokenizer.vocab_size=8000",
    "train.batch_tokens=2048",
    "train.precision=float32",
    "train.loss.r_drop=0",
]
OURS, TORCH, MARIAN = "ours", "torch.nn.Transformer", "Hugging Face Marian"
_RESET_PEAK = Path("/proc/self/clear_refs")
"""Writing 5 to this file resets the peak resident memory of the process (Linux)."""
_MEMORY_STEPS = 60
"""Steps over which memory is measured: enough to show growth from step to step."""
Step = Callable[[Batch], None]


def find_recipe() -> tuple[TranslationRecipe, str]:
    """The recipe and the name of its data: Multi30k if available, else the sentences that ship with regard."""
    try:
        recipe = read_translation_recipe("multi30k-en-de", OVERRIDES)
        with tempfile.TemporaryDirectory() as folder:
            prepare_pairs(recipe, Path(folder), lambda message: None, None)
        return recipe, "Multi30k"
    except UserError:
        return read_translation_recipe("quick", OVERRIDES), "the sentences that ship"


class Marian(nn.Module):
    """Hugging Face's Marian in the same sizes as our model."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        from transformers import MarianConfig, MarianMTModel

        super().__init__()
        stack = config.encoder
        self.model = MarianMTModel(
            MarianConfig(
                vocab_size=config.vocab_size,
                d_model=config.width,
                encoder_layers=config.encoder.layers,
                decoder_layers=config.decoder.layers,
                encoder_attention_heads=stack.attention.heads,
                decoder_attention_heads=stack.attention.heads,
                encoder_ffn_dim=stack.feed_forward.hidden,
                decoder_ffn_dim=stack.feed_forward.hidden,
                dropout=stack.dropout,
                attention_dropout=stack.attention.dropout,
                activation_dropout=stack.feed_forward.dropout,
                max_position_embeddings=512,
                scale_embedding=True,
                pad_token_id=0,
                eos_token_id=1,
                decoder_start_token_id=0,
                forced_eos_token_id=None,
            )
        )

    def forward(self, source: Tensor, target: Tensor, *, source_lengths: Tensor) -> Tensor:
        mask = torch.arange(source.shape[1], device=source.device) < source_lengths[:, None]
        logits: Tensor = self.model(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target).logits
        return logits


def make_peer_step(model: nn.Module, bos: int, label_smoothing: float) -> Step:
    """A training step as a careful user of PyTorch would write it."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))
    model.train()

    def step(batch: Batch) -> None:
        decoder_input = torch.cat((torch.full_like(batch.target[:, :1], bos), batch.target[:, :-1]), dim=1)
        logits = model(batch.source, decoder_input, source_lengths=batch.source_lengths)
        is_token = torch.arange(batch.target.shape[1]) < batch.target_lengths[:, None]
        labels = batch.target.masked_fill(~is_token, -100)
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=label_smoothing)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def make_our_step(model: EncoderDecoder, config: TrainConfig, bos: int) -> Step:
    """The step of `Trainer`: forward, loss, backward, gradient clipping, optimizer step."""
    optimizer = config.optimizer.build(model)
    forward = fuse_for_training(model.train(), fused_loss=True)
    steps = 0

    def step(batch: Batch) -> None:
        nonlocal steps
        decoder_input = torch.cat((torch.full_like(batch.target[:, :1], bos), batch.target[:, :-1]), dim=1)
        lengths = {"source_lengths": batch.source_lengths, "target_lengths": batch.target_lengths}
        logits = forward(batch.source, decoder_input, **lengths)
        loss = cross_entropy(logits, batch.target, batch.target_lengths, config.loss.label_smoothing)
        (loss.total / batch.count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        steps += 1
        optimizer.step(config.schedule.at(steps))
        optimizer.zero_grad()

    return step


@dataclass(frozen=True)
class Workload:
    """The model sizes and the batches that all models train on."""

    recipe: TranslationRecipe
    dataset: str
    config: EncoderDecoderConfig
    batches: list[Batch]

    @property
    def tokens(self) -> int:
        """Target tokens, without padding."""
        return sum(batch.count for batch in self.batches)

    def step_makers(self, config: EncoderDecoderConfig) -> dict[str, Callable[[], Step]]:
        """Functions that build a model of these sizes and its training step: ours first, then the peers'."""
        bos, train = config.special_tokens.bos, self.recipe.train
        assert bos is not None
        return {
            OURS: lambda: make_our_step(config.build(), train, bos),
            TORCH: lambda: make_peer_step(TorchTransformer(config), bos, train.loss.label_smoothing),
            MARIAN: lambda: make_peer_step(Marian(config), bos, train.loss.label_smoothing),
        }

    def over_batches(self, step: Step) -> Callable[[], None]:
        """A function that takes the step on every batch."""

        def run() -> None:
            for batch in self.batches:
                step(batch)

        return run


def make_workload(steps: int) -> Workload:
    torch.set_num_threads(2)
    torch.manual_seed(1)
    recipe, dataset = find_recipe()
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare_pairs(recipe, Path(folder), lambda message: None, None)
        config = recipe.make_encoder_decoder_config(prepared.target.vocab_size)
        task = TranslationTask(recipe, prepared, config.build())
        return Workload(recipe, dataset, config, list(itertools.islice(task.batches.epochs(), steps)))


def benchmark_cpu(quick: bool) -> list[dict[str, Any]]:
    work, rounds = make_workload(3 if quick else 12), 3 if quick else 7
    makers = work.step_makers(work.config)
    with_memory = _RESET_PEAK.exists() and not quick
    megabytes = {name: peak_memory_in_subprocess(name) if with_memory else None for name in makers}
    samples = time_alternating([work.over_batches(make()) for make in makers.values()], rounds, warmup=1)
    seconds = dict(zip(makers, samples, strict=True))
    speeds = {name: work.tokens / statistics.median(times) for name, times in seconds.items()}
    best, bound = max((name for name in makers if name != OURS), key=speeds.__getitem__), max_tokens_per_second(work)
    return [
        log(
            {
                "case": f"small encoder–decoder, float32, 2 threads, {work.dataset}, {name}",
                "ours": speeds[OURS],
                "peer": speeds[name],
                "ratio": median_ratio(seconds[OURS], seconds[name]),
                "best_peer": name == best,
                "unit": "target tokens a second",
                "floor": bound,
                "share_of_peak": speeds[OURS] / bound,
                "peer_share_of_peak": speeds[name] / bound,
                "megabytes": megabytes[OURS],
                "peer_megabytes": megabytes[name],
                "rounds": rounds,
            }
        )
        for name in makers
        if name != OURS
    ]


def max_tokens_per_second(work: Workload) -> float:
    """The upper bound in target tokens per second: matmul FLOPs alone, at the FLOP/s of large matmuls here."""
    a = torch.randn(1024, 1024)
    (seconds,) = time_alternating([lambda: a @ a], 20)
    flop_rate = 2 * 1024**3 / min(seconds)
    rows = sum(int((batch.items >= 0).sum()) for batch in work.batches)
    source, target = (sum(batch.tokens[side] for batch in work.batches) for side in (0, -1))  # without padding
    per_source, per_target = training_flops_per_token(work.config, round(target / rows), round(source / rows))
    return work.tokens / ((per_source * source + per_target * target) / flop_rate)


def peak_memory_in_subprocess(name: str) -> float:
    """`peak_memory` in a fresh process."""
    process = subprocess.run([sys.executable, __file__, "--peak", name], stdout=subprocess.PIPE, text=True, check=True)
    return float(process.stdout.splitlines()[-1])


def peak_memory(name: str) -> float:
    """Peak memory in MB of building a model and training some steps, beyond that of a process with all code loaded."""
    work = make_workload(_MEMORY_STEPS)
    narrow = work.config.model_copy(update={"width": 32})
    work.step_makers(narrow)[name]()(work.batches[0])  # imports and compiles everything
    gc.collect()
    _RESET_PEAK.write_text("5", encoding="utf-8")
    before = process_memory_mb()["VmRSS"]
    work.over_batches(work.step_makers(work.config)[name]())()
    return process_memory_mb()["VmHWM"] - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds; no results are written")
    parser.add_argument("--gpu", action="store_true", help="run the GPU benchmark instead")
    parser.add_argument(
        "--part",
        dest="parts",
        action="append",
        default=[],
        choices=("start", "pairs", "text", "real"),
        help="with --gpu: only these cases, written to a separate file (repeatable)",
    )
    parser.add_argument("--peak", choices=(OURS, TORCH, MARIAN), help="only the peak memory of this model, on the CPU")
    args = parser.parse_args()
    if args.peak:
        print(peak_memory(args.peak))
        return 0
    if args.gpu:
        if not torch.cuda.is_available():
            parser.error("--gpu needs a GPU, and none was found; leave it out to measure on the CPU")
        from benchmarks.train_gpu import benchmark_gpu

        name = "-".join(["train-gpu", *args.parts])
        cases = benchmark_gpu(args.quick, args.parts)
    else:
        name, cases = "train-cpu", benchmark_cpu(args.quick)
    if not args.quick:
        print(f"Results written to {write_results(name, cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
