"""What does *it* look at? "The animal didn't cross the street because it was too tired", or too wide.

    python examples/animal.py MODEL

For both sentences: the translation, the row of *it* in every head of the encoder, and the log-probability of *il* and
of *elle* behind the same beginning. MODEL is a run folder of a translator out of English. The beginning and the words
that are compared are French; for another language give --beginning and --words.
"""

import argparse
import sys

from regard.errors import UserError
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
    asked = parser.parse_args()
    try:
        translator = load_translator(asked.model)
        traces = [translator.trace(sentence) for sentence in SENTENCES]
        for sentence, trace in zip(SENTENCES, traces, strict=True):
            print(f"{sentence}\n  → {trace.output}")
            print_pronouns(translator, sentence, asked.beginning, asked.words)
        print_rows(traces, asked.token)
    except UserError as error:
        sys.exit(f"animal.py: {error}")


def print_pronouns(translator: Translator, sentence: str, beginning: str, words: list[str]) -> None:
    """The log-probability of each word behind the beginning."""
    for found in continuations(translator, sentence, beginning, words):
        print(f"  log p({found.text} | {beginning}) = {found.log_probability:.4f}")


def print_rows(traces: list[Trace], word: str) -> None:
    """The row of one word in every head, both sentences side by side."""
    side: Side = traces[0].header.model.attention[0].side  # the encoder's, or of a language model its own
    places = [place_of(trace, word) for trace in traces]
    for layer, head in heads_of(traces[0], side):
        print(f"\n{side} layer {layer + 1}, head {head + 1}: what {word!r} looks at")
        rows = [trace.attention(side, layer, head)[place] for trace, place in zip(traces, places, strict=True)]
        for number, row in enumerate(rows):
            parts = [f"{text} {weight:.3f}" for text, weight in by_word(traces[number], row.tolist())]
            print(f"  {SENTENCES[number].split()[-1]:<7}{'  '.join(parts)}")


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
