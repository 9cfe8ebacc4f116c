"""How fast models train, beside PyTorch's own Transformer and Hugging Face's Marian in the same run.

    python benchmarks/train.py             # on a CPU; --quick ends within a minute
    python benchmarks/train.py --gpu       # on a GPU; see train_gpu.py

On a CPU: a small encoder–decoder (3 + 3 layers, width 256, 4 heads, hidden 1,024, vocabulary of about 8,000) in float32
on two threads, real batches of Multi30k where it is there (REGARD_DATA), else of the sentences that ship. All get the
same tokens in the same batches, the same dropout, label smoothing, clipping and Adam. Ours is the model's fast form for
training, in a step that does what the training loop's does. A round is some steps of each in turn; the ratio is the
median over rounds of a peer's time over ours. Tokens are target words that are not padding. The share of the peak is
beside the rate of large products, with nothing else to do and no padding. Memory is what building the model and
stepping take at their peak, each in a process of its own (Linux only, and not with --quick).
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
from common import median_ratio, memory_status, operations, say, time_in_turn, write_results
from torch import Tensor, nn
from torch.nn import functional
from translation import TorchTransformer

from regard.data.batch import Batch
from regard.errors import UserError
from regard.fast.swift_training import for_training
from regard.model import EncoderDecoder, EncoderDecoderConfig
from regard.task.prepare import prepare
from regard.task.reading import read_translation
from regard.task.translation import TranslationTask
from regard.task.translation_recipe import TranslationRecipe
from regard.train import TrainConfig
from regard.train.loss import word_loss

SMALL = [
    "model.width=256",
    "model.encoder.layers=3",
    "model.decoder.layers=3",
    *(f"model.{side}.attention.heads=4" for side in ("encoder", "decoder")),
    *(f"model.{side}.feed_forward.hidden=1024" for side in ("encoder", "decoder")),
    "tokenizer.vocabulary=8000",
    "train.tokens=2048",
    "train.precision=fp32",
    "train.loss.consistency=0",
]
OURS, TORCH, MARIAN = "ours", "torch.nn.Transformer", "Hugging Face Marian"
_PEAK_ANEW = Path("/proc/self/clear_refs")
"""Where Linux is told to forget the peak of a process' memory."""
_LONG = 60
"""Steps for whose memory we look: enough to show what grows from step to step."""
Step = Callable[[Batch], None]


def recipe() -> tuple[TranslationRecipe, str]:
    """Multi30k where it is there, else what ships."""
    try:
        found = read_translation("multi30k-en-de", SMALL)
        with tempfile.TemporaryDirectory() as place:
            prepare(found, Path(place), lambda sentence: None, None)
        return found, "Multi30k"
    except UserError:
        return read_translation("quick", SMALL), "the sentences that ship"


class Marian(nn.Module):
    """Hugging Face's Marian in the sizes of our model."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        from transformers import MarianConfig, MarianMTModel

        super().__init__()
        stack = config.encoder
        self.model = MarianMTModel(
            MarianConfig(
                vocab_size=config.vocabulary,
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


def peer_step(model: nn.Module, start: int, smoothing: float) -> Step:
    """A step as a careful person writes it."""
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))
    model.train()

    def step(batch: Batch) -> None:
        before = torch.cat((torch.full_like(batch.target[:, :1], start), batch.target[:, :-1]), dim=1)
        logits = model(batch.source, before, source_lengths=batch.source_lengths)
        real = torch.arange(batch.target.shape[1]) < batch.target_lengths[:, None]
        wanted = batch.target.masked_fill(~real, -100)
        loss = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), label_smoothing=smoothing)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def our_step(model: EncoderDecoder, settings: TrainConfig, start: int) -> Step:
    """What `Loop` does in a step: forward, loss, backward, clip, move."""
    optimiser = settings.optimiser.build(model)
    forward = for_training(model.train(), late=True)
    done = 0

    def step(batch: Batch) -> None:
        nonlocal done
        before = torch.cat((torch.full_like(batch.target[:, :1], start), batch.target[:, :-1]), dim=1)
        logits = forward(batch.source, before, source_lengths=batch.source_lengths, target_lengths=batch.target_lengths)
        loss = word_loss(logits, batch.target, batch.target_lengths, settings.loss.smoothing)
        (loss.total / batch.count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        done += 1
        optimiser.step(settings.schedule.at(done))
        optimiser.forget_gradients()

    return step


@dataclass(frozen=True)
class Work:
    """What all train on."""

    recipe: TranslationRecipe
    data: str
    config: EncoderDecoderConfig
    batches: list[Batch]

    @property
    def words(self) -> int:
        return sum(batch.count for batch in self.batches)

    def steppers(self, config: EncoderDecoderConfig) -> dict[str, Callable[[], Step]]:
        """What makes a model of these sizes and its step: ours first, then the peers'."""
        start, settings = config.tokens.start, self.recipe.train
        assert start is not None
        return {
            OURS: lambda: our_step(config.build(), settings, start),
            TORCH: lambda: peer_step(TorchTransformer(config), start, settings.loss.smoothing),
            MARIAN: lambda: peer_step(Marian(config), start, settings.loss.smoothing),
        }

    def all_steps(self, step: Step) -> Callable[[], None]:
        def run() -> None:
            for batch in self.batches:
                step(batch)

        return run


