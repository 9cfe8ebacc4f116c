"""The figures of docs/seeds.md that come from running small models: spread, residuals by depth, pre- against post-norm.

    python benchmarks/seeds.py

The tests under tests/seeds assert what these figures mean; here they are computed with the tests' own functions and
written down, so that the page quotes a file and not somebody's memory. About half a minute on a CPU.
"""

import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from common import say, write_results

from regard.attention import ScaledDot

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.seeds.test_parts import copied, gradient_of_first_over_last, likeness_of_words

DEPTHS = (6, 24, 96)


def residuals() -> list[dict[str, Any]]:
    """The first layer's gradient over the last's, and how alike the words of a sentence become."""
    cases = []
    for layers in DEPTHS:
        kept = [gradient_of_first_over_last("pre", layers, seed) for seed in range(3)]
        without = [gradient_of_first_over_last("none", layers, seed) for seed in range(12)]
        case = {"case": f"gradient of the first layer over the last, {layers} layers", "layers": layers}
        found = {"with_residuals": kept, "without_residuals_median": statistics.median(without), "seeds": 12}
        cases.append(say({**case, **found}))
    alike = {"without_residuals": likeness_of_words("none"), "with_residuals": likeness_of_words("pre")}
    return [*cases, say({"case": "mean cosine between words after 6 layers", **alike})]


def orders() -> list[dict[str, Any]]:
    """Losses of three seeds at the end of learning to copy; guessing gives 2.30."""
    cases = []
    for rate, steps, even_start in ((0.01, 150, False), (0.001, 100, False), (0.001, 100, True)):
        pre = copied("pre", rate, steps, even_start=even_start)
        case = {"case": f"copy at {rate}, {steps} steps{', same first weights' if even_start else ''}"}
        cases.append(say({**case, "pre": pre, "post": copied("post", rate, steps)}))
    return cases


def spread() -> list[dict[str, Any]]:
    """The standard deviation of q·k / √d over a million pairs of random vectors, by width."""
    found = {}
    for width in (16, 32, 64, 128, 256, 512, 1024):
        torch.manual_seed(0)
        query, key, scale = ScaledDot()(torch.randn(1024, width), torch.randn(1024, width))
        found[str(width)] = float((scale * (query @ key.mT)).std())
    return [say({"case": "standard deviation of scaled scores by width", "widths": found})]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"written: {write_results('seeds-cpu', [*spread(), *residuals(), *orders()])}")
