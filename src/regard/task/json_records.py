"""Outputs as JSON data, with scores and token probabilities: the same from the command line and from the server."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.data.tokenizers.tokenizer import TextTokenizer
    from regard.task.language_modeling.pipeline import GeneratedText
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
