"""A ladder that runs in seconds: copying short sentences of a few words."""

import random
from pathlib import Path

WORDS = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "red",
    "blue",
    "green",
    "house",
    "tree",
]

RECIPE = """
description = "Short sentences, word by word."
task = "translation"
[data]
train = [{ path = "train.tsv" }]
valid = { path = "valid.tsv" }
test = { test = { path = "test.tsv" } }
[tokenizer]
kind = "bpe"
vocab_size = 300
[model]
width = 16
embedding = { dropout = 0.0 }
encoder = { layers = 1, dropout = 0.0, attention = { heads = 2 }, feed_forward = { hidden = 16 } }
decoder = { layers = 1, dropout = 0.0, attention = { heads = 2 }, feed_forward = { hidden = 16 } }
[train]
steps = 6
batch_tokens = 128
precision = "float32"
log_every = 2
validate_every = 3
save_every = 3
schedule = { kind = "constant", lr = 0.001 }
[decode]
beam_size = 1
"""

LADDER = """
description = "A question for a test."
base = "recipe.toml"
sizes = [1.0]
device = "cpu"
parallel = 2
recall = [1, 3]
budget = { kind = "steps", value = 6 }

[[rungs]]
name = "small"
label = "Small <Transformer>"
reference = "Vaswani et al. 2017"
published = [{ score = 99.0, source = "nobody, https://example.org" }]

[[rungs]]
name = "wide"
label = "Wide & Transformer"
overrides = { model = { width = 32 } }
"""


def write_tiny(folder: Path, ladder: str = LADDER) -> Path:
    """Data, recipe and ladder; gives the path of the ladder."""
    generator = random.Random(1)
    for name, count in (("train", 300), ("valid", 20), ("test", 30)):
        lines = []
        for _ in range(count):
            words = [generator.choice(WORDS) for _ in range(generator.randint(2, 6))]
            lines.append(" ".join(words) + "\t" + " ".join(word.upper() for word in words) + "\n")
        (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    (folder / "tiny.toml").write_text(ladder, encoding="utf-8")
    return folder / "tiny.toml"
