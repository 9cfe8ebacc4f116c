"""Outputs as JSON data, with scores and token probabilities: the same from the command line and from the server."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from regard.data.tokenizers.tokenizer import TextTokenizer
    from regard.task.classification.pipeline import TaggedWords
    from regard.task.language_modeling.pipeline import GeneratedText
    from regard.task.masked_lm.pipeline import Guess
    from regard.task.parsing.pipeline import ParsedSentence
    from regard.task.translation.result import TranslatedText

Alternatives = tuple[tuple[tuple[int, float], ...], ...]


def translation_record(one: "TranslatedText", nbest: int, tokenizer: "TextTokenizer") -> dict[str, Any]:
    """A text and its translation, with the `nbest` best translations of each sentence."""
    sentences = [
        {
            "source": source,
            "translations": [
                {
                    "text": each.text,
                    "score": round(each.score, 4),
                    "logprob": round(each.logprob, 4),
                    "tokens": token_records(tokenizer, each.tokens, each.token_logprobs, each.alternatives),
                    "ended": each.ended,
                }
                for each in found[:nbest]
            ],
        }
        for source, found in one.sentences
    ]
    return {"source": one.source, "translation": one.text, "sentences": sentences}


def generation_record(one: "GeneratedText", tokenizer: "TextTokenizer") -> dict[str, Any]:
    """A prompt and its continuation."""
    return {
        "prompt": one.prompt,
        "text": one.text,
        "logprob": round(one.logprob, 4),
        "score": round(one.score, 4),
        "tokens": token_records(tokenizer, one.tokens, one.token_logprobs, one.alternatives),
        "ended": one.ended,
    }


def token_records(
    tokenizer: "TextTokenizer", tokens: tuple[int, ...], logprobs: tuple[float, ...], alternatives: Alternatives
) -> list[dict[str, Any]]:
    """Every token with its text, log-probability and alternatives. EOS has an empty text."""
    records: list[dict[str, Any]] = []
    for index, logprob in enumerate(logprobs):
        text = tokenizer.decode([tokens[index]]) if index < len(tokens) else ""
        record: dict[str, Any] = {"text": text, "logprob": round(logprob, 4)}
        if alternatives:
            record["alternatives"] = [
                {"text": tokenizer.decode([token]), "logprob": round(other, 4)} for token, other in alternatives[index]
            ]
        records.append(record)
    return records


def parse_record(parsed: "ParsedSentence | None") -> dict[str, Any]:
    """A sentence and its tree; None is a sentence without words."""
    if parsed is None:
        return {"words": [], "tree": None}
    return {
        "words": list(parsed.words),
        "tags": list(parsed.tree.tags()),
        "tree": str(parsed.tree),
        "score": round(parsed.score, 4),
        "logprob": round(parsed.logprob, 4),
    }


def tags_record(tagged: "TaggedWords | None") -> dict[str, Any]:
    """The words of a sentence with their tags; None is a sentence without words."""
    return {
        "words": [] if tagged is None else list(tagged.words),
        "tags": [] if tagged is None else list(tagged.tags),
        "probabilities": [] if tagged is None else [round(one, 4) for one in tagged.probabilities],
    }


def class_records(classes: "Sequence[tuple[str, float]]") -> list[dict[str, Any]]:
    """The classes of a text or an image, most likely first."""
    return [{"label": label, "probability": round(probability, 6)} for label, probability in classes]


def guess_records(masks: "Sequence[Sequence[Guess]]") -> list[list[dict[str, Any]]]:
    """What the masks of a text can be filled with, most likely first."""
    return [[{"text": one.text, "probability": round(one.probability, 6)} for one in guesses] for guesses in masks]
