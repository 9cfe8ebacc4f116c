"""Does it help to see both sides? Hidden words of a held-out text, found by a filler and foretold from the left.

    regard train brown-fill --out runs/brown-fill
    regard train brown --out runs/brown
    python benchmarks/filling.py runs/brown-fill runs/brown

The first is a model that fills gaps, the second a language model of the same size. The filler's own test text is cut
into passages. Of the words in them that are a single token to both models, about every seventh is hidden: the filler
sees the passage with all of these gaps, the language model the words of the passage before the one it is to foretell.
An answer is right if the likeliest token is the word. Beside them stands the word that is most frequent in the training
text. So both are asked for the same words, whatever their tokenizers make of the rest.

Then the banks: sentences about those of rivers and those for money. The mean cosine between vectors of *bank* within a
meaning and across both says whether a model tells them apart; a table of words has only one vector for them.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import say, write_results

from regard.data.texts import TextConfig, read_texts
from regard.data.tokenizer import TextTokenizer
from regard.model import count_parameters
from regard.score.accuracy import wilson
from regard.task import Filler, Generator, load_filler, load_generator, read_recipe
from regard.task.encoders import in_batches
from regard.task.filling_recipe import FillingRecipe
from regard.task.senses import compare_senses

SHARE, SEED = 0.15, 1
WORDS = 120
"""Words of a passage: about two thirds of a row of training, in tokens."""
RIVER = [
    "They walked along the bank of the river until the water grew deep and cold .",
    "The boy sat on the muddy bank with his fishing pole and watched the stream .",
    "Willows grew on the far bank , and their branches hung over the water .",
    "The boat drifted toward the bank and stopped among the reeds .",
    "We spread our picnic on the grassy bank beside the creek .",
    "After the flood the river had washed away part of its left bank .",
    "He swam across the stream and climbed up the steep bank .",
    "Cattle came down to the bank of the river in the evening to drink .",
]
MONEY = [
    "She went to the bank to deposit her check and to pay the loan .",
    "The bank raised its rate of interest on savings and loans this year .",
    "Two men with guns walked into the bank and took the cash .",
    "He worked as a teller in the bank and counted money all day .",
    "The company owed the bank more than a million dollars .",
    "The president of the bank refused to lend them the money .",
    "I put my savings in the local bank because it pays more interest .",
    "The robbery of the bank was planned by a former clerk .",
]


class Passage(NamedTuple):
    """A passage as ids of both models, and where in these its hidden words stand."""

    filler: list[int]
    left: list[int]
    hidden: list[tuple[str, int, int]]  # the word, its place for the filler, its place for the language model


def passages(texts: Iterator[str], filler: TextTokenizer, left: TextTokenizer) -> Iterator[Passage]:
    """Passages of running text with words to hide, the same for the same text and tokenizers."""
    dice = random.Random(SEED)
    for text in texts:
        words = iter(list(_spans(text)))
        while chunk := list(islice(words, WORDS)):
            begin, end = chunk[0][0], chunk[-1][1]
            spans = [(first - begin, last - begin) for first, last in chunk]
            part = text[begin:end]
            (ids, places), (others, left_places) = filler.encode_placed(part), left.encode_placed(part)
            single, left_single = _single(places, spans), _single(left_places, spans)
            able = [number for number in range(1, len(spans)) if number in single and number in left_single]
            chosen = [number for number in able if dice.random() < SHARE]
            hidden = [(part[slice(*spans[number])], single[number], left_single[number]) for number in chosen]
            yield Passage(ids, others, hidden)


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Where the words of a text stand: whatever is between blanks."""
    begin = 0
    for word in text.split():
        begin = text.index(word, begin)
        yield begin, begin + len(word)
        begin += len(word)


