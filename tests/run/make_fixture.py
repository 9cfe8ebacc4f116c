"""Write tests/fixtures/format-N: run folders that every later version must be able to load.

    python tests/run/make_fixture.py

Run it once after raising FORMAT_VERSION, commit the result and never change it again. An existing format is never
overwritten.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from regard.attention import LearnedConfig, MultiHeadConfig, RotaryConfig
from regard.attention.positions.rotary import Llama3Scaling
from regard.model import EncoderDecoderConfig, FeedForwardConfig, LanguageModelConfig, NormConfig, StackConfig
from regard.run import FORMAT_VERSION, load_model, save_model


def main() -> None:
    fixture = Path(__file__).parent.parent / "fixtures" / f"format-{FORMAT_VERSION}"
    if fixture.exists():
        sys.exit(f"{fixture} exists: a released format is never written again.")
    torch.manual_seed(7)
    heads = MultiHeadConfig(heads=4, kv_heads=2, pattern="global(1) | sliding(3)")
    plain = StackConfig(
        layers=2, attention=MultiHeadConfig(heads=2), feed_forward=FeedForwardConfig(hidden=24), norm_position="post"
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
    tokens = {"bos": 1, "eos": 2, "pad": 2}
    sizes = {"vocab_size": len(words), "width": 16, "special_tokens": tokens}
    configs = [
        EncoderDecoderConfig(
            **sizes,
            encoder=plain,
            decoder=plain,
            position=LearnedConfig(max_length=12),
            output_bias=True,
            cross_kv="shared",
        ),
        LanguageModelConfig(
            **sizes,
            decoder=modern,
            position=RotaryConfig(scaling=Llama3Scaling(factor=8, original_max_length=4)),
            tie_weights=False,
        ),
    ]
    for config in configs:
        folder = save_model(
            config.build(), fixture / config.kind, tokenizer=tokenizer, origin={"from": "make_fixture.py"}
        )
        sides = {"ids": torch.randint(0, len(words), (2, 7))}
        if config.kind == "encoder-decoder":
            sides = {"source": sides["ids"], "target": torch.randint(0, len(words), (2, 5))}
        logits = load_model(folder).logits(*(sides[side] for side in sorted(sides)))
        save_file({**sides, "logits": logits}, folder / "expected.safetensors")
        print(f"wrote {folder}")


if __name__ == "__main__":
    main()
