"""Compare a masked language model with a causal one on the same held-out words, and measure its sense of *bank*.

    regard train brown-fill --out runs/brown-fill
    regard train brown --out runs/brown
    python benchmarks/quality/masked_lm.py runs/brown-fill runs/brown

The two models have the same size. The test text of the masked model is split into passages, and about every seventh of
the words that are a single token for both models is selected. The masked model reads the passage with all selected
words masked, the causal model only the words before the one to predict. A prediction is correct if the most likely
token is the word. The baseline always predicts the most frequent word of the training text.

The second part compares the vectors of *bank* in sentences about rivers and about money. The mean cosine similarity
within a sense and across both shows whether the model tells them apart; a static embedding cannot.
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
from benchmarks.common import log, write_results
from benchmarks.quality.word_senses import compare_senses

from regard.data.text.documents import TextConfig, read_texts
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.model import count_parameters
from regard.score.accuracy import wilson_interval
from regard.task.language_modeling.pipeline import TextGenerator
from regard.task.masked_lm.pipeline import FillMask
from regard.task.masked_lm.recipe import MaskedLMRecipe
from regard.task.recipe_io import read_recipe
from regard.task.text_encoder import length_batches

MASK_PROBABILITY, SEED = 0.15, 1
PASSAGE_WORDS = 120
"""Words per passage: in tokens, about two thirds of the context length in training."""
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
    """A passage as token ids of both models, with the words to predict."""

    masked_ids: list[int]  # the tokenizer of the masked model, before masking
    causal_ids: list[int]  # the tokenizer of the causal model
    targets: list[tuple[str, int, int]]  # a word, its position in masked_ids, its position in causal_ids


def read_passages(
    texts: Iterator[str], masked_tokenizer: TextTokenizer, causal_tokenizer: TextTokenizer
) -> Iterator[Passage]:
    """Passages with randomly selected words; the selection depends only on the text and the tokenizers."""
    rng = random.Random(SEED)
    for text in texts:
        words = iter(list(_word_spans(text)))
        while chunk := list(islice(words, PASSAGE_WORDS)):
            start, end = chunk[0][0], chunk[-1][1]
            spans = [(first - start, last - start) for first, last in chunk]
            part = text[start:end]
            masked_ids, masked_offsets = masked_tokenizer.encode_with_offsets(part)
            causal_ids, causal_offsets = causal_tokenizer.encode_with_offsets(part)
            masked_positions = _single_token_words(masked_offsets, spans)
            causal_positions = _single_token_words(causal_offsets, spans)
            # the causal model cannot predict the first word
            eligible = [word for word in range(1, len(spans)) if word in masked_positions and word in causal_positions]
            selected = [word for word in eligible if rng.random() < MASK_PROBABILITY]
            targets = [(part[slice(*spans[word])], masked_positions[word], causal_positions[word]) for word in selected]
            yield Passage(masked_ids, causal_ids, targets)


def _word_spans(text: str) -> Iterator[tuple[int, int]]:
    """The start and end of each whitespace-separated word."""
    start = 0
    for word in text.split():
        start = text.index(word, start)
        yield start, start + len(word)
        start += len(word)


def _single_token_words(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> dict[int, int]:
    """The position of the token of each word that is a single token, which may include the space before it."""
    ends = {end: (position, start) for position, (start, end) in enumerate(offsets)}
    starts = [start for start, _ in offsets]
    positions = {}
    for word, (first, last) in enumerate(spans):
        position, start = ends.get(last, (-1, -1))
        if first - 1 <= start <= first and starts.count(start) == 1:
            positions[word] = position
    return positions


@torch.no_grad()
def masked_predictions(fill_mask: FillMask, passages: Sequence[Passage]) -> list[list[bool]]:
    """For each passage, which of its targets the masked model predicts."""
    before, after = fill_mask.surrounding
    rows = []
    for passage in passages:
        ids = list(passage.masked_ids)
        for _, position, _ in passage.targets:
            ids[position] = fill_mask.mask_id
        rows.append([*before, *ids, *after])
    correct: list[list[bool]] = [[] for _ in passages]
    for indices, tokens, lengths in length_batches(rows, fill_mask.encoder):
        predicted = fill_mask.encoder(tokens, lengths=lengths).argmax(-1).cpu()
        for index, predicted_ids in zip(indices, predicted, strict=True):
            passage = passages[index]
            correct[index] = [
                int(predicted_ids[position + len(before)]) == passage.masked_ids[position]
                for _, position, _ in passage.targets
            ]
    return correct


@torch.no_grad()
def causal_predictions(generator: TextGenerator, passages: Sequence[Passage]) -> list[list[bool]]:
    """For each passage, which of its targets the causal model predicts from the tokens before it.

    There is no BOS token, as in training.
    """
    correct: list[list[bool]] = [[] for _ in passages]
    rows = [passage.causal_ids for passage in passages]
    for indices, tokens, _ in length_batches(rows, generator.language_model):
        predicted = generator.language_model(tokens).argmax(-1).cpu()  # padding follows, so no token attends to it
        for index, predicted_ids in zip(indices, predicted, strict=True):
            passage = passages[index]
            correct[index] = [
                int(predicted_ids[position - 1]) == passage.causal_ids[position] for _, _, position in passage.targets
            ]
    return correct


def most_frequent_word(sources: Sequence[TextConfig]) -> str:
    """The most frequent word of the first training source."""
    counts: Counter[str] = Counter()
    for text in read_texts(sources[0]):
        counts.update(text.split())
    return counts.most_common(1)[0][0]


def accuracy(correct: Sequence[bool]) -> dict[str, Any]:
    """The accuracy in percent, with its 95% confidence interval."""
    low, high = wilson_interval(sum(correct), len(correct))
    return {
        "accuracy": round(100 * sum(correct) / max(1, len(correct)), 2),
        "interval": [round(100 * low, 2), round(100 * high, 2)],
    }


def compare_models(
    fill_mask: FillMask, generator: TextGenerator, recipe: MaskedLMRecipe, test_set: TextConfig
) -> list[dict[str, Any]]:
    """The accuracy of both models and of the baseline, on all targets and on alphabetic ones."""
    all_passages = read_passages(read_texts(test_set), fill_mask.tokenizer, generator.tokenizer)
    passages = [passage for passage in all_passages if passage.targets]
    words = [word for passage in passages for word, _, _ in passage.targets]
    frequent_word = most_frequent_word(recipe.data.train)
    correct = {
        "filler": [each for row in masked_predictions(fill_mask, passages) for each in row],
        "left_to_right": [each for row in causal_predictions(generator, passages) for each in row],
        "most_frequent": [word == frequent_word for word in words],
    }
    metadata = {
        "parameters": {
            "filler": count_parameters(fill_mask.encoder),
            "left_to_right": count_parameters(generator.language_model),
        },
        "vocabulary": {"filler": fill_mask.tokenizer.vocab_size, "left_to_right": generator.tokenizer.vocab_size},
        "most_frequent_word": frequent_word,
        "passages": len(passages),
    }
    cases = []
    for name, included in (("all", [True] * len(words)), ("made of letters", [word.isalpha() for word in words])):
        scores = {
            model: accuracy([each for each, is_included in zip(answers, included, strict=True) if is_included])
            for model, answers in correct.items()
        }
        cases.append({"case": f"hidden words, {name}", "hidden": sum(included), **scores, **metadata})
    return cases


def senses_of_bank(fill_mask: FillMask) -> list[dict[str, Any]]:
    """The similarities of *bank* in every layer, from the first layer's input to the normalized output of the last."""
    layers: list[int | None] = [*range(len(fill_mask.encoder.encoder.layers)), None]
    return [
        {"case": f"banks, {'last layer' if layer is None else f'layer {layer}'}"}
        | compare_senses(fill_mask, "bank", RIVER, MONEY, layer=layer).rounded()
        for layer in layers
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("masked", type=Path, help="run folder of a masked language model")
    parser.add_argument("causal", type=Path, help="run folder of a causal language model of the same size")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--name", default="filling-brown", help="name of the results file (default: filling-brown)")
    options = parser.parse_args()
    recipe = read_recipe(options.masked)
    if not isinstance(recipe, MaskedLMRecipe):
        parser.error(f"{options.masked} was trained for {recipe.task}, not for masked-lm")
    test_set = next(iter(recipe.data.test.values()), recipe.data.valid)
    if test_set is None:
        parser.error(f"the recipe of {options.masked} has neither a test set nor a validation set")
    fill_mask = FillMask.load(options.masked, options.device)
    generator = TextGenerator.load(options.causal, options.device)
    cases = [log(case) for case in compare_models(fill_mask, generator, recipe, test_set)]
    cases += [log(case) for case in senses_of_bank(fill_mask)]
    print(f"written: {write_results(options.name, cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
