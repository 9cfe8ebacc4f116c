"""Count the test sentences of a parsing recipe that are also in its training data, per training file.

    python benchmarks/quality/train_test_overlap.py ptb-sample-parse-more

A parser may have memorized such sentences, so they inflate its score. Two sentences are equal if all their words are.
"""

import argparse
import sys

from benchmarks.common import log, write_results

from regard.task.parsing.recipe import ParsingRecipe
from regard.task.recipe_io import read_recipe


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="name or path of a parsing recipe")
    recipe = read_recipe(parser.parse_args().recipe)
    if not isinstance(recipe, ParsingRecipe):
        parser.error(f"{recipe.name} is a recipe for {recipe.task}, not for parsing")
    cases = []
    for name, test_set in recipe.data.test.items():
        test_sentences = [tree.words() for tree in test_set.trees()]
        for source in recipe.data.train:
            train_sentences = {tree.words() for tree in source.trees()}
            seen = sum(sentence in train_sentences for sentence in test_sentences)
            cases.append(log({"case": f"{name} in {source.location}", "sentences": len(test_sentences), "seen": seen}))
    print(f"written: {write_results(f'overlap-{recipe.name}', cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
