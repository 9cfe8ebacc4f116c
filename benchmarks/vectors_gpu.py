"""word2vec on a GPU: words per second beside gensim on the CPU of the same machine, and what large batches cost.

    python benchmarks/vectors_gpu.py [--text FILE] [--pairs FILE] [--device cuda] [--quick]

Prints one JSON object per line with `case`, `ours`, `peer` and `ratio`, and writes benchmarks/results/vectors-gpu.json.
`ours` are words of the text per second on the device, without reading the text; `peer` is gensim's speed with all
cores on the same sentences and settings (`pip install gensim`), null where it is not installed. With a file of word
pairs and human judgments (three columns, such as MEN's), Spearman's correlations of both stand beside them.

Without --text, words are drawn by Zipf's law, so only speeds are meaningful.
"""

import argparse
import importlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.common import log, write_results
from numpy.typing import NDArray

from regard.data.batching.word_blocks import ContextWindow
from regard.data.text.documents import TextConfig
from regard.data.text.vocabulary import Vocabulary, count_words
from regard.data.text.word_corpus import WordCorpus
from regard.data.text.words import WordsConfig, read_sentences
from regard.model.before.word_vectors.config import CbowConfig, SkipGramConfig
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from regard.train.word_vectors.batched import BatchedEngine, BatchSettings

WINDOW = ContextWindow(5, dynamic=True, subsample=1e-3)
KINDS: dict[str, tuple[type[SkipGramConfig] | type[CbowConfig], float]] = {
    "skip-gram": (SkipGramConfig, 0.025),
    "cbow": (CbowConfig, 0.05),
}
BLOCK = 1_000_000
"""Words that are sent to the device at once."""


@dataclass(frozen=True)
class Text:
    """Sentences as words and as ids."""

    sentences: list[list[str]]
    vocabulary: Vocabulary
    corpus: WordCorpus


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="a text file; default: words drawn by Zipf's law")
    parser.add_argument("--pairs", type=Path, help="pairs of words with a judgment of their similarity")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a small text, and one size of batches")
    args = parser.parse_args()
    text = make_text(read_text(args.text) if args.text else generated(100_000 if args.quick else 10_000_000))
    epochs, sizes = (1, (1 << 14,)) if args.quick else (args.epochs, (1 << 13, 1 << 14, 1 << 15, 1 << 16))
    cases = []
    for kind in KINDS:
        peer = time_gensim(text, kind, epochs, args.pairs) if find_spec("gensim") else {"speed": None}
        for settings in [BatchSettings(batch=size) for size in sizes] + [BatchSettings(batch=sizes[0], group=1)]:
            ours = time_ours(text, kind, epochs, settings, args.device, args.pairs)
            cases.append(log(as_case(kind, settings, ours, peer)))
    if not args.quick:
        print(f"Results written to {write_results('vectors-gpu', cases)}")
    return 0


def as_case(kind: str, settings: BatchSettings, ours: dict[str, Any], peer: dict[str, Any]) -> dict[str, Any]:
    sharing = f"{settings.group} predictions share {settings.shared}" if settings.group > 1 else "none shared"
    ratio = None if peer["speed"] is None else round(ours["speed"] / peer["speed"], 2)
    return {
        "case": f"{kind}, batches of {settings.batch:,}, {sharing}",
        "unit": "words/s",
        "ours": round(ours["speed"]),
        "peer": None if peer["speed"] is None else round(peer["speed"]),
        "ratio": ratio,
        "loss": ours["loss"],
        "correlation": ours.get("correlation"),
        "peer_correlation": peer.get("correlation"),
    }


def time_ours(
    text: Text, kind: str, epochs: int, settings: BatchSettings, device: str, pairs: Path | None
) -> dict[str, Any]:
    """Train and time all epochs after the first block, which is trained on twice."""
    config, lr = KINDS[kind]
    torch.manual_seed(1)
    model = config(vocab_size=len(text.vocabulary), width=100).build().to(device)
    engine = BatchedEngine(model, text.vocabulary.counts, WINDOW, settings)
    blocks = [block for _, block in text.corpus.blocks(min(BLOCK, max(text.corpus.words // 20, 1000)))]
    engine.train_block(blocks[0], lr, 0)
    total, steps, start = 0.0, epochs * len(blocks), time.perf_counter()
    for step in range(steps):
        loss = engine.train_block(blocks[step % len(blocks)], lr * max(1 - step / steps, 1e-4), step + 1)
        total = loss.total / max(loss.count, 1)
    seconds = time.perf_counter() - start  # reading the loss of a block waits for the device
    found: dict[str, Any] = {"speed": epochs * text.corpus.words / seconds, "loss": round(total, 4)}
    if pairs is not None:
        found["correlation"] = correlation(model.keyed_vectors(text.vocabulary.words), pairs)
    return found


def time_gensim(text: Text, kind: str, epochs: int, pairs: Path | None) -> dict[str, Any]:
    """The same with gensim on all cores of the CPU."""
    word2vec: Any = importlib.import_module("gensim.models.word2vec")
    model = word2vec.Word2Vec(
        vector_size=100, window=WINDOW.size, min_count=1, sample=WINDOW.subsample, sg=int(kind == "skip-gram"),
        negative=5, alpha=KINDS[kind][1], workers=os.cpu_count(), seed=1,
    )  # fmt: skip
    model.build_vocab(text.sentences)
    start = time.perf_counter()
    model.train(text.sentences, total_examples=len(text.sentences), epochs=epochs)
    found: dict[str, Any] = {"speed": epochs * text.corpus.words / (time.perf_counter() - start)}
    if pairs is not None:
        found["correlation"] = correlation(KeyedVectors(model.wv.index_to_key, model.wv.vectors), pairs)
    return found


def correlation(keyed: KeyedVectors, path: Path) -> dict[str, Any]:
    """Spearman's correlation of cosines with judgments, and how many pairs have known words."""
    rows = [line.lower().split() for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    known = [(keyed[a], keyed[b], float(score)) for a, b, score in rows if a in keyed and b in keyed]
    cosines = [float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b))) for a, b, _ in known]
    value = np.corrcoef(ranks(cosines), ranks([score for _, _, score in known]))[0, 1]
    return {"spearman": round(float(value), 4), "pairs": len(known), "of": len(rows)}


def ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """The rank of each value; equal ones have their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    found: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return found


def make_text(sentences: list[list[str]]) -> Text:
    """The vocabulary and the ids; rare words are taken out of the sentences, so that both see the same words."""
    vocabulary = count_words(sentences, WordsConfig(min_count=5))
    ids = vocabulary.ids
    known = [words for sentence in sentences if (words := [word for word in sentence if word in ids])]
    flat = np.array([ids[word] for words in known for word in words], dtype=np.int32)
    return Text(known, vocabulary, WordCorpus(flat, np.cumsum([0, *map(len, known)])))


def read_text(path: str) -> list[list[str]]:
    return list(read_sentences([TextConfig(path=path)], WordsConfig()))


def generated(words: int) -> list[list[str]]:
    """Sentences of 20 words of a vocabulary of 50,000."""
    chances = 1 / np.arange(1, 50_001)
    ids = np.random.default_rng(0).choice(50_000, size=(words // 20, 20), p=chances / chances.sum())
    return [[f"w{word}" for word in row] for row in ids.tolist()]


if __name__ == "__main__":
    sys.exit(main())
