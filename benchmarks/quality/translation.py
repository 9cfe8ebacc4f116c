"""Train a translation recipe, or `torch.nn.Transformer` at the same size, with several seeds and evaluate it.

    python benchmarks/quality/translation.py multi30k-en-de --seeds 1 2 3
    python benchmarks/quality/translation.py tatoeba-en-tr
    python benchmarks/quality/translation.py tatoeba-en-tr --peer

With --peer it trains `torch.nn.Transformer` with the same width, layers, dropout, tied embeddings and sinusoidal
positions, on the same batches, with the same number of steps, schedule, loss, checkpoint averaging and beam search (but
without a KV cache, which it lacks). Results are written to translation-RECIPE.json or peer-RECIPE.json in
benchmarks/results. To compare settings without using the test sets, see sweep.py.
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
from benchmarks.quality.multi_seed import Result, argument_parser, measure
from torch import Tensor, nn

from regard.attention.positions.absolute import Sinusoidal
from regard.cli.training_display import TrainingDisplay
from regard.data.text.corpus import Corpus
from regard.model import EncoderDecoder, EncoderDecoderConfig, count_parameters
from regard.task.run import train
from regard.task.translation.pipeline import LineTranslator
from regard.task.translation.prepare import prepare_pairs
from regard.task.translation.recipe import TranslationRecipe, read_translation_recipe
from regard.task.translation.task import TranslationTask
from regard.train.trainer import Trainer


@dataclass
class DecoderState:
    """The state of decoding without a KV cache: the encoder's output and all tokens so far."""

    memory: Tensor  # (rows, keys, width)
    padding_mask: Tensor  # (rows, keys): where the source is padding
    tokens: Tensor  # (rows, length so far)

    def reorder_beams(self, rows: Tensor, sources: Tensor | None = None) -> None:
        self.memory, self.padding_mask = self.memory[rows], self.padding_mask[rows]
        self.tokens = self.tokens[rows]


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` with pre-norm and tied embeddings, and the interface of our encoder–decoder."""

    prefill = EncoderDecoder.prefill
    device = EncoderDecoder.device

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        stack = config.encoder
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        nn.init.normal_(self.embed_tokens.weight, std=config.width**-0.5)
        self.transformer = nn.Transformer(
            config.width,
            stack.attention.heads,
            num_encoder_layers=config.encoder.layers,
            num_decoder_layers=config.decoder.layers,
            dim_feedforward=stack.feed_forward.hidden,
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
        padding_mask = torch.arange(source.shape[1], device=source.device) >= source_lengths.clamp(min=1)[:, None]
        memory = self.transformer.encoder(self._embed(source), src_key_padding_mask=padding_mask)
        return self._decode(target, memory, padding_mask)

    @torch.no_grad()
    def start(self, source: Tensor, capacity: int, lengths: Tensor) -> DecoderState:
        padding_mask = torch.arange(source.shape[1], device=source.device) >= lengths[:, None]
        memory = self.transformer.encoder(self._embed(source), src_key_padding_mask=padding_mask)
        return DecoderState(memory, padding_mask, source.new_zeros(source.shape[0], 0))

    @torch.no_grad()
    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        all_tokens = torch.cat((state.tokens, tokens), dim=1)
        logits = self._decode(all_tokens, state.memory, state.padding_mask)[:, -1:]
        return logits, DecoderState(state.memory, state.padding_mask, all_tokens)

    def _decode(self, target: Tensor, memory: Tensor, padding_mask: Tensor) -> Tensor:
        causal_mask = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).triu(1)
        decoded = self.transformer.decoder(
            self._embed(target),
            memory,
            tgt_mask=causal_mask,
            memory_key_padding_mask=padding_mask,
            tgt_is_causal=True,
        )
        logits: Tensor = decoded @ self.embed_tokens.weight.T
        return logits

    def _embed(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        positions = torch.arange(ids.shape[1], device=ids.device)
        encodings = self.position.encode(positions).to(x.dtype)
        embedded: Tensor = self.dropout(x * math.sqrt(self.config.width) + encodings)
        return embedded


def train_ours(recipe: TranslationRecipe, device: str, output_dir: Path | None) -> Result:
    """Train and evaluate the recipe; scores are not rounded."""
    with tempfile.TemporaryDirectory() as folder, TrainingDisplay(recipe.train.steps) as display:
        run_folder = (output_dir or Path(folder)) / f"{recipe.name}-{recipe.train.seed}"
        start = time.perf_counter()
        trained = train(recipe, run_folder, device=device, callback=display)
        seconds = time.perf_counter() - start
        origin = json.loads((trained.folder / "run.json").read_text(encoding="utf-8"))["origin"]
    return {
        "scores": {name: {"bleu": score.bleu, "chrf": score.chrf} for name, score in trained.scores.items()},
        "signature": next(iter(trained.scores.values())).bleu_signature,
        "training_seconds": trained.seconds,
        "seconds": seconds,
        "parameters": origin["parameters"],
        "non_embedding": origin["non_embedding"],
        "flops": origin["flops"],
    }


def train_peer(recipe: TranslationRecipe, device: str) -> Result:
    """Train and evaluate `torch.nn.Transformer` in the same way."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, TrainingDisplay(recipe.train.steps) as display:
        prepared = prepare_pairs(recipe, Path(folder), display.log, None)
        torch.manual_seed(recipe.train.seed)
        model: Any = TorchTransformer(recipe.make_encoder_decoder_config(prepared.target.vocab_size))
        task = TranslationTask(recipe, prepared, model)
        outcome = Trainer(task, recipe.train, Path(folder), device=device, callback=display).run()
        scores = {}
        translator = LineTranslator(model, prepared.source, prepared.target)
        for name, test_set in recipe.data.test.items():
            score = translator.score_pairs(list(Corpus(name, (test_set,)).read()), recipe.decode, recipe.score)
            scores[name] = {"bleu": score.bleu, "chrf": score.chrf}
    return {
        "scores": scores,
        "training_seconds": outcome.seconds,
        "seconds": time.perf_counter() - start,
        "parameters": count_parameters(model),
    }


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--peer", action="store_true", help="train torch.nn.Transformer instead of our model")
    options = parser.parse_args()

    def train_seed(seed: int) -> Result:
        recipe = read_translation_recipe(options.recipe, [*options.overrides, f"train.seed={seed}"])
        if options.peer:
            return {"case": "torch.nn.Transformer", **train_peer(recipe, options.device)}
        return train_ours(recipe, options.device, options.output_dir)

    return measure(f"{'peer' if options.peer else 'translation'}-{options.recipe}", options, train_seed)


if __name__ == "__main__":
    sys.exit(main())
