"""gensim's side of benchmarks/vector_files.py. It runs in gensim's own environment, without regard.

    python gensim_vectors.py FOLDER

FOLDER has vectors that regard wrote (ours.txt, ours.bin) and asked.json, which says what to do with them. What gensim
reads, writes, answers and scores is printed as one JSON object. Then a line on standard input with a number of random
vectors, their dimension and a number of searches is answered with their times, one at a time.
"""

import json
import sys
import time
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
        start = time.perf_counter()
        keyed = KeyedVectors.load_word2vec_format(folder / f"ours.{name}", binary=binary)
        found[f"load_{name}"] = time.perf_counter() - start
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
    print(json.dumps(found, default=float), flush=True)
    for line in sys.stdin:
        answer_searches(*map(int, line.split()))


def answer_searches(words: int, dimension: int, repeats: int) -> None:
    """Print the seconds of a search each time when a line is read."""
    many = KeyedVectors(dimension)
    rows = np.random.default_rng(0).standard_normal((words, dimension), dtype=np.float32)
    many.add_vectors([f"w{row}" for row in range(words)], rows)
    many.fill_norms()
    many.similar_by_word("w0", TOP)
    print("ready", flush=True)
    for row in range(repeats):
        sys.stdin.readline()
        start = time.process_time()
        many.similar_by_word(f"w{row}", TOP)
        print(time.process_time() - start, flush=True)


if __name__ == "__main__":
    main()
