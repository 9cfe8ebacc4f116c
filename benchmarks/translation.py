"""Quality: a recipe trained from its files, with several seeds, beside PyTorch's own Transformer of the same size.

    python benchmarks/translation.py multi30k-en-de --seeds 1 2 3
    python benchmarks/translation.py tatoeba-en-tr
    python benchmarks/translation.py tatoeba-en-tr --peer

With --peer it is the peer that is trained: `torch.nn.Transformer` with the same widths, layers, dropout, tied word
vectors and sinusoidal positions. It gets the same tokens in the same batches, the same number of steps, schedule, loss
and averaging, and the same beam search (without a cache, which it does not have). Two JSON files a recipe,
translation-RECIPE and peer-RECIPE, under benchmarks/results. To try things out without looking at test sets, see
tries.py.
"""

import json
import math
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from quality import Run, command_line, measure
from torch import Tensor, nn

from regard.attention.encoding import Sinusoidal
from regard.cli.progress import TrainingDisplay
from regard.data.corpus import Corpus
from regard.model import EncoderDecoder, EncoderDecoderConfig, count_parameters
from regard.task.prepare import prepare
from regard.task.reading import read_translation
from regard.task.training import train
from regard.task.translate import score_pairs
from regard.task.translation import TranslationTask
from regard.task.translation_recipe import TranslationRecipe
from regard.train.loop import Loop


@dataclass
class Written:
    """What the peer remembers while it writes: the encoder's output and all tokens so far."""

    memory: Tensor  # (rows, keys, width)
    hidden: Tensor  # (rows, keys): where the source is padding
    tokens: Tensor  # (rows, so far)


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` in pre-norm order between tied word vectors, called as our encoder–decoder is."""

    begin = EncoderDecoder.begin
    device = EncoderDecoder.device

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        stack = config.encoder
        hidden, heads = stack.feed_forward.hidden, stack.attention.heads
        self.vocabulary = nn.Embedding(config.vocabulary, config.width)
        nn.init.normal_(self.vocabulary.weight, std=config.width**-0.5)
        self.transformer = nn.Transformer(
            config.width,
            heads,
            num_encoder_layers=config.encoder.layers,
            num_decoder_layers=config.decoder.layers,
            dim_feedforward=hidden,
            dropout=stack.dropout,
            batch_first=True,
            norm_first=True,
        )
        self.transformer.encoder.enable_nested_tensor = False
        for layer in [*self.transformer.encoder.layers, *self.transformer.decoder.layers]:
            layer.dropout.p = stack.feed_forward.dropout
            for attention in (layer.self_attn, getattr(layer, "multihead_attn", None)):
                if attention is not None:
                    attention.dropout = stack.attention.dropout
        self.position = Sinusoidal(config.width)
        self.dropout = nn.Dropout(config.embedding.dropout)

    def forward(
        self, source: Tensor, target: Tensor, *, source_lengths: Tensor, target_lengths: Tensor | None = None
    ) -> Tensor:
        hidden = torch.arange(source.shape[1], device=source.device) >= source_lengths.clamp(min=1)[:, None]
        memory = self.transformer.encoder(self._embed(source), src_key_padding_mask=hidden)
        return self._write(target, memory, hidden)

    @torch.no_grad()
    def start(self, source: Tensor, capacity: int, lengths: Tensor) -> Written:
        hidden = torch.arange(source.shape[1], device=source.device) >= lengths[:, None]
        memory = self.transformer.encoder(self._embed(source), src_key_padding_mask=hidden)
        return Written(memory, hidden, source.new_zeros(source.shape[0], 0))

    @torch.no_grad()
    def step(self, tokens: Tensor, state: Written) -> tuple[Tensor, Written]:
        written = torch.cat((state.tokens, tokens), dim=1)
        logits = self._write(written, state.memory, state.hidden)[:, -1:]
        return logits, Written(state.memory, state.hidden, written)

    def reorder(self, state: Written, rows: Tensor) -> Written:
        return Written(state.memory[rows], state.hidden[rows], state.tokens[rows])

    def _write(self, target: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
        later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).triu(1)
        out = self.transformer.decoder(
            self._embed(target), memory, tgt_mask=later, memory_key_padding_mask=hidden, tgt_is_causal=True
        )
        logits: Tensor = out @ self.vocabulary.weight.T
        return logits

    def _embed(self, ids: Tensor) -> Tensor:
        x = self.vocabulary(ids)
        positions = torch.arange(ids.shape[1], device=ids.device)
        code = self.position.encode(positions).to(x.dtype)
        embedded: Tensor = self.dropout(x * math.sqrt(self.config.width) + code)
        return embedded


def train_ours(recipe: TranslationRecipe, device: str, keep: Path | None) -> Run:
    """A run by the recipe, its scores not rounded."""
    with tempfile.TemporaryDirectory() as folder, TrainingDisplay(recipe.train.steps) as display:
        place = (keep or Path(folder)) / f"{recipe.name}-{recipe.train.seed}"
        begin = time.perf_counter()
        trained = train(recipe, place, device=device, listener=display)
        seconds = time.perf_counter() - begin
        facts = json.loads((trained.folder / "run.json").read_text(encoding="utf-8"))["origin"]
    return {
        "scores": {name: {"bleu": score.bleu, "chrf": score.chrf} for name, score in trained.scores.items()},
        "signature": next(iter(trained.scores.values())).bleu_signature,
        "training_seconds": trained.seconds,
        "seconds": seconds,
        "parameters": facts["parameters"],
        "non_embedding": facts["non_embedding"],
        "flops": facts["flops"],
    }


def train_peer(recipe: TranslationRecipe, device: str) -> Run:
    """The same run with the peer's model."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, TrainingDisplay(recipe.train.steps) as display:
        prepared = prepare(recipe, Path(folder), display.say, None)
        torch.manual_seed(recipe.train.seed)
        model: Any = TorchTransformer(recipe.encoder_decoder_settings(prepared.target.vocabulary))
        task = TranslationTask(recipe, prepared, model)
        outcome = Loop(task, recipe.train, Path(folder), device=device, listener=display).run()
        scores = {}
        for name, part in recipe.data.test.items():
            pairs = list(Corpus(name, (part,)).read())
            scored = score_pairs(model, prepared.source, prepared.target, pairs, recipe.decode, recipe.score)
            scores[name] = {"bleu": scored.bleu, "chrf": scored.chrf}
    return {
        "scores": scores,
        "training_seconds": outcome.progress.seconds,
        "seconds": time.perf_counter() - begin,
        "parameters": count_parameters(model),
    }


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--peer", action="store_true", help="train torch.nn.Transformer in place of ours")
    options = parser.parse_args()

    def train_one(seed: int) -> Run:
        recipe = read_translation(options.recipe, [*options.changes, f"train.seed={seed}"])
        if options.peer:
            return {"case": "torch.nn.Transformer", **train_peer(recipe, options.device)}
        return train_ours(recipe, options.device, options.keep)

    return measure(f"{'peer' if options.peer else 'translation'}-{options.recipe}", options, train_one)


if __name__ == "__main__":
    sys.exit(main())
