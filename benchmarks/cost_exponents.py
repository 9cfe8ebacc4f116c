"""How the time of single layers grows with the length n and the width d, against the exponents of their formulas.

`python benchmarks/cost_exponents.py` times forward and backward of self-attention, a recurrent layer (LSTM) and a gated
convolution on one thread, and attention without projections. One size is doubled again and again while the others stay
fixed; the slope of log time over log size, by least squares, is the measured exponent. Sizes are such that one term
dominates (`dominant`: the smallest fraction of the FLOPs that it has), as the slope of a sum lies between the exponents
of its terms. The slope of the formula's own FLOPs at the same sizes therefore stands beside it.

Times are CPU times of the process, the fastest of several rounds, so that a busy machine disturbs them little.

Memory has an exponent too, that of a full table of n-grams: |T|^order. Beside it stand the n-grams that occur in the
English sentences that ship with regard (`tatoeba-en-tr-small`), split into words. It
writes results/cost-exponents-cpu.json in less than a minute of one core.
"""

import gzip
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from benchmarks.common import log, write_results
from torch import Tensor
from torch.nn import functional

from regard.attention import Context, Full, LayerState, MultiHeadConfig
from regard.cost.expression import Expression
from regard.cost.formulas import entries, entry_bytes, full_table
from regard.cost.formulas.parts import attention, d, k, linear, n
from regard.model.before.convolutional.layers import GatedConvolution
from regard.model.before.ngram.model import estimate_ngrams
from regard.model.before.recurrent.layers import RecurrentLayer

ROUNDS = 8
KERNEL = 3
HALF_OCTAVE = 2**0.5
ORDERS = (1, 2, 3, 4, 5)
TEXT = files("regard") / "data/shipped/tatoeba-en-tr-small/train.tsv.gz"


@dataclass(frozen=True)
class Series:
    """A layer at several sizes, all but one of which are fixed."""

    case: str
    build: Callable[[int], Callable[[Tensor], Tensor]]
    """The layer of a width: from (rows, n, d) to an output of any shape."""
    flops: Expression
    dominant: Expression
    """The term whose exponent is expected."""
    varies: str
    sizes: Sequence[int]
    fixed: dict[str, int]
    rows: int = 1

    @property
    def expected(self) -> int:
        return self.dominant.degree(self.varies)


def self_attention(width: int) -> Callable[[Tensor], Tensor]:
    layer = MultiHeadConfig(heads=1).self_attention(width, Full(), None)
    return lambda x: layer(x, Context(x[..., 0].detach()), LayerState(None, None))


def attention_alone(width: int) -> Callable[[Tensor], Tensor]:
    """softmax(X·Xᵀ/√d)·X by two matmuls."""
    return lambda x: torch.bmm(functional.softmax(torch.bmm(x, x.mT) / width**0.5, dim=-1), x)


def lstm(width: int) -> Callable[[Tensor], Tensor]:
    layer = RecurrentLayer("lstm", width, width)
    return lambda x: layer(x)[0]


def convolution(width: int) -> Callable[[Tensor], Tensor]:
    layer = GatedConvolution(width, width, KERNEL)
    return lambda x: layer.centered(x, None)


SCORES, PROJECTIONS = attention(n, n, d), linear(n, d, d) * 4
RECURRENT = linear(n, d * 2, d * 4)
CONVOLUTION = linear(n, k * d, d * 2)


def geometric(first: int, count: int, ratio: float = HALF_OCTAVE) -> list[int]:
    """Multiples of 8."""
    return [8 * round(first * ratio**step / 8) for step in range(count)]


SERIES = [
    Series("self-attention", self_attention, SCORES + PROJECTIONS, SCORES, "n", geometric(2048, 5), {"d": 64}),
    Series("recurrent (LSTM)", lstm, RECURRENT, RECURRENT, "n", geometric(1024, 6), {"d": 256}),
    Series("gated convolution", convolution, CONVOLUTION, CONVOLUTION, "n", geometric(2048, 7), {"d": 128}),
    Series("attention alone", attention_alone, SCORES, SCORES, "d", geometric(256, 5), {"n": 1024}),
    Series(
        "self-attention", self_attention, SCORES + PROJECTIONS, PROJECTIONS, "d", geometric(512, 5), {"n": 64}, rows=4
    ),
    Series("recurrent (LSTM)", lstm, RECURRENT, RECURRENT, "d", geometric(256, 5), {"n": 32}, rows=32),
    Series("gated convolution", convolution, CONVOLUTION, CONVOLUTION, "d", geometric(256, 5), {"n": 512}),
]


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The exponent of a power law, by least squares over logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def seconds(call: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """CPU time of forward and backward."""
    start = time.process_time()
    call(x).sum().backward()
    return time.process_time() - start


def measure(series: Series) -> dict[str, Any]:
    """Every round times each size once, so that slow moments hit all of them."""
    values = [{**series.fixed, series.varies: size, "k": KERNEL} for size in series.sizes]
    calls = [series.build(each["d"]) for each in values]
    inputs = [torch.randn(series.rows, each["n"], each["d"], requires_grad=True) for each in values]
    best = [math.inf] * len(values)
    for call, x in zip(calls, inputs, strict=True):
        seconds(call, x)
    for _ in range(ROUNDS):
        best = [min(old, seconds(*each)) for old, each in zip(best, zip(calls, inputs, strict=True), strict=True)]
    flops = [3 * series.rows * series.flops(each) for each in values]
    return {
        "case": f"{series.case} in {series.varies}",
        "layer": series.case,
        "varies": series.varies,
        "formula": str(series.flops),
        "term": str(series.dominant),
        "sizes": list(series.sizes),
        "fixed": series.fixed,
        "rows": series.rows,
        "dominant": min(series.dominant(each) / series.flops(each) for each in values),
        "expected_exponent": series.expected,
        "flops_exponent": slope(series.sizes, flops),
        "measured_exponent": slope(series.sizes, best),
        "milliseconds": [1000 * each for each in best],
        "gflops_a_second": [count / each / 1e9 for count, each in zip(flops, best, strict=True)],
        "rounds": ROUNDS,
    }


def ngram_table(order: int) -> dict[str, Any]:
    """The entries of a full table, and of one that is estimated."""
    with gzip.open(str(TEXT), "rt", encoding="utf-8") as file:
        sentences = [line.split("\t")[0].lower().split() for line in file]
    vocabulary = {word: number for number, word in enumerate(sorted({word for each in sentences for word in each}))}
    documents = [[vocabulary[word] for word in sentence] for sentence in sentences]
    config = estimate_ngrams(documents, order, len(vocabulary)).config
    return {
        "case": f"n-grams of order {order}",
        "words": sum(map(len, documents)),
        "vocabulary": len(vocabulary),
        "formula": str(full_table(config)),
        "full_table": full_table(config)({"|T|": len(vocabulary)}),
        "entries": entries(config),
        "bytes": entry_bytes(config),
    }


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    timed = [log(measure(series)) for series in SERIES]
    write_results("cost-exponents-cpu", [*timed, *(log(ngram_table(order)) for order in ORDERS)])


if __name__ == "__main__":
    main()
