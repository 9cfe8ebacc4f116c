"""Helpers: random weights, random ids, edited JSON files."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers

_LEARNED = ("final_logits_bias", "e_score_correction_bias")
"""Buffers with learned values."""


def randomize(model: Any, seed: int = 0) -> Any:
    """Give every tensor random values, norms and biases included, so that swapping or omitting any changes the logits.

    Returns the model in evaluation mode.
    """
    generator = torch.Generator().manual_seed(seed)
    has_sinusoids = isinstance(model, transformers.MarianMTModel)  # its positions are not learned
    tensors = dict(model.named_parameters())
    tensors |= {name: buffer for name, buffer in model.named_buffers() if name.endswith(_LEARNED)}
    with torch.no_grad():
        for name, tensor in tensors.items():
            if has_sinusoids and "embed_positions" in name:
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            gain = ("norm" in name.lower() or "ln_" in name) and name.endswith("weight")
            tensor.copy_(1 + 0.2 * noise if gain else 0.25 * noise)
    return model.eval()


def ids(rows: int, length: int, vocab_size: int, seed: int = 1) -> torch.Tensor:
    """Random token ids."""
    return torch.randint(vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; the value `...` removes a key."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))
