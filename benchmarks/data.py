"""The data pipeline: peak memory on a large corpus, throughput relative to training, and padding.

    python benchmarks/data.py                   2 GB of generated text: a quarter of an hour on two cores, 4 GB of disk
    python benchmarks/data.py --quick           a small version: about two minutes, no results are written
    python benchmarks/data.py --gigabytes 20

Each stage runs in a fresh process, once on the whole corpus and once on a tenth of it. A streaming stage needs the same
memory for both; for the others the growth is given in bytes per item. Throughput and padding are measured on Multi30k
if REGARD_DATA has it, else on generated text. Linux only: memory is read from /proc.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.common import log, process_memory_mb, time_alternating, write_results

from regard.attention import MultiHeadConfig
from regard.data.batching.token_batches import Batch, TokenBatches
from regard.data.registry import find_dataset
from regard.data.store.token_store import TokenStore, write_store
from regard.data.store.writer import id_type
from regard.data.text.filters import Filter, FilterConfig
from regard.data.text.pairs import Pair, read_aligned
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.tokenizers.training import TokenizerConfig, train_pair
from regard.model import EncoderDecoderConfig, FeedForwardConfig, StackConfig
from regard.train.loss import cross_entropy
from regard.train.optimizer import OptimizerConfig

H200_TOKENS_PER_SECOND = 580_000
"""Target tokens/s at which torch.nn.Transformer (base size, compiled) trains on one H200, for comparison."""

TRAIN_FILES = ("train.en.gz", "train.de.gz")
SIDES = ("source", "target")
CHUNK_PAIRS = 4096  # pairs tokenized at once
FILTER = FilterConfig(max_words=80, max_length_ratio=3, drop_identical=True)
TOKENIZER_PAIRS = 200_000  # pairs that a tokenizer is trained on


def write_corpus(folder: Path, size: int, vocab_size: int = 50_000) -> None:
    """Write two aligned files with `size` bytes in total; a smaller corpus is a prefix of a larger one.

    Words follow the Zipf–Mandelbrot law, with short words the most frequent. The median sentence has 20 words, and some
    have a hundred.
    """
    folder.mkdir()
    cumulative = np.cumsum(1 / (np.arange(vocab_size) + 2.7))
    word_table = np.searchsorted(cumulative / cumulative[-1], (np.arange(1 << 20) + 0.5) / (1 << 20))
    vocabularies = [np.array(_make_words(vocab_size, np.random.default_rng(seed)), dtype=object) for seed in range(2)]
    written = 0
    with open(folder / SIDES[0], "wb") as source, open(folder / SIDES[1], "wb") as target:
        for block in count():
            rng = np.random.default_rng([2, block])
            mean_lengths = rng.lognormal(3.0, 0.6, 50_000)
            for file, vocabulary in zip((source, target), vocabularies, strict=True):
                lengths = np.clip(mean_lengths * rng.lognormal(0, 0.15, len(mean_lengths)), 1, 120).astype(np.int64)
                ends = np.cumsum(lengths)
                words = vocabulary[word_table[rng.integers(0, 1 << 20, ends[-1])]].tolist()
                lines = [
                    " ".join(words[end - length : end]).capitalize()
                    for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)
                ]
                written += file.write((".\n".join(lines) + ".\n").encode())
            if written >= size:
                return


def read(folder: Path, memory: "MemorySampler") -> dict[str, Any]:
    """Read every pair through a filter."""
    return _count_filtered(folder, Filter(FILTER))


def read_without_duplicates(folder: Path, memory: "MemorySampler") -> dict[str, Any]:
    """Drop duplicates, the only filter whose memory grows with the corpus."""
    return _count_filtered(folder, Filter(FilterConfig(**{**FILTER.plain(), "drop_duplicates": True})))


def train_tokenizer(folder: Path, memory: "MemorySampler") -> dict[str, Any]:
    """Train a tokenizer on the first pairs."""
    pair_filter = Filter(FILTER)
    sources = (pair.source for pair in islice(_pairs(folder), TOKENIZER_PAIRS))
    targets = (pair.target for pair in islice(_pairs(folder, pair_filter), TOKENIZER_PAIRS))
    tokenizer, _ = train_pair(TokenizerConfig(vocab_size=32_000), sources, targets, shared=True)
    tokenizer.save(folder / "tokenizer.json")
    return {"items": pair_filter.stats.kept, "vocabulary": tokenizer.vocab_size}


def tokenize(folder: Path, memory: "MemorySampler") -> dict[str, Any]:
    """Tokenize every pair into a token store."""
    tokenizer = TextTokenizer.load(folder / "tokenizer.json")
    store = write_store(
        folder / "store", tokenize_pairs(tokenizer, _pairs(folder)), SIDES, "benchmark", tokenizer.vocab_size
    )
    # Counted by file size: reading the lengths from the store would need memory that writing does not.
    size = sum(file.stat().st_size for file in store.path.glob("*.tokens"))
    return {"items": len(store), "tokens": size // id_type(tokenizer.vocab_size).itemsize}


def make_batches(folder: Path, memory: "MemorySampler") -> dict[str, Any]:
    """Read 2,000 batches of 4,096 tokens per side from the store, whose pages become resident as they are read."""
    batches = TokenBatches(TokenStore(folder / "store"), 4096)
    mapped = sum(file.stat().st_size for file in (folder / "store").iterdir()) / 1e6
    memory.mark("planned")
    stream = batches.epochs()
    next(stream)
    memory.mark("first epoch drawn")
    token_counts = list(islice((batch.tokens[-1] for batch in stream), 1999))
    memory.mark("2,000 batches taken")
    result = {"items": batches.stats.items, "left_out": batches.stats.dropped, "store_mb": mapped}
    return {**result, "batches": 1 + len(token_counts), "padding": batches.stats.padding}


STAGES: dict[str, Callable[[Path, "MemorySampler"], dict[str, Any]]] = {
    "reading pairs with a filter": read,
    "reading pairs without duplicates": read_without_duplicates,
    "learning a tokenizer from 200,000 pairs": train_tokenizer,
    "tokenizing into a store": tokenize,
    "2,000 batches from the store": make_batches,
}


class MemorySampler(threading.Thread):
    """Samples the memory of this process: resident, and its anonymous part, which is not backed by files.

    Pages of a memory-mapped store count as resident while they are cached, but the kernel can drop them at any time.
    Peak resident memory is the kernel's figure (VmHWM), peak anonymous memory the maximum of the samples. `ru_maxrss`
    would not do: a process inherits it from its parent.
    """

    def __init__(self, interval: float = 0.02) -> None:
        super().__init__(daemon=True)
        self.interval = interval
        self.samples = {"seconds": array("d"), "resident": array("d"), "anonymous": array("d")}
        self.marks: dict[str, dict[str, float]] = {}
        self._start_time = time.perf_counter()
        self._stopped = threading.Event()
        self.mark("before")

    def run(self) -> None:
        while not self._stopped.wait(self.interval):
            self._sample()

    def mark(self, name: str) -> None:
        """Take a sample and keep it under a name."""
        self._sample()
        self.marks[name] = {f"{kind}_mb": round(self.samples[kind][-1], 1) for kind in ("resident", "anonymous")}

    def result(self, points: int = 12) -> dict[str, Any]:
        """Stop sampling; the peaks, the marks and `points` samples over time."""
        self._stopped.set()
        self.join()
        self.mark("after")
        indices = np.linspace(0, len(self.samples["seconds"]) - 1, points).round().astype(int)
        return {
            "seconds": self.samples["seconds"][-1],
            "peak_resident_mb": process_memory_mb()["VmHWM"],
            "peak_anonymous_mb": max(self.samples["anonymous"]),
            "marks": self.marks,
            "over_time": {name: [round(values[i], 1) for i in indices] for name, values in self.samples.items()},
        }

    def _sample(self) -> None:
        status = process_memory_mb()
        self.samples["seconds"].append(time.perf_counter() - self._start_time)
        self.samples["resident"].append(status["VmRSS"])
        self.samples["anonymous"].append(status["RssAnon"])


def measure_stage(stage: str, folder: Path) -> dict[str, Any]:
    """Run a stage in this process, which should be a fresh one."""
    memory = MemorySampler()
    memory.start()
    result = STAGES[stage](folder, memory)
    return {**result, **memory.result()}


def memory_of_stages(gigabytes: float) -> list[dict[str, Any]]:
    """Each stage on a corpus and on a tenth of it; growth is given in bytes per additional item."""
    cases = []
    with tempfile.TemporaryDirectory() as name:
        folders = {"tenth": Path(name) / "tenth", "whole": Path(name) / "whole"}
        for folder, size in zip(folders.values(), (gigabytes / 10, gigabytes), strict=True):
            write_corpus(folder, int(size * 1e9))
        for stage in STAGES:
            results = {size: run_in_subprocess(measure_stage, stage, folder) for size, folder in folders.items()}
            case: dict[str, Any] = {"case": f"memory, {stage}", "gigabytes": gigabytes, **results}
            tenth, whole = results.values()
            growth = {
                f"peak {kind}": whole[f"peak_{kind}_mb"] - tenth[f"peak_{kind}_mb"]
                for kind in ("resident", "anonymous")
            }
            for mark, sample in whole["marks"].items():
                growth[f"anonymous, {mark}"] = sample["anonymous_mb"] - tenth["marks"][mark]["anonymous_mb"]
            case["growth_mb"] = growth
            if more := whole["items"] - tenth["items"]:
                case["growth_bytes_a_further_item"] = {name: 1e6 * mb / more for name, mb in growth.items()}
            cases.append(log(case))
    return cases


def run_in_subprocess(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function in a fresh process and return its result."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def encoding_speed(tokenizer: Path, source: Path, target: Path, threads: int, repeats: int) -> dict[str, float]:
    """Tokens/s of tokenization. Call it in a fresh process: `tokenizers` reads its thread count only once."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    text_tokenizer, pairs = TextTokenizer.load(tokenizer), list(read_aligned(source, target))
    token_counts: list[int] = []

    def run() -> None:
        token_counts[:] = [0, 0]
        for first in range(0, len(pairs), CHUNK_PAIRS):
            for side, texts in enumerate(zip(*pairs[first : first + CHUNK_PAIRS], strict=True)):
                token_counts[side] += sum(map(len, text_tokenizer.encode_batch(texts)))

    (seconds,) = time_alternating([run], repeats, warmup=1)
    median = statistics.median(seconds)
    return {"tokens_per_second": sum(token_counts) / median, "target_tokens_per_second": token_counts[1] / median}


