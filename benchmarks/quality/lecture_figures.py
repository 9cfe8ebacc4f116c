"""Compute the figures of docs/lectures.md that come from small models.

    python benchmarks/quality/lecture_figures.py

These are the standard deviation of attention scores, gradients and similarities with and without residual connections,
and losses with pre-norm and post-norm. The tests under tests/seeds assert what these figures show. This script calls
the tests' own functions and writes their results to benchmarks/results/seeds-cpu.json, which the page quotes. It takes
about half a minute on a CPU.
"""

import argparse
import statistics
import sys
from typing import Any

import torch
from benchmarks.common import log, write_results
from tests.seeds.test_parts import copied, gradient_of_first_over_last, word_similarity

from regard.attention import ScaledDot

DEPTHS = (6, 24, 96)


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    print(f"written: {write_results('seeds-cpu', [*score_std(), *residual_connections(), *norm_positions()])}")
    return 0


def residual_connections() -> list[dict[str, Any]]:
    """The first layer's gradient divided by the last layer's, and the similarity of the tokens of a sentence."""
    cases = []
    for layers in DEPTHS:
        with_residuals = [gradient_of_first_over_last("pre", layers, seed) for seed in range(3)]
        without = [gradient_of_first_over_last("none", layers, seed) for seed in range(12)]
        case = {"case": f"gradient of the first layer over the last, {layers} layers", "layers": layers}
        ratios = {
            "with_residuals": with_residuals,
            "without_residuals_median": statistics.median(without),
            "seeds": 12,
        }
        cases.append(log({**case, **ratios}))
    cosines = {"without_residuals": word_similarity("none"), "with_residuals": word_similarity("pre")}
    return [*cases, log({"case": "mean cosine between words after 6 layers", **cosines})]


def norm_positions() -> list[dict[str, Any]]:
    """Final losses of three seeds on a copy task, with pre-norm and post-norm; guessing gives 2.30."""
    cases = []
    for lr, steps, even_start in ((0.01, 150, False), (0.001, 100, False), (0.001, 100, True)):
        pre = copied("pre", lr, steps, even_start=even_start)
        case = {"case": f"copy at {lr}, {steps} steps{', same first weights' if even_start else ''}"}
        cases.append(log({**case, "pre": pre, "post": copied("post", lr, steps)}))
    return cases


def score_std() -> list[dict[str, Any]]:
    """The standard deviation of q·k / √d over a million pairs of random vectors, by width."""
    widths = {}
    for width in (16, 32, 64, 128, 256, 512, 1024):
        torch.manual_seed(0)
        query, key, scale = ScaledDot()(torch.randn(1024, width), torch.randn(1024, width))
        widths[str(width)] = float((scale * (query @ key.mT)).std())
    return [log({"case": "standard deviation of scaled scores by width", "widths": widths})]


if __name__ == "__main__":
    sys.exit(main())
