"""End-to-end training on real sentences against Hugging Face's Trainer; `train.py --gpu` runs it last.

    python benchmarks/train_end_to_end.py            # on a GPU; --quick is shorter
    python benchmarks/train_end_to_end.py --tiny     # toy sizes on a CPU, as a smoke test

The paper's base model (6 + 6 layers, width 512, hidden 2,048, dropout 0.1) in bf16 on pairs of Europarl and Multi30k,
with a shared vocabulary. Ours is the trainer as `regard train` runs it: reading, collating, copying to the device, the
step, logging. The peer is MarianMTModel of the same size in a Seq2SeqTrainer with its own collator, four persistent
workers, fused AdamW, and about as many target tokens per step. It is measured with and without batches grouped by
length, and the faster one counts. Two settings are in its favor: no progress bar, and no cuDNN attention, which would
build a kernel for every new shape. Speed counts target tokens without padding, over steps after every batch shape has
occurred; the device is synchronized at both ends. The start-up time before that is reported separately, in seconds.

Two figures show the cost of data loading in our trainer. `share_waiting_for_data` is the fraction of time that the host
waits for the next batch, whether or not the device is busy. For `share_lost_to_data`, the last steps are repeated with
their batches already on the device: the fraction of time that collating and copying really cost.

The Trainer needs the package accelerate; without it only ours is measured.
"""

import argparse
import contextlib
import dataclasses
import gc
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import log, model_flops_utilization, training_flops_per_token, write_results

from regard.cli.training_display import TrainingDisplay
from regard.data.batching.token_batches import Batch
from regard.data.text.corpus import Corpus, CorpusConfig
from regard.data.tokenizers.tokenizer import SPECIAL_NAMES
from regard.model import EncoderDecoderConfig
from regard.task.translation.prepare import PreparedPairs, prepare_pairs
from regard.task.translation.recipe import TranslationRecipe, read_translation_recipe
from regard.task.translation.task import TranslationTask
from regard.train.loss import Loss
from regard.train.metrics import MetricsWriter, NullMetricsWriter
from regard.train.runtime import without_cudnn_attention
from regard.train.trainer import Trainer

STACKS = ("encoder", "decoder")


@dataclass(frozen=True)
class Settings:
    """Sizes of data and model, and how long to measure."""

    device: str = "cuda"
    pairs: int = 60_000
    vocab_sizes: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"europarl-en-de": 32_768, "multi30k-en-de": 10_000}
    )
    batch_tokens: int = 24_576
    width: int = 512
    hidden: int = 2048
    layers: int = 6
    heads: int = 8
    log_every: int = 50
    steps: int = 100
    """Timed steps of ours, a multiple of `log_every`."""
    peer_warmup: int = 10
    peer_steps: int = 100
    peer_seconds: float = 4.0
    """Time limit for the timed steps of the peer."""
    workers: int = 4


FULL = Settings()
QUICK = Settings(pairs=20_000, steps=50, peer_warmup=6, peer_steps=40, peer_seconds=2.0)
TINY = Settings(
    device="cpu",
    pairs=1000,
    vocab_sizes={"europarl-en-de": 600, "multi30k-en-de": 600},
    batch_tokens=4096,
    width=32,
    hidden=64,
    layers=1,
    heads=2,
    log_every=5,
    steps=10,
    peer_warmup=2,
    peer_steps=5,
    workers=2,
)


def benchmark_end_to_end(
    quick: bool, peak_flops: float | None = None, settings: Settings | None = None
) -> list[dict[str, Any]]:
    """The cases of both datasets. `peak_flops`: the FLOP/s of large matmuls, if measured."""
    settings = settings or (QUICK if quick else FULL)
    return [
        compare("Europarl", "europarl-en-de", settings, peak_flops),
        compare("Multi30k", "multi30k-en-de", settings, peak_flops),
    ]


