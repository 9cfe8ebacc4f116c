"""The nearest neighbors of frequent words, to be looked at: whether word vectors are any good shows at once.

    regard train novels-skipgram --out runs/novels
    python benchmarks/quality/word_neighbors.py runs/novels

The words were chosen by how often they occur, not by their neighbors: a person, an animal, a city, the sea, money,
an adjective, a number and a verb, each several hundred times in the novels. All of them are written to
benchmarks/results/word-neighbors.json.
"""

import argparse
import json

from benchmarks.common import write_results

import regard

WORDS = ("queen", "horse", "london", "sea", "money", "happy", "seven", "walked")
COUNT = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run of word vectors")
    vectors = regard.load(parser.parse_args().run)
    cases = []
    for word in WORDS:
        found = {one.word: round(one.similarity, 3) for one in vectors.keyed.near(word, COUNT)}
        count = int(vectors.vocabulary.counts[vectors.vocabulary.ids[word]])
        cases.append({"case": word, "occurs": count, "recipe": vectors.loaded.origin["recipe"], "neighbors": found})
        print(json.dumps(cases[-1]))
    print(f"Results written to {write_results('word-neighbors', cases)}")


if __name__ == "__main__":
    main()
