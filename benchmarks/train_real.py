"""Training on real sentences, the whole loop, beside Hugging Face's Trainer; `train.py --gpu` runs it at its end.

    python benchmarks/train_real.py            # on a GPU; --quick is shorter
    python benchmarks/train_real.py --tiny     # toy sizes on a CPU: does it run at all?

The paper's base model (6 + 6 layers, width 512, hidden 2,048, dropout 0.1) in bf16 on Europarl's and Multi30k's pairs,
one vocabulary for both languages. Ours is the loop as `regard train` runs it: reading, collating, moving to the device,
the step, logging. The peer is MarianMTModel of the same size in a Seq2SeqTrainer with its own collator, four worker
processes that stay, fused AdamW, and about as many target words a step. It is measured with batches of like length and
without; the better one counts. Two kindnesses to it: no progress bar, and no cuDNN attention, which would build a
kernel for every new shape. Speed is target tokens that are not padding, over steps late enough that every
batch shape has been met; the device is synchronised at both ends. Getting there is reported apart, as seconds.

Two figures say what data costs our loop. `share_waiting_for_data` is the time the host is blocked in asking for the
next batch, whether or not the device has work meanwhile. `share_lost_to_data` takes the last steps again with the same
batches that now lie on the device: the share of time that collating and moving them really cost.

The Trainer needs the package accelerate; without it ours is measured alone.
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
from common import operations, say, share_of_peak, write_results

from regard.cli.progress import TrainingDisplay
from regard.data.batch import Batch
from regard.data.corpus import Corpus, CorpusConfig
from regard.data.tokenizer import SPECIAL_NAMES
from regard.model import EncoderDecoderConfig
from regard.task.prepare import Prepared, prepare
from regard.task.reading import read_translation
from regard.task.translation import TranslationTask
from regard.task.translation_recipe import TranslationRecipe
from regard.train.loop import Loop
from regard.train.loss import Loss
from regard.train.metrics import Metrics, NoMetrics
from regard.train.surroundings import ready_kernels

SIDES = ("encoder", "decoder")


@dataclass(frozen=True)
class Size:
    """How large the work is and how long it is looked at."""

    device: str = "cuda"
    pairs: int = 60_000
    vocabulary: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"europarl-en-de": 32_768, "multi30k-en-de": 10_000}
    )
    tokens: int = 24_576
    width: int = 512
    hidden: int = 2048
    layers: int = 6
    heads: int = 8
    log_every: int = 50
    steps: int = 100
    """Steps of ours that are timed, a multiple of `log_every`."""
    peer_warm: int = 10
    peer_steps: int = 100
    peer_seconds: float = 4.0
    """The peer's timing ends after about so long, if not before."""
    workers: int = 4


FULL = Size()
QUICK = Size(pairs=20_000, steps=50, peer_warm=6, peer_steps=40, peer_seconds=2.0)
TINY = Size(
    device="cpu",
    pairs=1000,
    vocabulary={"europarl-en-de": 600, "multi30k-en-de": 600},
    tokens=4096,
    width=32,
    hidden=64,
    layers=1,
    heads=2,
    log_every=5,
    steps=10,
    peer_warm=2,
    peer_steps=5,
    workers=2,
)


def real_batches(quick: bool, rate: float | None = None, size: Size | None = None) -> list[dict[str, Any]]:
    """The cases of both data sets. `rate`: operations a second of large products, where it was measured."""
    size = size or (QUICK if quick else FULL)
    return [compare("Europarl", "europarl-en-de", size, rate), compare("Multi30k", "multi30k-en-de", size, rate)]