def compare(title: str, name: str, settings: Settings, peak_flops: float | None) -> dict[str, Any]:
    """Ours, and the peer with and without grouping by length, on one dataset, each alone on the device."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        start = time.perf_counter()
        recipe = base_recipe(name, folder, settings)
        prepared = prepare_pairs(recipe, folder, lambda message: None, None)
        preparing = time.perf_counter() - start
        ours = train_ours(recipe, prepared, folder, settings)
        case: dict[str, Any] = {
            "case": f"real {title} batches, base encoder–decoder, bf16, HF Marian Trainer",
            "ours": ours["speed"],
            "unit": "target tokens a second, padding not counted",
            "operations_a_token": ours["flops_per_token"],
            "share_of_peak": model_flops_utilization(ours["speed"], ours["flops_per_token"], peak_flops),
            "gigabytes": ours["gigabytes"],
            "reserved_gigabytes": ours["reserved_gigabytes"],
            "share_waiting_for_data": ours["waiting"],
            "share_lost_to_data": ours["lost"],
            "seconds_to_the_first_step": ours["first_step"],
            "seconds_until_all_shapes_were_met": ours["start_up"],
            "seconds_preparing_data": preparing,
            "target_tokens_a_step": ours["tokens_per_step"],
            "shapes": ours["shapes"],
            "padding": ours["padding"],
            "vocabulary": prepared.target.vocab_size,
        }
        if find_spec("accelerate") is None:
            return log(case | {"peer": None, "problem": "accelerate is not installed, and the Trainer needs it"})
        peers = {
            batching: run_peer(
                recipe, prepared, folder, settings, ours["tokens_per_step"], group_by_length=batching == "grouped"
            )
            for batching in ("grouped", "not_grouped")
        }
    best = max(peers, key=lambda batching: peers[batching]["speed"])
    case |= {
        "peer": peers[best]["speed"],
        "peer_share_of_peak": model_flops_utilization(peers[best]["speed"], ours["flops_per_token"], peak_flops),
        "ratio": ours["speed"] / peers[best]["speed"],
        "best_peer": best,
        "peer_gigabytes": peers[best]["gigabytes"],
        "peer_reserved_gigabytes": peers[best]["reserved_gigabytes"],
        "peer_seconds_to_the_first_step": peers[best]["first_step"],
        "peers": peers,
    }
    return log(case)


def base_recipe(name: str, folder: Path, settings: Settings) -> TranslationRecipe:
    """The paper's base model on the first pairs of a recipe's training data, without validation."""
    path = folder / "pairs.jsonl"
    pairs = islice(Corpus("train", read_translation_recipe(name).data.train).read(), settings.pairs)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(pair._asdict(), ensure_ascii=False) + "\n" for pair in pairs)
    overrides = [
        "data.dev_size=0",
        f"tokenizer.vocab_size={settings.vocab_sizes[name]}",
        f"model.width={settings.width}",
        "model.embedding.dropout=0.1",
        f"train.batch_tokens={settings.batch_tokens}",
        f"train.log_every={settings.log_every}",
        "train.validate_every=1000000",
        "train.save_every=1000000",
        f"train.precision={'bfloat16' if settings.device == 'cuda' else 'float32'}",
        "train.loss.r_drop=0.0",
    ]
    for stack in STACKS:
        overrides += [
            f"model.{stack}.layers={settings.layers}",
            f"model.{stack}.norm_position=post",
            f"model.{stack}.dropout=0.1",
            f"model.{stack}.attention.heads={settings.heads}",
            f"model.{stack}.attention.dropout=0.1",
            f"model.{stack}.feed_forward.hidden={settings.hidden}",
            f"model.{stack}.feed_forward.dropout=0.1",
        ]
    return read_translation_recipe(name, overrides, CorpusConfig(path=str(path)))


class MeasuredError(Exception):
    """Ends a training run once everything has been measured."""


@dataclass(frozen=True)
class Snapshot:
    """Time and counts at a step that was logged, with the device synchronized."""

    time: float
    target_tokens: int
    source_tokens: int
    rows: int
    wait_seconds: float


class TimedTrainer(Trainer[Batch]):
    """A trainer that times itself. After the timed steps it repeats the last of them with batches on the device."""

    def start_timing(self, warmup: int, steps: int) -> None:
        self.snapshots: dict[int, Snapshot] = {}
        self.wait_seconds, self.first_step_time, self.repeat_time = 0.0, 0.0, 0.0
        self.source_tokens, self.rows = 0, 0
        self._last_step = warmup + steps
        self._last_batches: list[Batch] = []

    def _take_step(self, stream: Iterator[Batch]) -> Loss:
        repeated = self.state.step - self._last_step
        loss = super()._take_step(iter(self._last_batches[repeated:]) if repeated >= 0 else self._time_loading(stream))
        if not self.first_step_time:
            synchronize(self.device)
            self.first_step_time = time.perf_counter()
        return loss

    def _time_loading(self, stream: Iterator[Batch]) -> Iterator[Batch]:
        while True:
            start = time.perf_counter()
            batch = next(stream)
            self.wait_seconds += time.perf_counter() - start
            self.source_tokens += batch.tokens[0]
            self.rows += int((batch.items >= 0).sum())
            if self.state.step >= self._last_step - self.config.log_every:
                self._last_batches.append(batch)
            yield batch

    def _to_device(self, batch: Any) -> Any:
        return batch if batch.source.device.type == self.device.type else super()._to_device(batch)

    def _log(self, writer: MetricsWriter | NullMetricsWriter) -> None:
        super()._log(writer)
        synchronize(self.device)
        step = self.state.step
        self.snapshots[step] = Snapshot(
            time.perf_counter(), self.state.tokens, self.source_tokens, self.rows, self.wait_seconds
        )
        if step == self._last_step:
            self._last_batches = [batch.to(self.device) for batch in self._last_batches]
            synchronize(self.device)
            self.repeat_time = time.perf_counter()
        elif step > self._last_step:
            raise MeasuredError


def train_ours(recipe: TranslationRecipe, prepared: PreparedPairs, folder: Path, settings: Settings) -> dict[str, Any]:
    """Train as `regard train` does once the data is prepared, for as long as needed to measure it."""
    allocated = reset_memory(settings.device)
    start = time.perf_counter()
    torch.manual_seed(recipe.train.seed)
    task = TranslationTask(recipe, prepared, recipe.make_encoder_decoder_config(prepared.target.vocab_size).build())
    log_every = recipe.train.log_every
    warmup = -(-len(task.batches) // log_every) * log_every  # in an epoch every batch shape occurs
    with TrainingDisplay(recipe.train.steps) as display:
        trainer = TimedTrainer(task, recipe.train, folder, device=settings.device, callback=display)
        trainer.start_timing(warmup, settings.steps)
        with contextlib.suppress(MeasuredError):
            trainer.run()
    end = warmup + settings.steps
    first, before, last, repeated = (
        trainer.snapshots[step] for step in (warmup, end - log_every, end, end + log_every)
    )
    seconds, rows = last.time - first.time, last.rows - first.rows
    target, source = last.target_tokens - first.target_tokens, last.source_tokens - first.source_tokens
    per_source, per_target = training_flops_per_token(task.model.config, round(target / rows), round(source / rows))
    return {
        "speed": target / seconds,
        "flops_per_token": per_target + per_source * source / target,
        "tokens_per_step": target / settings.steps,
        "waiting": (last.wait_seconds - first.wait_seconds) / seconds,
        "lost": 1 - (repeated.time - trainer.repeat_time) / (last.time - before.time),
        "first_step": trainer.first_step_time - start,
        "start_up": first.time - start,
        "shapes": task.batches.stats.shapes,
        "padding": task.batches.stats.padding,
        **peak_memory(settings.device, allocated),
    }


def make_marian(config: EncoderDecoderConfig) -> Any:
    """Hugging Face's Marian in the same sizes as our model."""
    from transformers import MarianConfig, MarianMTModel

    sizes: dict[str, Any] = {}
    for name, stack in zip(STACKS, (config.encoder, config.decoder), strict=True):
        sizes[f"{name}_layers"] = stack.layers
        sizes[f"{name}_attention_heads"] = stack.attention.heads
        sizes[f"{name}_ffn_dim"] = stack.feed_forward.hidden
    special_tokens = config.special_tokens
    return MarianMTModel(
        MarianConfig(
            **sizes,
            vocab_size=config.vocab_size,
            d_model=config.width,
            dropout=config.encoder.dropout,
            attention_dropout=config.encoder.attention.dropout,
            activation_dropout=config.encoder.feed_forward.dropout,
            activation_function="relu",
            max_position_embeddings=512,
            scale_embedding=True,
            pad_token_id=special_tokens.pad,
            bos_token_id=special_tokens.bos,
            eos_token_id=special_tokens.eos,
            decoder_start_token_id=special_tokens.bos,
            forced_eos_token_id=None,
        )
    )


