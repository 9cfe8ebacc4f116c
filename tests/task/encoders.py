"""Small recipes for encoder tasks, and small untrained encoders."""

from pathlib import Path
from typing import Any

import tomli_w
import torch

from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.tokenizers.training import EncoderTokenizerConfig, Kind, train_tokenizer
from regard.model import EncoderConfig
from regard.run import save_model

STACK = {"layers": 1, "attention": {"heads": 2}, "feed_forward": {"hidden": 32}, "dropout": 0.0}
MODEL = {"width": 16, "encoder": STACK, "embedding": {"dropout": 0.0}}


def write_recipe(folder: Path, task: str, data: dict[str, Any], **changes: Any) -> Path:
    """A small recipe file. A dict in `changes` updates only its keys of a table; None removes the key."""
    values: dict[str, Any] = {
        "description": "A small recipe to test with.",
        "task": task,
        "data": data,
        "tokenizer": {"kind": "word"},
        "model": MODEL,
        "train": {
            "steps": 12,
            "batch_tokens": 256,
            **({} if task == "masked-lm" else {"length_buckets": 2}),
            "log_every": 1,
            "validate_every": 6,
            "save_every": 4,
            "loss": {"label_smoothing": 0.0},
            "schedule": {"kind": "constant", "lr": 0.01, "warmup_steps": 0},
        },
    }
    for key, value in changes.items():
        values[key] = values.get(key, {}) | value if isinstance(value, dict) else value
    path = folder / f"{task}.toml"
    values = {key: value for key, value in values.items() if value is not None}
    path.write_text(tomli_w.dumps(values), encoding="utf-8")
    return path


def evaluate_once(steps: int) -> list[str]:
    """Overrides for a run that logs, validates and saves only once, at its end."""
    return [f"train.{key}={steps}" for key in ("steps", "validate_every", "save_every", "log_every")]


def encoder_config(text: TextTokenizer, head: dict[str, Any], **more: Any) -> EncoderConfig:
    tokens = {role: getattr(text, role) for role in ("pad", "mask", "sep", "cls")}
    return EncoderConfig.read(MODEL | {"vocab_size": text.vocab_size, "head": head, "special_tokens": tokens} | more)


def tokenizer(kind: Kind, texts: list[str], vocab_size: int | None = None) -> TextTokenizer:
    return train_tokenizer(EncoderTokenizerConfig(kind=kind, vocab_size=vocab_size), texts)


def save_random_encoder(folder: Path, text: TextTokenizer, head: dict[str, Any], **more: Any) -> Path:
    """A run folder with an untrained encoder with weights so large that each text gets its own result."""
    torch.manual_seed(1)
    model = encoder_config(text, head, **more).build()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return save_model(model, folder, tokenizer=text.tokenizer)
