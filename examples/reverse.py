"""Watch a Transformer learn to read backwards, in about a minute on a laptop.

A small encoder–decoder learns to write a string of letters in reverse. Nothing tells it where to look; at the end its
cross-attention is printed, and the diagonal that runs the wrong way is what it has found out. The model is then saved,
loaded again and decoded step by step through its cache.
"""

import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import regard
from regard.attention import CrossAttention, HeadsConfig
from regard.model import EncoderDecoder, EncoderDecoderConfig, FeedForwardConfig, StackConfig, count_parameters
from regard.run import save

LETTERS = "abcdefghijklmnopqrstuvwxyz"
START = len(LETTERS)
LENGTH = 8
SHADES = " ░▒▓█"


def main() -> None:
    torch.manual_seed(1)
    stack = StackConfig(
        layers=2, attention=HeadsConfig(heads=4), feed_forward=FeedForwardConfig(hidden=128), dropout=0.0
    )
    config = EncoderDecoderConfig(vocabulary=START + 1, width=64, encoder=stack, decoder=stack)
    model = config.build()
    print(f"An encoder–decoder of {count_parameters(model):,} parameters learns to write {LENGTH} letters backwards.\n")
    train(model)
    with tempfile.TemporaryDirectory() as folder:
        place = save(model, Path(folder) / "reverse")
        loaded = regard.load(place)
        assert isinstance(loaded.model, EncoderDecoder)
        word = "regarder"
        source = torch.tensor([[LETTERS.index(letter) for letter in word]])
        written = decode(loaded.model, source)
        print(f"\nSaved, loaded, decoded through the cache: {word} → {spell(written[0])}\n")
        show_attention(loaded.model, source, written)


def batch(rows: int) -> tuple[Tensor, Tensor]:
    """Random letters and what the decoder is given: <start>, then the letters in reverse."""
    source = torch.randint(0, START, (rows, LENGTH))
    return source, torch.cat((torch.full((rows, 1), START), source.flip(1)), dim=1)


def train(model: EncoderDecoder, steps: int = 600) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    begin = time.perf_counter()
    model.train()
    for step in range(1, steps + 1):
        for group in optimiser.param_groups:
            group["lr"] = 3e-3 * min(step / 100, (steps - step + 1) / (steps - 100))
        source, target = batch(64)
        logits = model(source, target[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 100 == 0:
            print(f"step {step:4}   loss {loss.item():.4f}   {time.perf_counter() - begin:5.1f} s", flush=True)
    model.eval()
    source, _ = batch(1000)
    right = (decode(model, source) == source.flip(1)).all(dim=1).float().mean()
    print(f"{right:.1%} of 1,000 new strings come out right to the last letter.")


def decode(model: EncoderDecoder, source: Tensor) -> Tensor:
    """Write the likeliest letter, step after step."""
    cache = model.start(source, capacity=LENGTH)
    token, written = torch.full((source.shape[0], 1), START), []
    for _ in range(LENGTH):
        logits, cache = model.step(token, cache)
        token = logits[:, -1:].argmax(dim=-1)
        written.append(token)
    return torch.cat(written, dim=1)


def show_attention(model: EncoderDecoder, source: Tensor, written: Tensor) -> None:
    """The mean over heads of the last layer's cross-attention: a line for each letter written."""
    seen: list[Tensor] = []

    def watch(attention: nn.Module, weights: Tensor) -> None:
        if isinstance(attention, CrossAttention):
            seen.append(weights[0].mean(dim=0))  # (query, key)

    target = torch.cat((torch.full((1, 1), START), written[:, :-1]), dim=1)
    with torch.no_grad():
        model(source, target, watch=watch)
    print("Where it looked while writing each letter (rows) in the source (columns):\n")
    print("     " + " ".join(spell(source[0])))
    for letter, row in zip(spell(written[0]), seen[-1], strict=True):
        print(f"   {letter} " + " ".join(SHADES[min(4, int(5 * weight))] for weight in row))


def spell(ids: Tensor) -> str:
    return "".join((LETTERS + "·")[number] for number in ids.tolist())


if __name__ == "__main__":
    main()