def throughput(source: Path, target: Path, steps: int) -> list[dict[str, Any]]:
    """Tokenizing, batching and training on the same pairs, in target tokens/s; each processes both sides."""
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, pairs = _prepare(Path(folder), source, target, 8000)
        path = tokenizer.save(Path(folder) / "tokenizer.json")
        encoding = {
            number: run_in_subprocess(encoding_speed, path, source, target, number, 5)
            for number in dict.fromkeys((1, threads))
        }
        training, batching = training_and_batching(tokenizer, pairs, steps)
    cases = []
    for name, result in {
        **{f"tokenizing, threads: {number}": result for number, result in encoding.items()},
        "batching, threads: 1": batching,
    }.items():
        rate = result["target_tokens_per_second"]
        factors = {
            "over_training": rate / training["target_tokens_per_second"],
            "over_h200": rate / H200_TOKENS_PER_SECOND,
        }
        cases.append(log({"case": f"speed, {name}", **result, **factors}))
    return [log({"case": f"speed, training 3+3 layers, width 256, threads: {threads}", **training}), *cases]


def training_and_batching(
    tokenizer: TextTokenizer, pairs: TokenStore, steps: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Target tokens/s of training steps and of epochs of batches, timed alternately."""
    torch.manual_seed(0)
    stack = StackConfig(layers=3, attention=MultiHeadConfig(heads=4), feed_forward=FeedForwardConfig(hidden=1024))
    model = EncoderDecoderConfig(vocab_size=tokenizer.vocab_size, width=256, encoder=stack, decoder=stack).build()
    optimizer = OptimizerConfig().build(model)
    stream = TokenBatches(pairs, 4096).epochs()
    batches = TokenBatches(pairs, 4096, seed=1)
    step_tokens, epoch_tokens = [], []

    def step() -> None:
        batch = next(stream)
        inputs, lengths = batch.target[:, :-1], (batch.target_lengths - 1).clamp(min=0)
        logits = model(batch.source, inputs, source_lengths=batch.source_lengths, target_lengths=lengths)
        loss = cross_entropy(logits, batch.target[:, 1:], lengths, label_smoothing=0.1)
        loss.mean.backward()
        optimizer.step(1e-4)
        optimizer.zero_grad()
        step_tokens.append(_predicted_tokens(batch))

    def epoch() -> None:
        epoch_tokens.append(sum(map(_predicted_tokens, batches.epoch())))

    step_seconds, epoch_seconds = time_alternating([step, epoch], steps, warmup=2)
    training = {"target_tokens_per_second": sum(step_tokens[-steps:]) / sum(step_seconds), "steps": steps}
    batching = {"target_tokens_per_second": sum(epoch_tokens[-steps:]) / sum(epoch_seconds), "epochs": steps}
    return training, batching | {"batches_per_second": steps * len(batches) / sum(epoch_seconds)}


def padding(source: Path, target: Path) -> list[dict[str, Any]]:
    """The fraction of padding by batch size and number of length buckets, with a shared vocabulary of 10,000."""
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        _, pairs = _prepare(Path(folder), source, target, 10_000)
        for tokens in (4096, 8192):
            for buckets in (16, 24, 32):
                stats = TokenBatches(pairs, tokens, length_buckets=buckets).stats
                case = {"case": f"padding, {tokens} tokens, {buckets} shapes", "padding": stats.padding}
                cases.append(log({**case, "items": stats.items, "batches": stats.batches, "shapes": stats.shapes}))
    return cases


def tokenize_pairs(tokenizer: TextTokenizer, pairs: Iterable[Pair]) -> Iterator[tuple[list[int], list[int]]]:
    """Token ids as in training: the source with EOS, the target with BOS and EOS."""
    bos, eos = tokenizer.bos, tokenizer.eos
    assert bos is not None
    assert eos is not None
    pairs = iter(pairs)
    while chunk := list(islice(pairs, CHUNK_PAIRS)):
        sources, targets = (tokenizer.encode_batch(texts) for texts in zip(*chunk, strict=True))
        for source, target in zip(sources, targets, strict=True):
            yield [*source, eos], [bos, *target, eos]


def _prepare(folder: Path, source: Path, target: Path, vocab_size: int) -> tuple[TextTokenizer, TokenStore]:
    """Train a shared BPE tokenizer on all pairs and tokenize them into a store."""
    pairs = list(read_aligned(source, target))
    sources, targets = zip(*pairs, strict=True)
    tokenizer, _ = train_pair(TokenizerConfig(vocab_size=vocab_size), sources, targets, shared=True)
    return tokenizer, write_store(
        folder / "store", tokenize_pairs(tokenizer, pairs), SIDES, "benchmark", tokenizer.vocab_size
    )


def _count_filtered(folder: Path, pair_filter: Filter) -> dict[str, Any]:
    for _ in _pairs(folder, pair_filter):
        pass
    return {"items": pair_filter.stats.total, "kept": pair_filter.stats.kept}


def _pairs(folder: Path, pair_filter: Filter | None = None) -> Iterator[Pair]:
    return (pair_filter or Filter(FILTER)).apply(read_aligned(folder / SIDES[0], folder / SIDES[1]))


def _predicted_tokens(batch: Batch) -> int:
    """Target tokens that a model predicts: all but the BOS of each row."""
    return batch.tokens[-1] - int((batch.items >= 0).sum())


def _make_words(number: int, rng: np.random.Generator) -> list[str]:
    """Distinct words made of syllables, shorter words first."""
    onsets, vowels, codas = (list(part) for part in ("bdfghklmnprstvwz", "aeiouäö", " nrslt"))
    words: dict[str, None] = {}
    while len(words) < number:
        syllables = 1 + int(np.log10(1 + len(words)) / 1.8)  # two from the 63rd word on, three from the 3,981st
        draws = rng.integers(0, 1 << 16, (syllables, 3)).tolist()
        parts = [onsets[a % len(onsets)] + vowels[b % len(vowels)] + codas[c % len(codas)] for a, b, c in draws]
        words["".join(parts).replace(" ", "")] = None
    return list(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the text, fewer steps, no results written")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the generated corpus (default: 2)")
    args = parser.parse_args()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    with tempfile.TemporaryDirectory() as temporary:
        folder = find_dataset("multi30k", TRAIN_FILES)
        if folder is None:
            write_corpus(Path(temporary) / "text", 8_000_000)
            source, target = (Path(temporary) / "text" / side for side in SIDES)
        else:
            source, target = (folder / name for name in TRAIN_FILES)
        text = log({"case": "text of speed and padding", "text": "generated" if folder is None else "multi30k en-de"})
        cases = [text, *throughput(source, target, steps=4 if args.quick else 20), *padding(source, target)]
    cases += memory_of_stages(args.gigabytes / (10 if args.quick else 1))
    if not args.quick:
        print(f"Results written to {write_results('data-cpu', cases)}")


if __name__ == "__main__":
    main()
