"""How fast models train, beside PyTorch's own Transformer and Hugging Face's Marian in the same run.

    python benchmarks/train.py             # on a CPU; --quick ends within a minute
    python benchmarks/train.py --gpu       # on a GPU; see train_gpu.py

On a CPU: a small encoder–decoder (3 + 3 layers, width 256, 4 heads, hidden 1,024, vocabulary of about 8,000) in float32
on two threads, real batches of Multi30k where it is there (REGARD_DATA), else of the sentences that ship. All get the
same tokens in the same batches, the same dropout, label smoothing, clipping and Adam. Ours is the model's fast form for
training, in a step that does what the training loop's does. A round is some steps of each in turn; the ratio is the
median over rounds of the best peer's time over ours. Tokens are target words that are not padding.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import median_ratio, say, time_in_turn, write_results
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
Logits = Callable[[Batch, Tensor], Tensor]


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


def peer_step(model: nn.Module, start: int, smoothing: float) -> Callable[[Batch], None]:
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


def our_step(model: EncoderDecoder, settings: TrainConfig, start: int) -> Callable[[Batch], None]:
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


def on_a_cpu(quick: bool) -> list[dict[str, Any]]:
    torch.set_num_threads(2)
    settings, data = recipe()
    steps, rounds = (3, 3) if quick else (12, 7)
    with tempfile.TemporaryDirectory() as place:
        prepared = prepare(settings, Path(place), lambda sentence: None, None)
        config = settings.encoder_decoder_settings(prepared.target.vocabulary)
        torch.manual_seed(1)
        model = config.build()
        task = TranslationTask(settings, prepared, model)
        batches = list(itertools.islice(task.batches.epochs(), steps))
        words = sum(batch.count for batch in batches)
        assert config.tokens.start is not None
        start, smoothing = config.tokens.start, settings.train.loss.smoothing
        peers = {
            "torch.nn.Transformer": peer_step(TorchTransformer(config), start, smoothing),
            "Hugging Face Marian": peer_step(Marian(config), start, smoothing),
        }

        steppers = [our_step(model, settings.train, start), *peers.values()]

        def all_steps(step: Callable[[Batch], None]) -> Callable[[], None]:
            def run() -> None:
                for batch in batches:
                    step(batch)

            return run

        mine, *others = time_in_turn([all_steps(step) for step in steppers], rounds, warm=1)
    cases = []
    best = min(range(len(others)), key=lambda number: statistics.median(others[number]))
    for number, name in enumerate(peers):
        cases.append(
            say(
                {
                    "case": f"small encoder–decoder, float32, 2 threads, {data}, {name}",
                    "ours": words / statistics.median(mine),
                    "peer": words / statistics.median(others[number]),
                    "ratio": median_ratio(mine, others[number]),
                    "best_peer": number == best,
                    "unit": "target tokens a second",
                    "floor": floor(words, batches, config),
                    "rounds": rounds,
                }
            )
        )
    return cases


def floor(words: int, batches: list[Batch], config: EncoderDecoderConfig) -> float:
    """Target tokens a second if there were nothing but the products, at the rate of large ones on this machine."""
    a = torch.randn(1024, 1024)
    (seconds,) = time_in_turn([lambda: a @ a], 20)
    rate = 2 * 1024**3 / min(seconds)
    width, hidden = config.width, config.encoder.feed_forward.hidden
    source, target = (sum(batch.tokens[side] for batch in batches) for side in (0, -1))  # padding need not be computed
    encoder = config.encoder.layers * (4 * width**2 + 2 * width * hidden)
    decoder = config.decoder.layers * (6 * width**2 + 2 * width * hidden) + width * config.vocabulary
    memory = config.decoder.layers * 2 * width**2
    return words / (6 * (source * (encoder + memory) + target * decoder) / rate)


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
    options = parser.parse_args()
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