def compare(title: str, name: str, size: Size, rate: float | None) -> dict[str, Any]:
    """Ours and both forms of the peer on one data set, each alone on the device."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        begin = time.perf_counter()
        recipe = base_recipe(name, folder, size)
        prepared = prepare(recipe, folder, lambda sentence: None, None)
        preparing = time.perf_counter() - begin
        ours = run_ours(recipe, prepared, folder, size)
        case: dict[str, Any] = {
            "case": f"real {title} batches, base encoder–decoder, bf16, HF Marian Trainer",
            "ours": ours["speed"],
            "unit": "target tokens a second, padding not counted",
            "operations_a_token": ours["operations"],
            "share_of_peak": share_of_peak(ours["speed"], ours["operations"], rate),
            "gigabytes": ours["gigabytes"],
            "reserved_gigabytes": ours["reserved_gigabytes"],
            "share_waiting_for_data": ours["waiting"],
            "share_lost_to_data": ours["lost"],
            "seconds_to_the_first_step": ours["first_step"],
            "seconds_until_all_shapes_were_met": ours["start_up"],
            "seconds_preparing_data": preparing,
            "target_tokens_a_step": ours["words_a_step"],
            "shapes": ours["shapes"],
            "padding": ours["padding"],
            "vocabulary": prepared.target.vocabulary,
        }
        if find_spec("accelerate") is None:
            return say(case | {"peer": None, "problem": "accelerate is not installed, and the Trainer needs it"})
        peers = {
            how: run_peer(recipe, prepared, folder, size, ours["words_a_step"], grouped=how == "grouped")
            for how in ("grouped", "not_grouped")
        }
    best = max(peers, key=lambda how: peers[how]["speed"])
    case |= {
        "peer": peers[best]["speed"],
        "peer_share_of_peak": share_of_peak(peers[best]["speed"], ours["operations"], rate),
        "ratio": ours["speed"] / peers[best]["speed"],
        "best_peer": best,
        "peer_gigabytes": peers[best]["gigabytes"],
        "peer_reserved_gigabytes": peers[best]["reserved_gigabytes"],
        "peer_seconds_to_the_first_step": peers[best]["first_step"],
        "peers": peers,
    }
    return say(case)


def base_recipe(name: str, folder: Path, size: Size) -> TranslationRecipe:
    """The paper's base model on the first pairs of a recipe's data, with nothing to validate or test on."""
    path = folder / "pairs.jsonl"
    pairs = islice(Corpus("train", read_translation(name).data.train).read(), size.pairs)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(pair._asdict(), ensure_ascii=False) + "\n" for pair in pairs)
    changes = [
        "data.hold_out=0",
        f"tokenizer.vocabulary={size.vocabulary[name]}",
        f"model.width={size.width}",
        "model.embedding.dropout=0.1",
        f"train.tokens={size.tokens}",
        f"train.log_every={size.log_every}",
        "train.validate_every=1000000",
        "train.save_every=1000000",
        f"train.precision={'bf16' if size.device == 'cuda' else 'fp32'}",
        "train.loss.consistency=0.0",
    ]
    for side in SIDES:
        changes += [
            f"model.{side}.layers={size.layers}",
            f"model.{side}.order=post",
            f"model.{side}.dropout=0.1",
            f"model.{side}.attention.heads={size.heads}",
            f"model.{side}.attention.dropout=0.1",
            f"model.{side}.feed_forward.hidden={size.hidden}",
            f"model.{side}.feed_forward.dropout=0.1",
        ]
    return read_translation(name, changes, CorpusConfig(path=str(path)))


class EnoughError(Exception):
    """All that was to be measured has been."""


@dataclass(frozen=True)
class Mark:
    """How things stood when a line of the log had been written: the device had nothing left to do."""

    moment: float
    words: int
    read: int
    rows: int
    waited: float


class WatchedLoop(Loop[Batch]):
    """The training loop with a clock. After the timed steps it takes the last of them again, from the device."""

    def watch(self, warm: int, steps: int) -> None:
        self.marks: dict[int, Mark] = {}
        self.waited, self.first_step, self.again = 0.0, 0.0, 0.0
        self.read, self.rows = 0, 0
        self._last = warm + steps
        self._at_hand: list[Batch] = []

    def _step(self, batches: Iterator[Batch]) -> Loss:
        done = self.progress.step - self._last
        loss = super()._step(iter(self._at_hand[done:]) if done >= 0 else self._timed(batches))
        if not self.first_step:
            synchronise(self.device)
            self.first_step = time.perf_counter()
        return loss

    def _timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while True:
            begin = time.perf_counter()
            batch = next(batches)
            self.waited += time.perf_counter() - begin
            self.read += batch.tokens[0]
            self.rows += int((batch.items >= 0).sum())
            if self.progress.step >= self._last - self.config.log_every:
                self._at_hand.append(batch)
            yield batch

    def _here(self, batch: Any) -> Any:
        return batch if batch.source.device.type == self.device.type else super()._here(batch)

    def _write_down(self, metrics: Metrics | NoMetrics) -> None:
        super()._write_down(metrics)
        synchronise(self.device)
        step = self.progress.step
        self.marks[step] = Mark(time.perf_counter(), self.progress.words, self.read, self.rows, self.waited)
        if step == self._last:
            self._at_hand = [batch.to(self.device) for batch in self._at_hand]
            synchronise(self.device)
            self.again = time.perf_counter()
        elif step > self._last:
            raise EnoughError


def run_ours(recipe: TranslationRecipe, prepared: Prepared, folder: Path, size: Size) -> dict[str, Any]:
    """What `regard train` does once the data is prepared, until it has been seen enough."""
    held = fresh_memory(size.device)
    begin = time.perf_counter()
    torch.manual_seed(recipe.train.seed)
    task = TranslationTask(recipe, prepared, recipe.encoder_decoder_settings(prepared.target.vocabulary).build())
    every = recipe.train.log_every
    warm = -(-len(task.batches) // every) * every  # after an epoch every shape has been met
    with TrainingDisplay(recipe.train.steps) as display:
        loop = WatchedLoop(task, recipe.train, folder, device=size.device, listener=display)
        loop.watch(warm, size.steps)
        with contextlib.suppress(EnoughError):
            loop.run()
    marks = loop.marks
    first, before, last, again = (
        marks[step] for step in (warm, warm + size.steps - every, warm + size.steps, warm + size.steps + every)
    )
    seconds, words, read = last.moment - first.moment, last.words - first.words, last.read - first.read
    lengths = (round(each / (last.rows - first.rows)) for each in (words, read))
    of_source, of_target = operations(task.model.config, *lengths)
    return {
        "speed": words / seconds,
        "operations": of_target + of_source * read / words,
        "words_a_step": words / size.steps,
        "waiting": (last.waited - first.waited) / seconds,
        "lost": 1 - (again.moment - loop.again) / (last.moment - before.moment),
        "first_step": loop.first_step - begin,
        "start_up": first.moment - begin,
        "shapes": task.batches.report.shapes,
        "padding": task.batches.report.padding,
        **memory_since(size.device, held),
    }


def marian(config: EncoderDecoderConfig) -> Any:
    """Hugging Face's Marian in the sizes of our model."""
    from transformers import MarianConfig, MarianMTModel

    sizes: dict[str, Any] = {}
    for side, stack in zip(SIDES, (config.encoder, config.decoder), strict=True):
        sizes[f"{side}_layers"] = stack.layers
        sizes[f"{side}_attention_heads"] = stack.attention.heads
        sizes[f"{side}_ffn_dim"] = stack.feed_forward.hidden
    tokens = config.tokens
    return MarianMTModel(
        MarianConfig(
            **sizes,
            vocab_size=config.vocabulary,
            d_model=config.width,
            dropout=config.encoder.dropout,
            attention_dropout=config.encoder.attention.dropout,
            activation_dropout=config.encoder.feed_forward.dropout,
            activation_function="relu",
            max_position_embeddings=512,
            scale_embedding=True,
            pad_token_id=tokens.padding,
            bos_token_id=tokens.start,
            eos_token_id=tokens.end,
            decoder_start_token_id=tokens.start,
            forced_eos_token_id=None,
        )
    )


