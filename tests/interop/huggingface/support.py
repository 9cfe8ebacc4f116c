"""Small helpers of these tests: random weights, random ids, changed settings."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers

_LEARNT = ("final_logits_bias", "e_score_correction_bias")
"""Buffers that are no constants."""


def shake(model: Any, seed: int = 0) -> Any:
    """Give every tensor of a model random values, norms, biases and the output bias included, so that no two can be
    swapped or left out unseen; and let it rest from training.
    """
    generator = torch.Generator().manual_seed(seed)
    computed = isinstance(model, transformers.MarianMTModel)  # its positions are no weights
    tensors = dict(model.named_parameters())
    tensors |= {name: buffer for name, buffer in model.named_buffers() if name.endswith(_LEARNT)}
    with torch.no_grad():
        for name, tensor in tensors.items():
            if computed and "embed_positions" in name:
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            gain = ("norm" in name.lower() or "ln_" in name) and name.endswith("weight")
            tensor.copy_(1 + 0.2 * noise if gain else 0.25 * noise)
    return model.eval()


def ids(rows: int, length: int, vocabulary: int, seed: int = 1) -> torch.Tensor:
    """Random token ids."""
    return torch.randint(vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; a key set to `...` is removed."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))
