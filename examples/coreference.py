"""Show what *it* attends to in "The animal didn't cross the street because it was too tired" and in "… too wide".

    python examples/coreference.py MODEL [--json FILE]

For both sentences this prints the translation, the log-probabilities of *il* and *elle* after the same prefix, and the
attention weights of *it* in every encoder head. MODEL is a run folder of a translator from English. The default prefix
and continuations are French; for another target language set --prefix and --continuations. --json also writes
everything to a file.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import UserError
from regard.files import write_text
from regard.look.analysis.continuations import score_continuations
from regard.look.schema import AttentionType
from regard.look.trace import Trace
from regard.task.translation.pipeline import Translator

SENTENCES = (
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="run folder, or name of a pretrained model")
    parser.add_argument(
        "--prefix", default="L'animal n'a pas traversé la rue parce qu'", help="start of the translation"
    )
    parser.add_argument(
        "--continuations", nargs="+", default=["il", "elle"], help="texts to score after the prefix (default: il elle)"
    )
    parser.add_argument("--token", default="it", help="token whose attention is shown (default: it)")
    parser.add_argument("--json", type=Path, help="file for all results")
    options = parser.parse_args()
    try:
        translator = Translator.load(options.model)
        traces = [translator.trace(sentence) for sentence in SENTENCES]
        logprobs = [
            continuation_logprobs(translator, sentence, options.prefix, options.continuations) for sentence in SENTENCES
        ]
        for sentence, trace, by_continuation in zip(SENTENCES, traces, logprobs, strict=True):
            print(f"{sentence}\n  → {trace.output}")
            for continuation, logprob in by_continuation.items():
                print(f"  log p({continuation} | {options.prefix}) = {logprob:.4f}")
        heads = attention_of(traces, options.token)
        print_heads(heads, options.token)
        if options.json is not None:
            results = to_json(traces, logprobs, options.prefix, heads)
            write_text(options.json, json.dumps(results, ensure_ascii=False))
    except UserError as error:
        sys.exit(f"coreference.py: {error}")


class HeadAttention(NamedTuple):
    """The attention weights of a token in one head, in each sentence."""

    attention_type: AttentionType
    layer: int
    head: int
    rows: list[list[tuple[str, float]]]  # per sentence: the words with their weights


def continuation_logprobs(
    translator: Translator, sentence: str, prefix: str, continuations: list[str]
) -> dict[str, float]:
    """The log-probability of each continuation after the prefix."""
    return {each.text: each.logprob for each in score_continuations(translator, sentence, prefix, continuations)}


def attention_of(traces: list[Trace], token: str) -> list[HeadAttention]:
    """The attention weights of a token in every head."""
    attention_type = traces[0].header.model.attention[0].attention_type  # "decoder" for a language model
    positions = [token_position(trace, token) for trace in traces]
    heads = []
    for layer, head in all_heads(traces[0], attention_type):
        rows = [
            weights_by_word(trace, trace.attention(attention_type, layer, head)[position].tolist())
            for trace, position in zip(traces, positions, strict=True)
        ]
        heads.append(HeadAttention(attention_type, layer, head, rows))
    return heads


def print_heads(heads: list[HeadAttention], token: str) -> None:
    """Print the weights of every head, for both sentences."""
    for attention_type, layer, head, rows in heads:
        print(f"\n{attention_type} layer {layer + 1}, head {head + 1}: what {token!r} attends to")
        for sentence, row in zip(SENTENCES, rows, strict=True):
            weights = "  ".join(f"{text} {weight:.3f}" for text, weight in row)
            print(f"  {sentence.split()[-1]:<7}{weights}")


def to_json(
    traces: list[Trace], logprobs: list[dict[str, float]], prefix: str, heads: list[HeadAttention]
) -> list[dict[str, Any]]:
    """All results as JSON values, one entry per sentence."""
    return [
        {
            "sentence": sentence,
            "output": traces[index].output,
            "beginning": prefix,
            "log_probabilities": logprobs[index],
            "heads": [{"layer": each.layer, "head": each.head, "row": each.rows[index]} for each in heads],
        }
        for index, sentence in enumerate(SENTENCES)
    ]


def weights_by_word(trace: Trace, weights: list[float]) -> list[tuple[str, float]]:
    """Attention weights with the tokens of each word merged and their weights added."""
    words: list[tuple[str, float]] = []
    last_word = -1
    for token, weight in zip(trace.header.source, weights, strict=False):
        if token.word >= 0 and token.word == last_word:
            text, total = words.pop()
            words.append((text + token.text, total + weight))
        else:
            words.append((token.text, weight))
        last_word = token.word
    return words


def all_heads(trace: Trace, attention_type: AttentionType) -> list[tuple[int, int]]:
    """The layer and index of every head."""
    layers, heads = trace.array(f"attention/{attention_type}").shape[:2]
    return [(layer, head) for layer in range(layers) for head in range(heads)]


def token_position(trace: Trace, text: str) -> int:
    """The position of a token in the source."""
    for position, token in enumerate(trace.header.source):
        if token.text == text:
            return position
    raise UserError(f"{text!r} is not a token of {trace.text!r}; choose another with --token.")


if __name__ == "__main__":
    main()