def work(steps: int) -> Work:
    torch.set_num_threads(2)
    torch.manual_seed(1)
    settings, data = recipe()
    with tempfile.TemporaryDirectory() as place:
        prepared = prepare(settings, Path(place), lambda sentence: None, None)
        config = settings.encoder_decoder_settings(prepared.target.vocabulary)
        task = TranslationTask(settings, prepared, config.build())
        return Work(settings, data, config, list(itertools.islice(task.batches.epochs(), steps)))


def on_a_cpu(quick: bool) -> list[dict[str, Any]]:
    given, rounds = work(3 if quick else 12), 3 if quick else 7
    steppers = given.steppers(given.config)
    looks = _PEAK_ANEW.exists() and not quick
    megabytes = {name: peak_alone(name) if looks else None for name in steppers}
    taken = time_in_turn([given.all_steps(make()) for make in steppers.values()], rounds, warm=1)
    seconds = dict(zip(steppers, taken, strict=True))
    speeds = {name: given.words / statistics.median(each) for name, each in seconds.items()}
    best, most = max((name for name in steppers if name != OURS), key=speeds.__getitem__), floor(given)
    return [
        say(
            {
                "case": f"small encoder–decoder, float32, 2 threads, {given.data}, {name}",
                "ours": speeds[OURS],
                "peer": speeds[name],
                "ratio": median_ratio(seconds[OURS], seconds[name]),
                "best_peer": name == best,
                "unit": "target tokens a second",
                "floor": most,
                "share_of_peak": speeds[OURS] / most,
                "peer_share_of_peak": speeds[name] / most,
                "megabytes": megabytes[OURS],
                "peer_megabytes": megabytes[name],
                "rounds": rounds,
            }
        )
        for name in steppers
        if name != OURS
    ]


def floor(given: Work) -> float:
    """Target tokens a second if there were nothing but the products, at the rate of large ones on this machine."""
    a = torch.randn(1024, 1024)
    (seconds,) = time_in_turn([lambda: a @ a], 20)
    rate = 2 * 1024**3 / min(seconds)
    rows = sum(int((batch.items >= 0).sum()) for batch in given.batches)
    source, target = (sum(batch.tokens[side] for batch in given.batches) for side in (0, -1))  # padding is not needed
    of_source, of_target = operations(given.config, round(target / rows), round(source / rows))
    return given.words / ((of_source * source + of_target * target) / rate)


def peak_alone(name: str) -> float:
    """The most megabytes that steps take, in a process of their own."""
    done = subprocess.run([sys.executable, __file__, "--peak", name], stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def peak(name: str) -> float:
    """Megabytes at the peak of some steps, above what the process held with all code loaded and nothing built."""
    given = work(_LONG)
    narrow = given.config.model_copy(update={"width": 32})
    given.steppers(narrow)[name]()(given.batches[0])  # loads or compiles what will be needed
    gc.collect()
    _PEAK_ANEW.write_text("5", encoding="utf-8")
    before = memory_status()["VmRSS"]
    given.all_steps(given.steppers(given.config)[name]())()
    return memory_status()["VmHWM"] - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds, and nothing is written")
    parser.add_argument("--gpu", action="store_true", help="the cases for a GPU")
    parser.add_argument(
        "--part",
        dest="parts",
        action="append",
        default=[],
        choices=("start", "pairs", "text", "real"),
        help="only these cases for a GPU, written to a file of their own",
    )
    parser.add_argument("--peak", choices=(OURS, TORCH, MARIAN), help="only memory on a CPU, in this process")
    options = parser.parse_args()
    if options.peak:
        print(peak(options.peak))
        return 0
    if options.gpu:
        from train_gpu import on_a_gpu

        name = "-".join(["train-gpu", *options.parts])
        cases = on_a_gpu(options.quick, options.parts)
    else:
        name, cases = "train-cpu", on_a_cpu(options.quick)
    if not options.quick:
        print(f"written: {write_results(name, cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
