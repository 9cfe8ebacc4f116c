"""Training word vectors beside gensim, in the same run: words per second on two threads, and what the vectors know.

    pip install gensim
    python benchmarks/vectors.py --quick     # a minute on two cores; prints lines of JSON
    python benchmarks/vectors.py             # more text and more rounds; writes benchmarks/results/vectors-cpu.json

Both train on the same sentences of the novels (eltec-eng; the Brown corpus where they are not on this machine) with the
same settings: dimension 100, window 5, subsampling at 1e-3, and 5 negative words or the hierarchical softmax. They take
turns, so that other load on the machine affects both. Speed is counted in words of the text, before subsampling, from
the first word to the last: reading the text and counting its words is done before. gensim gets its sentences as lists
of words in memory.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import gensim
import numpy as np
import torch
from benchmarks.common import write_results
from gensim.models import Word2Vec as Peer
from numpy.typing import NDArray

from regard.data.batching.word_blocks import ContextWindow, WordBlock
from regard.data.registry import locate_dataset
from regard.data.text.documents import TextConfig
from regard.data.text.vocabulary import Vocabulary, count_words
from regard.data.text.word_corpus import WordCorpus, cached_corpus
from regard.data.text.words import WordsConfig, read_sentences
from regard.model.before.word_vectors.config import (
    CbowConfig,
    HierarchicalSoftmaxConfig,
    NegativeSamplingConfig,
    SkipGramConfig,
)
from regard.model.before.word_vectors.word2vec import Word2Vec
from regard.train.distributed.process_group import SINGLE_PROCESS
from regard.train.word_vectors.config import VectorTrainConfig
from regard.train.word_vectors.engine import VectorEngine
from regard.train.word_vectors.trainer import Piece, VectorTrainer
from regard.train.word_vectors.word2vec import word2vec_engine

THREADS = 2
WIDTH, WINDOW, SUBSAMPLE, LR = 100, 5, 1e-3, 0.025
KINDS = ("skip-gram", "cbow", "skip-gram, hierarchical softmax")
NEIGHBORS_OF = ("queen", "horse", "london", "river", "money", "happy", "seven", "walked")
"""Words that occur often in the novels."""


@dataclass(frozen=True)
class Text:
    """The beginning of a corpus, as both sides take it."""

    name: str
    vocabulary: Vocabulary
    corpus: WordCorpus
    sentences: list[list[str]]

    @property
    def words(self) -> int:
        return self.corpus.words


class Task:
    """A text and a model for the trainer."""

    process_group = SINGLE_PROCESS

    def __init__(self, text: Text, model: Word2Vec, block: int) -> None:
        self.text, self.model, self._block = text, model, block
        self.epoch_size, self.epoch_steps = text.words, text.corpus.block_count(block)

    def blocks(self, epoch: int, position: int) -> Iterator[Piece[WordBlock]]:
        for end, block in self.text.corpus.blocks(self._block, position):
            yield Piece(block, len(block.ids), end)

    def engine(self, device: torch.device, log: Any) -> VectorEngine[WordBlock]:
        window = ContextWindow(WINDOW, dynamic=True, subsample=SUBSAMPLE)
        vocabulary = self.text.vocabulary
        return word2vec_engine(self.model, vocabulary.words, vocabulary.counts, window, device, log)

    def describe_data(self) -> str:
        return self.text.name


def read_text(limit: int | None) -> Text:
    """The first words of the corpus, in whole sentences; all of it without a limit."""
    here = locate_dataset("eltec-eng").folder is not None
    name, path = ("eltec-eng", "novels.txt.xz") if here else ("brown", "brown.txt.gz")
    source, config = TextConfig(dataset=name, path=path), WordsConfig()
    vocabulary = count_words(read_sentences([source], config), config)
    corpus = cached_corpus([source], config, vocabulary, print)
    end = len(corpus.offsets) - 1
    if limit is not None:
        end = min(int(np.searchsorted(corpus.offsets, limit)), end)
    offsets = np.array(corpus.offsets[: end + 1])
    ids = np.array(corpus.ids[: offsets[-1]])
    words = np.array(vocabulary.words, dtype=object)
    sentences = [words[ids[a:b]].tolist() for a, b in pairwise(offsets)]
    return Text(name, vocabulary, WordCorpus(ids, offsets), sentences)


def train_ours(text: Text, kind: str, epochs: int, seed: int) -> tuple[float, NDArray[np.float32]]:
    """Seconds of training, and the vectors in the order of the vocabulary."""
    torch.manual_seed(seed)
    loss = HierarchicalSoftmaxConfig() if kind.endswith("hierarchical softmax") else NegativeSamplingConfig()
    make_config = CbowConfig if kind == "cbow" else SkipGramConfig
    config = make_config(vocab_size=len(text.vocabulary), width=WIDTH, loss=loss)
    train = VectorTrainConfig(seed=seed, epochs=epochs, schedule={"lr": LR}, save_every=10**9)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        model = config.build()
        trainer = VectorTrainer(Task(text, model, train.batch_tokens), train, Path(folder))
        start = time.perf_counter()
        trainer.run()
        seconds = time.perf_counter() - start
    return seconds, model.word_vectors(text.vocabulary.words)


def train_peer(text: Text, kind: str, epochs: int, seed: int) -> tuple[float, NDArray[np.float32]]:
    """The same by gensim."""
    counts = dict(zip(text.vocabulary.words, text.vocabulary.counts.tolist(), strict=True))
    rate = {"alpha": LR, "min_alpha": LR * 1e-4, "epochs": epochs}
    is_tree = kind.endswith("hierarchical softmax")
    shape = {"vector_size": WIDTH, "window": WINDOW, "sample": SUBSAMPLE, "min_count": 1}
    shape |= {"hs": 1, "negative": 0} if is_tree else {"negative": 5}
    peer = Peer(sg=int(kind != "cbow"), workers=THREADS, seed=seed, **shape, **rate)
    peer.build_vocab_from_freq(counts)
    start = time.perf_counter()
    peer.train(text.sentences, total_examples=len(text.sentences), epochs=epochs)
    seconds = time.perf_counter() - start
    rows = [peer.wv.key_to_index[word] for word in text.vocabulary.words]
    return seconds, peer.wv.vectors[rows]


def measure_speed(text: Text, kind: str, rounds: int) -> dict[str, Any]:
    """Words per second of both, taking turns."""
    train_ours(text, kind, 1, 0)  # kernels are compiled, and memory is touched
    seconds = [(train_ours(text, kind, 1, number)[0], train_peer(text, kind, 1, number)[0]) for number in range(rounds)]
    ours, peer = ([text.words / each[side] for each in seconds] for side in (0, 1))
    return {
        "case": f"{kind}, words per second on {THREADS} threads",
        "ours": round(statistics.median(ours)),
        "peer": round(statistics.median(peer)),
        "ratio": round(statistics.median(a / b for a, b in zip(ours, peer, strict=True)), 2),
        "rounds": rounds,
        "words": text.words,
        "text": text.name,
    }


def neighbors(text: Text, kind: str, epochs: int) -> dict[str, Any]:
    """The nearest neighbors of some words by both, to look at, and how many of the ten nearest they share."""
    tables = []
    for train in (train_ours, train_peer):
        vectors = train(text, kind, epochs, 1)[1]
        tables.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    found: dict[str, Any] = {}
    for word in NEIGHBORS_OF:
        row = text.vocabulary.ids[word]
        nearest = [np.argsort(-(table @ table[row]))[1:11].tolist() for table in tables]
        found[word] = [[text.vocabulary.words[each] for each in one] for one in nearest]
    shared = [len(set(ours) & set(peer)) for ours, peer in found.values()]
    return {
        "case": f"{kind}, neighbors after {epochs} epochs",
        "shared_of_10": round(statistics.mean(shared), 1),
        "neighbors": {word: {"ours": ours[:5], "peer": peer[:5]} for word, (ours, peer) in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less text and fewer rounds; no results are written")
    quick = parser.parse_args().quick
    torch.set_num_threads(THREADS)
    text = read_text(500_000 if quick else 3_000_000)
    cases = []
    for kind in KINDS:
        cases.append(measure_speed(text, kind, rounds=3 if quick else 7))
        print(json.dumps(cases[-1]), flush=True)
    if quick:
        return
    whole = read_text(None)
    if whole.name == "eltec-eng":
        for kind in KINDS:
            cases.append(neighbors(whole, kind, epochs=2))
            print(json.dumps(cases[-1], ensure_ascii=False), flush=True)
    print(write_results("vectors-cpu", [{"gensim": gensim.__version__, **case} for case in cases]))


if __name__ == "__main__":
    main()
