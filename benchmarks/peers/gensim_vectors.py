"""gensim's side of benchmarks/vector_files.py. It runs in gensim's own environment, without regard.

    python gensim_vectors.py FOLDER

FOLDER has vectors that regard wrote (ours.txt, ours.bin) and, where they could be had, the test sets. What gensim
reads, writes, answers and scores is printed as one JSON object.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gensim import __version__
from gensim.models import KeyedVectors

TOP = 10


def main() -> None:
    folder = Path(sys.argv[1])
    asked = json.loads((folder / "asked.json").read_text("utf-8"))
    found: dict[str, Any] = {"version": __version__}
    for name, binary in (("txt", False), ("bin", True)):
        seconds, keyed = timed(
            lambda n=name, b=binary: KeyedVectors.load_word2vec_format(folder / f"ours.{n}", binary=b)
        )
        found[f"load_{name}"] = seconds
        found[f"near_{name}"] = [keyed.similar_by_word(word, TOP) for word in asked["near"]]
        keyed.save_word2vec_format(folder / f"theirs.{name}", binary=binary)
    keyed.save_word2vec_format(folder / "theirs.glove.txt", write_header=False)
    found["analogy"] = [keyed.most_similar(positive=[b, c], negative=[a], topn=TOP) for a, b, c in asked["analogies"]]
    found["odd"] = [keyed.doesnt_match(words) for words in asked["odd"]]
    for name, file in asked["pairs"].items():
        pearson, spearman, unknown = keyed.evaluate_word_pairs(file, restrict_vocab=None)
        found[name] = {"spearman": spearman[0], "pearson": pearson[0], "unknown": unknown}
    for name, limit in asked["limits"].items():
        accuracy, sections = keyed.evaluate_word_analogies(asked["questions"], restrict_vocab=limit or len(keyed))
        found[name] = {"accuracy": accuracy} | {
            one["section"]: [len(one["correct"]), len(one["correct"]) + len(one["incorrect"])] for one in sections
        }
    found["near_seconds"] = {}
    for dimension in asked["dimensions"]:
        rng = np.random.default_rng(0)
        many = KeyedVectors(dimension)
        words = [f"w{row}" for row in range(asked["words"])]
        many.add_vectors(words, rng.standard_normal((asked["words"], dimension), dtype=np.float32))
        many.fill_norms()
        found["near_seconds"][dimension] = [
            timed(partial(many.similar_by_word, word, TOP))[0] for word in words[: asked["repeats"]]
        ]
    print(json.dumps(found, default=float))


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    main()
