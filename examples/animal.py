"""What does *it* look at? "The animal didn't cross the street because it was too tired", or too wide.

    python examples/animal.py MODEL [--json FILE]

For both sentences: the translation, the row of *it* in every head of the encoder, and the log-probability of *il* and
of *elle* behind the same beginning. MODEL is a run folder of a translator out of English. The beginning and the words
that are compared are French; for another language give --beginning and --words. With --json all of it is written to a
file too.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import UserError
from regard.files import write_text
from regard.look.continuations import continuations
from regard.look.trace import Trace
from regard.look.wire import Side
from regard.task import Translator, load_translator

SENTENCES = (
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="What *it* looks at, and which word it becomes.")
    parser.add_argument("model", help="a run folder, or the name of a model that ships")
    parser.add_argument("--beginning", default="L'animal n'a pas traversé la rue parce qu'", help="of the translation")
    parser.add_argument("--words", nargs="+", default=["il", "elle"], help="what may stand behind it")
    parser.add_argument("--token", default="it", help="the word whose rows are shown")
    parser.add_argument("--json", type=Path, help="a file to write everything to")
    asked = parser.parse_args()
    try:
        translator = load_translator(asked.model)
        traces = [translator.trace(sentence) for sentence in SENTENCES]
        chances = [chances_of(translator, sentence, asked.beginning, asked.words) for sentence in SENTENCES]
        for sentence, trace, chance in zip(SENTENCES, traces, chances, strict=True):
            print(f"{sentence}\n  → {trace.output}")
            for word, value in chance.items():
                print(f"  log p({word} | {asked.beginning}) = {value:.4f}")
        heads = rows_of(traces, asked.token)
        print_rows(heads, asked.token)
        if asked.json is not None:
            write_text(asked.json, json.dumps(facts_of(traces, chances, asked.beginning, heads), ensure_ascii=False))
    except UserError as error:
        sys.exit(f"animal.py: {error}")


class Head(NamedTuple):
    """What a word looks at in one head, in each sentence."""

    side: Side
    layer: int
    head: int
    rows: list[list[tuple[str, float]]]  # one for each sentence: words and their weights


def chances_of(translator: Translator, sentence: str, beginning: str, words: list[str]) -> dict[str, float]:
    """The log-probability of each word behind the beginning."""
    return {each.text: each.log_probability for each in continuations(translator, sentence, beginning, words)}


def rows_of(traces: list[Trace], word: str) -> list[Head]:
    """The row of one word in every head."""
    side: Side = traces[0].header.model.attention[0].side  # the encoder's, or of a language model its own
    places = [place_of(trace, word) for trace in traces]
    found = []
    for layer, head in heads_of(traces[0], side):
        rows = [trace.attention(side, layer, head)[place] for trace, place in zip(traces, places, strict=True)]
        both = [by_word(trace, row.tolist()) for trace, row in zip(traces, rows, strict=True)]
        found.append(Head(side, layer, head, both))
    return found


def print_rows(heads: list[Head], word: str) -> None:
    """Head by head, both sentences side by side."""
    for side, layer, head, rows in heads:
        print(f"\n{side} layer {layer + 1}, head {head + 1}: what {word!r} looks at")
        for sentence, row in zip(SENTENCES, rows, strict=True):
            parts = "  ".join(f"{text} {weight:.3f}" for text, weight in row)
            print(f"  {sentence.split()[-1]:<7}{parts}")


def facts_of(
    traces: list[Trace], chances: list[dict[str, float]], beginning: str, heads: list[Head]
) -> list[dict[str, Any]]:
    """All of it as plain data, one entry a sentence."""
    return [
        {
            "sentence": sentence,
            "output": traces[number].output,
            "beginning": beginning,
            "log_probabilities": chances[number],
            "heads": [{"layer": each.layer, "head": each.head, "row": each.rows[number]} for each in heads],
        }
        for number, sentence in enumerate(SENTENCES)
    ]


def by_word(trace: Trace, row: list[float]) -> list[tuple[str, float]]:
    """A row with the tokens of a word put together."""
    found: list[tuple[str, float]] = []
    last = -1
    for token, weight in zip(trace.header.source, row, strict=False):
        if token.word >= 0 and token.word == last:
            text, sum_so_far = found.pop()
            found.append((text + token.text, sum_so_far + weight))
        else:
            found.append((token.text, weight))
        last = token.word
    return found


def heads_of(trace: Trace, side: Side) -> list[tuple[int, int]]:
    layers, heads = trace.array(f"attention/{side}").shape[:2]
    return [(layer, head) for layer in range(layers) for head in range(heads)]


def place_of(trace: Trace, word: str) -> int:
    """Where a word stands in what was read."""
    for place, token in enumerate(trace.header.source):
        if token.text == word:
            return place
    raise UserError(f"{word!r} is not a token of {trace.text!r}; give another with --token.")


if __name__ == "__main__":
    main()
