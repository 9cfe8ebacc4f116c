"""Train a Transformer to reverse strings, in about a minute on a laptop.

A small encoder–decoder learns to output a string of letters in reverse. The model is then saved, loaded again and
decoded step by step with its KV cache. Finally its cross-attention is printed: a reversed diagonal, which it has
learned without being told which source letter each output letter comes from.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import regard
from regard.attention import CrossAttention, MultiHeadConfig
from regard.model import EncoderDecoder, EncoderDecoderConfig, FeedForwardConfig, StackConfig, count_parameters
from regard.run import save_model

LETTERS = "abcdefghijklmnopqrstuvwxyz"
BOS = len(LETTERS)
LENGTH = 8
SHADES = " ░▒▓█"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.manual_seed(1)
    stack = StackConfig(
        layers=2, attention=MultiHeadConfig(heads=4), feed_forward=FeedForwardConfig(hidden=128), dropout=0.0
    )
    config = EncoderDecoderConfig(vocab_size=BOS + 1, width=64, encoder=stack, decoder=stack)
    model = config.build()
    print(f"Training an encoder–decoder with {count_parameters(model):,} parameters to reverse {LENGTH} letters.\n")
    train(model)
    with tempfile.TemporaryDirectory() as folder:
        path = save_model(model, Path(folder) / "reverse")
        loaded = regard.load(path)
        assert isinstance(loaded.model, EncoderDecoder)
        word = "regarder"
        source = torch.tensor([[LETTERS.index(letter) for letter in word]])
        output = decode(loaded.model, source)
        print(f"\nSaved, loaded, and decoded with the KV cache: {word} → {to_text(output[0])}\n")
        print_attention(loaded.model, source, output)


def batch(rows: int) -> tuple[Tensor, Tensor]:
    """Random letters, and the target sequence: BOS and the letters in reverse."""
    source = torch.randint(0, BOS, (rows, LENGTH))
    return source, torch.cat((torch.full((rows, 1), BOS), source.flip(1)), dim=1)


def train(model: EncoderDecoder, steps: int = 600) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    start = time.perf_counter()
    model.train()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(step / 100, (steps - step + 1) / (steps - 100))
        source, target = batch(64)
        logits = model(source, target[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step:4}   loss {loss.item():.4f}   {time.perf_counter() - start:5.1f} s", flush=True)
    model.eval()
    source, _ = batch(1000)
    accuracy = (decode(model, source) == source.flip(1)).all(dim=1).float().mean()
    print(f"{accuracy:.1%} of 1,000 new strings are reversed without an error.")


def decode(model: EncoderDecoder, source: Tensor) -> Tensor:
    """Greedy search with a KV cache."""
    cache = model.start(source, capacity=LENGTH)
    token, tokens = torch.full((source.shape[0], 1), BOS), []
    for _ in range(LENGTH):
        logits, cache = model.step(token, cache)
        token = logits[:, -1:].argmax(dim=-1)
        tokens.append(token)
    return torch.cat(tokens, dim=1)


def print_attention(model: EncoderDecoder, source: Tensor, output: Tensor) -> None:
    """Print the last layer's cross-attention, averaged over heads: one row per output letter."""
    layers: list[Tensor] = []

    def attention_hook(attention: nn.Module, weights: Tensor) -> None:
        if isinstance(attention, CrossAttention):
            layers.append(weights[0].mean(dim=0))  # (query, key)

    target = torch.cat((torch.full((1, 1), BOS), output[:, :-1]), dim=1)
    with torch.no_grad():
        model(source, target, attention_hook=attention_hook)
    print("Cross-attention from each output letter (rows) to the source (columns):\n")
    print("     " + " ".join(to_text(source[0])))
    for letter, row in zip(to_text(output[0]), layers[-1], strict=True):
        print(f"   {letter} " + " ".join(SHADES[min(4, int(5 * weight))] for weight in row))


def to_text(ids: Tensor) -> str:
    return "".join((LETTERS + "·")[letter] for letter in ids.tolist())


if __name__ == "__main__":
    main()