def run_peer(
    recipe: TranslationRecipe,
    prepared: PreparedPairs,
    folder: Path,
    settings: Settings,
    tokens_per_step: float,
    *,
    group_by_length: bool,
) -> dict[str, Any]:
    """Train Marian on the same pairs, accumulating gradients over parts of a batch that does not fit into memory."""
    max_length = recipe.data.max_length
    items = [
        {"input_ids": source.tolist(), "attention_mask": [1] * len(source), "labels": target.tolist()}
        for source, target in prepared.train
        if max(len(source), len(target)) <= max_length
    ]
    rows = max(1, round(tokens_per_step * len(items) / sum(len(item["labels"]) for item in items)))
    accumulation = 1
    while True:
        try:
            return train_peer(recipe, prepared, folder, settings, items, rows, accumulation, group_by_length)
        except torch.OutOfMemoryError:
            accumulation *= 2


def train_peer(
    recipe: TranslationRecipe,
    prepared: PreparedPairs,
    folder: Path,
    settings: Settings,
    items: list[dict[str, list[int]]],
    rows: int,
    accumulation: int,
    group_by_length: bool,
) -> dict[str, Any]:
    """Train Marian with a Seq2SeqTrainer and time its steps."""
    from transformers import (
        DataCollatorForSeq2Seq,
        PreTrainedTokenizerFast,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        TrainerCallback,
    )

    allocated = reset_memory(settings.device)
    start = time.perf_counter()
    snapshots: dict[int, tuple[float, int]] = {}
    tokens = torch.zeros((), dtype=torch.long, device=settings.device)
    # Grouped by length, batches come in megabatches, each from its longest to its shortest: only whole ones are timed.
    megabatch = min(max(len(items) // (rows * 4), 1), 50) if group_by_length else 1

    class CountingTrainer(Seq2SeqTrainer):  # type: ignore[misc]
        """Counts target tokens on the device, without synchronizing."""

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            tokens.add_((inputs["labels"] != -100).sum())
            return super().compute_loss(model, inputs, *args, **kwargs)

    class StepTimer(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            step = state.global_step
            timed = step - settings.peer_warmup
            if timed > 0 and timed % megabatch == 0:
                timed_out = time.perf_counter() - snapshots[settings.peer_warmup][0] > settings.peer_seconds
                control.should_training_stop = timed_out or timed >= settings.peer_steps
            if step in (1, settings.peer_warmup) or control.should_training_stop:
                count = int(tokens)
                synchronize(tokens.device)
                snapshots[step] = time.perf_counter(), count
            return control

    torch.manual_seed(recipe.train.seed)
    model = make_marian(recipe.make_encoder_decoder_config(prepared.target.vocab_size))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=prepared.target.tokenizer,
        pad_token=SPECIAL_NAMES["pad"],
        eos_token=SPECIAL_NAMES["eos"],
        padding_side="right",
    )
    schedule = recipe.train.schedule
    training_arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder / "peer"),
        per_device_train_batch_size=-(-rows // accumulation),
        gradient_accumulation_steps=accumulation,
        max_steps=recipe.train.steps,
        bf16=settings.device == "cuda",
        use_cpu=settings.device == "cpu",
        optim="adamw_torch_fused" if settings.device == "cuda" else "adamw_torch",
        adam_beta2=0.98,
        adam_epsilon=1e-9,
        weight_decay=0.0,
        learning_rate=schedule.lr,
        warmup_steps=schedule.warmup_steps,
        lr_scheduler_type="linear",
        max_grad_norm=recipe.train.max_grad_norm,
        label_smoothing_factor=recipe.train.loss.label_smoothing,
        train_sampling_strategy="group_by_length" if group_by_length else "random",
        dataloader_num_workers=settings.workers,
        dataloader_persistent_workers=True,
        dataloader_pin_memory=settings.device == "cuda",
        remove_unused_columns=False,
        logging_steps=recipe.train.log_every,
        report_to=[],
        save_strategy="no",
        eval_strategy="no",
        disable_tqdm=True,
        seed=recipe.train.seed,
    )
    collator = DataCollatorForSeq2Seq(tokenizer, model=model, padding="longest")
    trainer = CountingTrainer(
        model=model, args=training_arguments, train_dataset=items, data_collator=collator, callbacks=[StepTimer()]
    )
    with without_cudnn_attention(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    first_step, first, last = (snapshots[step] for step in (1, settings.peer_warmup, max(snapshots)))
    steps = max(snapshots) - settings.peer_warmup
    return {
        "speed": (last[1] - first[1]) / (last[0] - first[0]),
        "target_tokens_a_step": (last[1] - first[1]) / steps,
        "rows": -(-rows // accumulation),
        "accumulated": accumulation,
        "steps": steps,
        "first_step": first_step[0] - start,
        **peak_memory(settings.device, allocated),
    }


def reset_memory(device: str) -> int:
    """Free unused memory and reset the peak statistics; returns the bytes still allocated."""
    gc.collect()
    if device != "cuda":
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def peak_memory(device: str, allocated: int) -> dict[str, float | None]:
    """Peak allocated and reserved memory in GiB since `reset_memory`, beyond what was allocated then."""
    if device != "cuda":
        return {"gigabytes": None, "reserved_gigabytes": None}
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return {"gigabytes": (peak - allocated) / 2**30, "reserved_gigabytes": (reserved - allocated) / 2**30}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps; no results are written")
    parser.add_argument("--tiny", action="store_true", help="toy sizes on a CPU; no results are written")
    args = parser.parse_args()
    if not (args.tiny or torch.cuda.is_available()):
        parser.error("this benchmark needs a GPU, and none was found; try --tiny")
    cases = benchmark_end_to_end(args.quick, settings=TINY if args.tiny else None)
    if not (args.quick or args.tiny):
        print(f"Results written to {write_results('train-real-gpu', cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
