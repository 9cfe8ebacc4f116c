"""Write tests/fixtures/format-N: folders that every later version must be able to load.

    python tests/run/make_fixture.py

Run once when FORMAT grows, commit what it writes, and never change it again. A format that exists is left alone.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from regard.attention import HeadsConfig, LearnedConfig, RotaryConfig
from regard.attention.rotary import BandScaling
from regard.model import EncoderDecoderConfig, FeedForwardConfig, LanguageModelConfig, NormConfig, StackConfig
from regard.run import FORMAT, load, save


def main() -> None:
    place = Path(__file__).parent.parent / "fixtures" / f"format-{FORMAT}"
    if place.exists():
        sys.exit(f"{place} exists: a format that was released is never written again.")
    torch.manual_seed(7)
    heads = HeadsConfig(heads=4, key_heads=2, pattern="global(1) | sliding(3)")
    plain = StackConfig(
        layers=2, attention=HeadsConfig(heads=2), feed_forward=FeedForwardConfig(hidden=24), order="post"
    )
    modern = StackConfig(
        layers=2,
        attention=heads,
        feed_forward=FeedForwardConfig(hidden=24, activation="swiglu", bias=False),
        norm=NormConfig(kind="rms"),
    )
    words = ["?", "<start>", "<end>", "the", "cat", "ate", "mouse", "kedi", "fareyi", "yedi", "."]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = {"start": 1, "end": 2, "padding": 2}
    sizes = {"vocabulary": len(words), "width": 16, "tokens": tokens}
    configs = [
        EncoderDecoderConfig(
            **sizes, encoder=plain, decoder=plain, position=LearnedConfig(limit=12), output_bias=True, memory="shared"
        ),
        LanguageModelConfig(
            **sizes, decoder=modern, position=RotaryConfig(scaling=BandScaling(factor=8, trained=4)), tie=False
        ),
    ]
    for config in configs:
        folder = save(config.build(), place / config.kind, tokenizer=tokenizer, origin={"from": "make_fixture.py"})
        sides = {"ids": torch.randint(0, len(words), (2, 7))}
        if config.kind == "encoder-decoder":
            sides = {"source": sides["ids"], "target": torch.randint(0, len(words), (2, 5))}
        logits = load(folder).logits(*(sides[side] for side in sorted(sides)))
        save_file({**sides, "logits": logits}, folder / "expected.safetensors")
        print(f"written: {folder}")


if __name__ == "__main__":
    main()