def _single(places: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Words that are one token, with at most a blank before it: the number of each, and where its token stands."""
    ends = {end: (number, begin) for number, (begin, end) in enumerate(places)}
    begins = [begin for begin, _ in places]
    found = {}
    for number, (first, last) in enumerate(spans):
        token, begin = ends.get(last, (-1, -1))
        if first - 1 <= begin <= first and begins.count(begin) == 1:
            found[number] = token
    return found


@torch.no_grad()
def found_from_both_sides(filler: Filler, rows: Sequence[Passage]) -> list[list[bool]]:
    """For each passage, which of its hidden words are the likeliest to the filler."""
    before, after = filler.frame
    ids = []
    for passage in rows:
        row = list(passage.filler)
        for _, place, _ in passage.hidden:
            row[place] = filler.mask
        ids.append([*before, *row, *after])
    found: list[list[bool]] = [[] for _ in rows]
    for numbers, tokens, lengths in in_batches(ids, filler.encoder.device):
        best = filler.encoder(tokens, lengths=lengths).argmax(-1).cpu()
        for number, row_best in zip(numbers, best, strict=True):
            passage = rows[number]
            found[number] = [
                int(row_best[place + len(before)]) == passage.filler[place] for _, place, _ in passage.hidden
            ]
    return found


@torch.no_grad()
def foretold_from_the_left(generator: Generator, rows: Sequence[Passage]) -> list[list[bool]]:
    """For each passage, which of its hidden words are the likeliest to the language model, given those before.

    A passage begins where it does, without a sign, as the rows of training do; its first word is never hidden.
    """
    found: list[list[bool]] = [[] for _ in rows]
    for numbers, tokens, _ in in_batches([passage.left for passage in rows], generator.language_model.device):
        best = generator.language_model(tokens).argmax(-1).cpu()  # padding stands where no token sees it
        for number, row_best in zip(numbers, best, strict=True):
            passage = rows[number]
            found[number] = [int(row_best[place - 1]) == passage.left[place] for _, _, place in passage.hidden]
    return found


def most_frequent(parts: Sequence[TextConfig]) -> str:
    counts: Counter[str] = Counter()
    for text in read_texts(parts[0]):
        counts.update(text.split())
    return counts.most_common(1)[0][0]


def accuracy(right: Sequence[bool]) -> dict[str, Any]:
    low, high = wilson(sum(right), len(right))
    return {
        "accuracy": round(100 * sum(right) / max(1, len(right)), 2),
        "interval": [round(100 * low, 2), round(100 * high, 2)],
    }


def compare(filler: Filler, left: Generator, recipe: FillingRecipe, test: TextConfig) -> list[dict[str, Any]]:
    """How many hidden words each finds: of all of them, and of those that are made of letters."""
    rows = [row for row in passages(read_texts(test), filler.text, left.text) if row.hidden]
    words = [word for row in rows for word, _, _ in row.hidden]
    common = most_frequent(recipe.data.train)
    answers = {
        "filler": [one for row in found_from_both_sides(filler, rows) for one in row],
        "left_to_right": [one for row in foretold_from_the_left(left, rows) for one in row],
        "most_frequent": [word == common for word in words],
    }
    facts = {
        "parameters": {
            "filler": count_parameters(filler.encoder),
            "left_to_right": count_parameters(left.language_model),
        },
        "vocabulary": {"filler": filler.text.vocabulary, "left_to_right": left.text.vocabulary},
        "most_frequent_word": common,
        "passages": len(rows),
    }
    cases = []
    for name, kept in (("all", [True] * len(words)), ("made of letters", [word.isalpha() for word in words])):
        scores = {
            who: accuracy([one for one, keep in zip(right, kept, strict=True) if keep])
            for who, right in answers.items()
        }
        cases.append({"case": f"hidden words, {name}", "hidden": sum(kept), **scores, **facts})
    return cases


def banks(filler: Filler) -> list[dict[str, Any]]:
    """Layer by layer, from what goes into the first to the last, behind its norm."""
    layers: list[int | None] = [*range(len(filler.encoder.encoder.blocks) + 1), None]
    return [
        {"case": f"banks, {'last layer' if layer is None else f'layer {layer}'}"}
        | compare_senses(filler, "bank", RIVER, MONEY, layer=layer).rounded()
        for layer in layers
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("filler", type=Path, help="run folder of a model that fills gaps")
    parser.add_argument("left", type=Path, help="run folder of a language model of the same size")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--name", default="filling-brown", help="name of the file of results")
    given = parser.parse_args()
    recipe = read_recipe(given.filler)
    if not isinstance(recipe, FillingRecipe):
        parser.error(f"{given.filler} was trained for {recipe.task}, not for filling")
    test = next(iter(recipe.data.test.values()), recipe.data.valid)
    if test is None:
        parser.error(f"{given.filler} was trained without a test text")
    filler, left = load_filler(given.filler, given.device), load_generator(given.left, given.device)
    cases = [say(case) for case in compare(filler, left, recipe, test)]
    cases += [say(case) for case in banks(filler)]
    print(f"written: {write_results(given.name, cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
