"""What the data path costs: memory while a large corpus streams through it, speed beside training, padding.

    python benchmarks/data.py                   2 GB of generated text: a quarter of an hour on two cores, 4 GB of disk
    python benchmarks/data.py --quick           the same in little: about two minutes, nothing is written
    python benchmarks/data.py --gigabytes 20

Memory is measured in a process of its own for each piece of work, once for the whole corpus and once for a tenth of it:
what streams needs the same for both, and what does not shows as bytes an item. Speed and padding are those of Multi30k
where REGARD_DATA has it, else of generated text. Linux only: memory is read from /proc.
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
from common import memory_status, say, time_in_turn, write_results

from regard.attention import HeadsConfig
from regard.data import registry, store
from regard.data.batch import Batch, TokenBatches
from regard.data.filter import Filter, FilterConfig
from regard.data.pairs import Pair, read_aligned
from regard.data.store import TokenStore
from regard.data.store_writer import id_type
from regard.data.tokenizer import TextTokenizer
from regard.data.tokenizer_training import TokenizerConfig, train_pair
from regard.model import EncoderDecoderConfig, FeedForwardConfig, StackConfig
from regard.train.loss import word_loss
from regard.train.optimiser import OptimiserConfig

H200 = 580_000
"""Target tokens/s of torch.nn.Transformer (base size, compiled) training on one H200: what data must keep up with."""

TRAIN = ("train.en.gz", "train.de.gz")
SIDES = ("source", "target")
CHUNK = 4096  # pairs tokenised at once
SENSIBLE = FilterConfig(longest_words=80, largest_ratio=3, drop_identical=True)
SAMPLE = 200_000  # pairs a tokenizer learns from


def write_corpus(folder: Path, size: int, words: int = 50_000) -> None:
    """Two aligned files of `size` bytes in all, the smaller always the beginning of the larger.

    Words are drawn by the law of Zipf and Mandelbrot, the frequent ones short; sentences have 20 words in the middle
    and sometimes a hundred.
    """
    folder.mkdir()
    shares = np.cumsum(1 / (np.arange(words) + 2.7))
    drawn_from = np.searchsorted(shares / shares[-1], (np.arange(1 << 20) + 0.5) / (1 << 20))
    vocabularies = [np.array(_words(words, np.random.default_rng(number)), dtype=object) for number in range(2)]
    written = 0
    with open(folder / SIDES[0], "wb") as source, open(folder / SIDES[1], "wb") as target:
        for block in count():
            random = np.random.default_rng([2, block])
            middle = random.lognormal(3.0, 0.6, 50_000)
            for file, vocabulary in zip((source, target), vocabularies, strict=True):
                lengths = np.clip(middle * random.lognormal(0, 0.15, len(middle)), 1, 120).astype(np.int64)
                ends = np.cumsum(lengths)
                drawn = vocabulary[drawn_from[random.integers(0, 1 << 20, ends[-1])]].tolist()
                lines = [
                    " ".join(drawn[end - length : end]).capitalize()
                    for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)
                ]
                written += file.write((".\n".join(lines) + ".\n").encode())
            if written >= size:
                return


def read(folder: Path, memory: "Memory") -> dict[str, Any]:
    """Every pair through a filter."""
    return _sift(folder, Filter(SENSIBLE))


def read_without_duplicates(folder: Path, memory: "Memory") -> dict[str, Any]:
    """The one filter that has to remember."""
    return _sift(folder, Filter(FilterConfig(**{**SENSIBLE.plain(), "drop_duplicates": True})))


def learn(folder: Path, memory: "Memory") -> dict[str, Any]:
    """A tokenizer from the first pairs."""
    sieve = Filter(SENSIBLE)
    sources = (pair.source for pair in islice(_pairs(folder), SAMPLE))
    targets = (pair.target for pair in islice(_pairs(folder, sieve), SAMPLE))
    tokenizer, _ = train_pair(TokenizerConfig(vocabulary=32_000), sources, targets, shared=True)
    tokenizer.save(folder / "tokenizer.json")
    return {"items": sieve.report.kept, "vocabulary": tokenizer.vocabulary}


def tokenise(folder: Path, memory: "Memory") -> dict[str, Any]:
    """Every pair into a store."""
    tokenizer = TextTokenizer.load(folder / "tokenizer.json")
    made = store.write(folder / "store", encoded(tokenizer, _pairs(folder)), SIDES, "benchmark", tokenizer.vocabulary)
    # Counted by the files' sizes: to ask the store for lengths would take memory that writing does not need.
    size = sum(file.stat().st_size for file in made.path.glob("*.tokens"))
    return {"items": len(made), "tokens": size // id_type(tokenizer.vocabulary).itemsize}


def batch(folder: Path, memory: "Memory") -> dict[str, Any]:
    """2,000 batches of 4,096 tokens a side from the store. Its pages count as resident once they have been touched."""
    batches = TokenBatches(TokenStore(folder / "store"), 4096)
    mapped = sum(file.stat().st_size for file in (folder / "store").iterdir()) / 1e6
    memory.mark("planned")
    stream = batches.epochs()
    next(stream)
    memory.mark("first epoch drawn")
    taken = list(islice((batch.tokens[-1] for batch in stream), 1999))
    memory.mark("2,000 batches taken")
    facts = {"items": batches.report.items, "left_out": batches.report.left_out, "store_mb": mapped}
    return {**facts, "batches": 1 + len(taken), "padding": batches.report.padding}


STAGES: dict[str, Callable[[Path, "Memory"], dict[str, Any]]] = {
    "reading pairs with a filter": read,
    "reading pairs without duplicates": read_without_duplicates,
    "learning a tokenizer from 200,000 pairs": learn,
    "tokenising into a store": tokenise,
    "2,000 batches from the store": batch,
}


class Memory(threading.Thread):
    """This process's memory over time: resident, and the anonymous part of it, which no file stands behind.

    A mapped store counts as resident while the system has its pages at hand; it is not needed, and goes when room is
    short. The peak of resident memory is the kernel's own (VmHWM); that of anonymous memory is the greatest of the
    samples. `ru_maxrss` is not used: a process inherits there the peak of the one that started it.
    """

    def __init__(self, interval: float = 0.02) -> None:
        super().__init__(daemon=True)
        self.interval = interval
        self.samples = {"seconds": array("d"), "resident": array("d"), "anonymous": array("d")}
        self.marks: dict[str, dict[str, float]] = {}
        self._begin = time.perf_counter()
        self._over = threading.Event()
        self.mark("before")

    def run(self) -> None:
        while not self._over.wait(self.interval):
            self._sample()

    def mark(self, name: str) -> None:
        """Keep a sample under a name."""
        self._sample()
        self.marks[name] = {f"{what}_mb": round(self.samples[what][-1], 1) for what in ("resident", "anonymous")}

    def result(self, points: int = 12) -> dict[str, Any]:
        self._over.set()
        self.join()
        self.mark("after")
        chosen = np.linspace(0, len(self.samples["seconds"]) - 1, points).round().astype(int)
        return {
            "seconds": self.samples["seconds"][-1],
            "peak_resident_mb": memory_status()["VmHWM"],
            "peak_anonymous_mb": max(self.samples["anonymous"]),
            "marks": self.marks,
            "over_time": {name: [round(values[i], 1) for i in chosen] for name, values in self.samples.items()},
        }

    def _sample(self) -> None:
        status = memory_status()
        self.samples["seconds"].append(time.perf_counter() - self._begin)
        self.samples["resident"].append(status["VmRSS"])
        self.samples["anonymous"].append(status["RssAnon"])


def measured(stage: str, folder: Path) -> dict[str, Any]:
    """Run a stage in this process, which has done nothing before."""
    memory = Memory()
    memory.start()
    facts = STAGES[stage](folder, memory)
    return {**facts, **memory.result()}


def memory_of_stages(gigabytes: float) -> list[dict[str, Any]]:
    """Each stage over a corpus and over a tenth of it; what grows is given as bytes for each further item."""
    cases = []
    with tempfile.TemporaryDirectory() as place:
        folders = {"tenth": Path(place) / "tenth", "whole": Path(place) / "whole"}
        for folder, size in zip(folders.values(), (gigabytes / 10, gigabytes), strict=True):
            write_corpus(folder, int(size * 1e9))
        for stage in STAGES:
            found = {name: alone(measured, stage, folder) for name, folder in folders.items()}
            case: dict[str, Any] = {"case": f"memory, {stage}", "gigabytes": gigabytes, **found}
            tenth, whole = found.values()
            growth = {
                f"peak {what}": whole[f"peak_{what}_mb"] - tenth[f"peak_{what}_mb"]
                for what in ("resident", "anonymous")
            }
            for mark, then in whole["marks"].items():
                growth[f"anonymous, {mark}"] = then["anonymous_mb"] - tenth["marks"][mark]["anonymous_mb"]
            case["growth_mb"] = growth
            if more := whole["items"] - tenth["items"]:
                case["growth_bytes_a_further_item"] = {what: 1e6 * grown / more for what, grown in growth.items()}
            cases.append(say(case))
    return cases


def alone(function: Callable[..., Any], *arguments: object) -> Any:
    """A function's result from a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def encoding_speed(tokenizer: Path, source: Path, target: Path, threads: int, repeats: int) -> dict[str, float]:
    """Tokens/s of a fresh process; the library takes its number of threads from the environment, once."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    words, pairs = TextTokenizer.load(tokenizer), list(read_aligned(source, target))
    sizes: list[int] = []

    def run() -> None:
        sizes[:] = [0, 0]
        for first in range(0, len(pairs), CHUNK):
            for side, texts in enumerate(zip(*pairs[first : first + CHUNK], strict=True)):
                sizes[side] += sum(map(len, words.encode_batch(texts)))

    (seconds,) = time_in_turn([run], repeats, warm=1)
    middle = statistics.median(seconds)
    return {"tokens_per_second": sum(sizes) / middle, "target_tokens_per_second": sizes[1] / middle}


def speed(source: Path, target: Path, steps: int) -> list[dict[str, Any]]:
    """Tokenising, batching and training over the same pairs, in target tokens/s: each has both sides to work on."""
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as place:
        tokenizer, pairs = _prepare(Path(place), source, target, 8000)
        saved = tokenizer.save(Path(place) / "tokenizer.json")
        encoding = {
            number: alone(encoding_speed, saved, source, target, number, 5) for number in dict.fromkeys((1, threads))
        }
        trained, passed = training_and_batching(tokenizer, pairs, steps)
    cases = []
    for name, found in {
        **{f"tokenising, threads: {number}": found for number, found in encoding.items()},
        "batching, threads: 1": passed,
    }.items():
        rate = found["target_tokens_per_second"]
        factors = {"over_training": rate / trained["target_tokens_per_second"], "over_h200": rate / H200}
        cases.append(say({"case": f"speed, {name}", **found, **factors}))
    return [say({"case": f"speed, training 3+3 layers, width 256, threads: {threads}", **trained}), *cases]


def training_and_batching(
    tokenizer: TextTokenizer, pairs: TokenStore, steps: int
) -> tuple[dict[str, float], dict[str, float]]:
    """A training step and an epoch of batches, in turn."""
    torch.manual_seed(0)
    stack = StackConfig(layers=3, attention=HeadsConfig(heads=4), feed_forward=FeedForwardConfig(hidden=1024))
    model = EncoderDecoderConfig(vocabulary=tokenizer.vocabulary, width=256, encoder=stack, decoder=stack).build()
    optimiser = OptimiserConfig().build(model)
    ready = TokenBatches(pairs, 4096)
    stream = ready.epochs()
    passing = TokenBatches(pairs, 4096, seed=1)
    step_tokens, epoch_tokens = [], []

    def step() -> None:
        batch = next(stream)
        inputs, lengths = batch.target[:, :-1], (batch.target_lengths - 1).clamp(min=0)
        logits = model(batch.source, inputs, source_lengths=batch.source_lengths, target_lengths=lengths)
        loss = word_loss(logits, batch.target[:, 1:], lengths, smoothing=0.1)
        loss.mean.backward()
        optimiser.step(1e-4)
        optimiser.forget_gradients()
        step_tokens.append(_words_to_write(batch))

    def epoch() -> None:
        epoch_tokens.append(sum(map(_words_to_write, passing.epoch())))

    training, batching = time_in_turn([step, epoch], steps, warm=2)
    trained = {"target_tokens_per_second": sum(step_tokens[-steps:]) / sum(training), "steps": steps}
    passed = {"target_tokens_per_second": sum(epoch_tokens[-steps:]) / sum(batching), "epochs": steps}
    return trained, passed | {"batches_per_second": steps * len(passing) / sum(batching)}


def padding(source: Path, target: Path) -> list[dict[str, Any]]:
    """The share of cells that hold no token: one vocabulary of 10,000 for both sides, start and end included."""
    cases = []
    with tempfile.TemporaryDirectory() as place:
        _, pairs = _prepare(Path(place), source, target, 10_000)
        for tokens in (4096, 8192):
            for shapes in (16, 24, 32):
                report = TokenBatches(pairs, tokens, shapes=shapes).report
                case = {"case": f"padding, {tokens} tokens, {shapes} shapes", "padding": report.padding}
                cases.append(say({**case, "items": report.items, "batches": report.batches, "shapes": report.shapes}))
    return cases


def encoded(tokenizer: TextTokenizer, pairs: Iterable[Pair]) -> Iterator[tuple[list[int], list[int]]]:
    """Ids as training sees them: the source with its end, the target with start and end."""
    start, end = tokenizer.start, tokenizer.end
    assert start is not None
    assert end is not None
    pairs = iter(pairs)
    while chunk := list(islice(pairs, CHUNK)):
        sources, targets = (tokenizer.encode_batch(texts) for texts in zip(*chunk, strict=True))
        for source, target in zip(sources, targets, strict=True):
            yield [*source, end], [start, *target, end]


def _prepare(place: Path, source: Path, target: Path, vocabulary: int) -> tuple[TextTokenizer, TokenStore]:
    """A shared BPE vocabulary learnt from all pairs, and their tokens in a store."""
    pairs = list(read_aligned(source, target))
    sources, targets = zip(*pairs, strict=True)
    tokenizer, _ = train_pair(TokenizerConfig(vocabulary=vocabulary), sources, targets, shared=True)
    return tokenizer, store.write(place / "store", encoded(tokenizer, pairs), SIDES, "benchmark", tokenizer.vocabulary)


def _sift(folder: Path, sieve: Filter) -> dict[str, Any]:
    for _ in _pairs(folder, sieve):
        pass
    return {"items": sieve.report.total, "kept": sieve.report.kept}


def _pairs(folder: Path, sieve: Filter | None = None) -> Iterator[Pair]:
    return (sieve or Filter(SENSIBLE)).apply(read_aligned(folder / SIDES[0], folder / SIDES[1]))


def _words_to_write(batch: Batch) -> int:
    """Target tokens that a model learns to write: all but the start of each row."""
    return batch.tokens[-1] - int((batch.items >= 0).sum())


def _words(number: int, random: np.random.Generator) -> list[str]:
    """Different words of syllables, the shorter first."""
    onsets, vowels, codas = (list(part) for part in ("bdfghklmnprstvwz", "aeiouäö", " nrslt"))
    found: dict[str, None] = {}
    while len(found) < number:
        syllables = 1 + int(np.log10(1 + len(found)) / 1.8)  # two from the 63rd word on, three from the 3,981st
        draws = random.integers(0, 1 << 16, (syllables, 3)).tolist()
        parts = [onsets[a % len(onsets)] + vowels[b % len(vowels)] + codas[c % len(codas)] for a, b, c in draws]
        found["".join(parts).replace(" ", "")] = None
    return list(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the text and fewer steps; nothing is written")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the generated corpus")
    arguments = parser.parse_args()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    with tempfile.TemporaryDirectory() as place:
        folder = registry.find("multi30k", TRAIN)
        if folder is None:
            write_corpus(Path(place) / "text", 8_000_000)
            source, target = (Path(place) / "text" / side for side in SIDES)
        else:
            source, target = (folder / name for name in TRAIN)
        text = say({"case": "text of speed and padding", "text": "generated" if folder is None else "multi30k en-de"})
        cases = [text, *speed(source, target, steps=4 if arguments.quick else 20), *padding(source, target)]
    cases += memory_of_stages(arguments.gigabytes / (10 if arguments.quick else 1))
    if not arguments.quick:
        print(f"written: {write_results('data-cpu', cases)}")


if __name__ == "__main__":
    main()
