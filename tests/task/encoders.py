"""Small recipes for tasks of an encoder, and small untrained encoders."""

from pathlib import Path
from typing import Any

import tomli_w
import torch

from regard.data.tokenizer import TextTokenizer
from regard.data.tokenizer_training import EncoderTokenizerConfig, Kind, train_tokenizer
from regard.model import EncoderConfig
from regard.run import save

STACK = {"layers": 1, "attention": {"heads": 2}, "feed_forward": {"hidden": 32}, "dropout": 0.0}
MODEL = {"width": 16, "encoder": STACK, "embedding": {"dropout": 0.0}}


def write_recipe(place: Path, task: str, data: dict[str, Any], **changes: Any) -> Path:
    """A small recipe as a file; a change of a table changes only the keys it names, None takes it away."""
    values: dict[str, Any] = {
        "description": "A small recipe to test with.",
        "task": task,
        "data": data,
        "tokenizer": {"kind": "word"},
        "model": MODEL,
        "train": {
            "steps": 12,
            "tokens": 256,
            **({} if task == "filling" else {"shapes": 2}),
            "log_every": 1,
            "validate_every": 6,
            "save_every": 4,
            "loss": {"smoothing": 0.0},
            "schedule": {"kind": "constant", "rate": 0.01, "warmup": 0},
        },
    }
    for key, value in changes.items():
        values[key] = values.get(key, {}) | value if isinstance(value, dict) else value
    path = place / f"{task}.toml"
    values = {key: value for key, value in values.items() if value is not None}
    path.write_text(tomli_w.dumps(values), encoding="utf-8")
    return path


def long(steps: int) -> list[str]:
    """A run of so many steps that looks up once, at its end."""
    return [f"train.{key}={steps}" for key in ("steps", "validate_every", "save_every", "log_every")]


def encoder_config(text: TextTokenizer, head: dict[str, Any], **more: Any) -> EncoderConfig:
    tokens = {role: getattr(text, role) for role in ("padding", "mask", "separator", "classify")}
    return EncoderConfig.read(MODEL | {"vocabulary": text.vocabulary, "head": head, "tokens": tokens} | more)


def tokenizer(kind: Kind, texts: list[str], vocabulary: int | None = None) -> TextTokenizer:
    return train_tokenizer(EncoderTokenizerConfig(kind=kind, vocabulary=vocabulary), texts)


def save_random(folder: Path, text: TextTokenizer, head: dict[str, Any], **more: Any) -> Path:
    """A run folder with an untrained encoder, its weights so large that each text gets an answer of its own."""
    torch.manual_seed(1)
    model = encoder_config(text, head, **more).build()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return save(model, folder, tokenizer=text.tokenizer)