def run_peer(
    recipe: TranslationRecipe, prepared: Prepared, folder: Path, size: Size, words_a_step: float, *, grouped: bool
) -> dict[str, Any]:
    """The Trainer over the same pairs; a batch that does not fit into memory is gathered from smaller ones."""
    longest = recipe.data.longest
    items = [
        {"input_ids": source.tolist(), "attention_mask": [1] * len(source), "labels": target.tolist()}
        for source, target in prepared.train
        if max(len(source), len(target)) <= longest
    ]
    rows = max(1, round(words_a_step * len(items) / sum(len(item["labels"]) for item in items)))
    parts = 1
    while True:
        try:
            return train_peer(recipe, prepared, folder, size, items, rows, parts, grouped)
        except torch.OutOfMemoryError:
            parts *= 2


def train_peer(
    recipe: TranslationRecipe,
    prepared: Prepared,
    folder: Path,
    size: Size,
    items: list[dict[str, list[int]]],
    rows: int,
    parts: int,
    grouped: bool,
) -> dict[str, Any]:
    from transformers import (
        DataCollatorForSeq2Seq,
        PreTrainedTokenizerFast,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        TrainerCallback,
    )

    held = fresh_memory(size.device)
    begin = time.perf_counter()
    moments: dict[int, tuple[float, int]] = {}
    words = torch.zeros((), dtype=torch.long, device=size.device)
    # Batches of like length come in turns, from the longest to the shortest: only whole turns are timed.
    turn = min(max(len(items) // (rows * 4), 1), 50) if grouped else 1

    class Counted(Seq2SeqTrainer):  # type: ignore[misc]
        """Counts target words on the device, without waiting for it."""

        def compute_loss(self, model: Any, inputs: Any, *others: Any, **settings: Any) -> Any:
            words.add_((inputs["labels"] != -100).sum())
            return super().compute_loss(model, inputs, *others, **settings)

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
            step = state.global_step
            done = step - size.peer_warm
            if done > 0 and done % turn == 0:
                late = time.perf_counter() - moments[size.peer_warm][0] > size.peer_seconds
                control.should_training_stop = late or done >= size.peer_steps
            if step in (1, size.peer_warm) or control.should_training_stop:
                counted = int(words)
                synchronise(words.device)
                moments[step] = time.perf_counter(), counted
            return control

    torch.manual_seed(recipe.train.seed)
    model = marian(recipe.encoder_decoder_settings(prepared.target.vocabulary))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=prepared.target.tokenizer,
        pad_token=SPECIAL_NAMES["padding"],
        eos_token=SPECIAL_NAMES["end"],
        padding_side="right",
    )
    schedule = recipe.train.schedule
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder / "peer"),
        per_device_train_batch_size=-(-rows // parts),
        gradient_accumulation_steps=parts,
        max_steps=recipe.train.steps,
        bf16=size.device == "cuda",
        use_cpu=size.device == "cpu",
        optim="adamw_torch_fused" if size.device == "cuda" else "adamw_torch",
        adam_beta2=0.98,
        adam_epsilon=1e-9,
        weight_decay=0.0,
        learning_rate=schedule.rate,
        warmup_steps=schedule.warmup,
        lr_scheduler_type="linear",
        max_grad_norm=recipe.train.clip,
        label_smoothing_factor=recipe.train.loss.smoothing,
        train_sampling_strategy="group_by_length" if grouped else "random",
        dataloader_num_workers=size.workers,
        dataloader_persistent_workers=True,
        dataloader_pin_memory=size.device == "cuda",
        remove_unused_columns=False,
        logging_steps=recipe.train.log_every,
        report_to=[],
        save_strategy="no",
        eval_strategy="no",
        disable_tqdm=True,
        seed=recipe.train.seed,
    )
    collator = DataCollatorForSeq2Seq(tokenizer, model=model, padding="longest")
    trainer = Counted(model=model, args=arguments, train_dataset=items, data_collator=collator, callbacks=[Watch()])
    with ready_kernels(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    one, first, last = (moments[step] for step in (1, size.peer_warm, max(moments)))
    steps = max(moments) - size.peer_warm
    return {
        "speed": (last[1] - first[1]) / (last[0] - first[0]),
        "target_tokens_a_step": (last[1] - first[1]) / steps,
        "rows": -(-rows // parts),
        "accumulated": parts,
        "steps": steps,
        "first_step": one[0] - begin,
        **memory_since(size.device, held),
    }


def fresh_memory(device: str) -> int:
    """Let go of what nobody uses and count from now on; how much others hold."""
    gc.collect()
    if device != "cuda":
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def memory_since(device: str, held: int) -> dict[str, float | None]:
    """The most that was in use, and the most that was taken from the device."""
    if device != "cuda":
        return {"gigabytes": None, "reserved_gigabytes": None}
    most, taken = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return {"gigabytes": (most - held) / 2**30, "reserved_gigabytes": (taken - held) / 2**30}


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps, and nothing is written")
    parser.add_argument("--tiny", action="store_true", help="toy sizes on a CPU, and nothing is written")
    options = parser.parse_args()
    cases = real_batches(options.quick, size=TINY if options.tiny else None)
    if not (options.quick or options.tiny):
        print(f"written: {write_results('train-real-gpu', cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
