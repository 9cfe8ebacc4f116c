"""How many of a parser's test sentences stand among those it learns from, file by file.

    python benchmarks/overlap.py ptb-sample-parse-more

What helps by having been seen is no skill. Sentences are the same if all of their words are.
"""

import argparse
import sys

from common import say, write_results

from regard.task import read_recipe
from regard.task.parsing_recipe import ParsingRecipe


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    recipe = read_recipe(parser.parse_args().recipe)
    if not isinstance(recipe, ParsingRecipe):
        parser.error(f"{recipe.name} is for {recipe.task}, not for parsing")
    cases = []
    for name, asked in recipe.data.test.items():
        sentences = [tree.words() for tree in asked.trees()]
        for learnt in recipe.data.train:
            known = {tree.words() for tree in learnt.trees()}
            seen = sum(words in known for words in sentences)
            cases.append(say({"case": f"{name} in {learnt.place}", "sentences": len(sentences), "seen": seen}))
    print(f"written: {write_results(f'overlap-{recipe.name}', cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
