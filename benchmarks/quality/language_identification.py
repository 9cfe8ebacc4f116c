"""How often the language of a text is identified: captions, short everyday sentences, and single words.

    REGARD_DATA=… python benchmarks/quality/language_identification.py

REGARD_DATA has `multi30k` and `tatoeba-en-{de,fr,tr}`, whose test sets are used. Words have at least three letters, and
occur in the sentences of one language only. Each text is identified among English, German, French and Turkish, and
among all languages that there are statistics of. None of these data were used to make the statistics.
"""

import re
import statistics
from collections import Counter
from typing import Any

from benchmarks.common import log, write_results

from regard.data.registry import get_dataset
from regard.data.text.lines import read_lines
from regard.data.text.pairs import read_pairs
from regard.serve.languages.identification import identify, known_languages

LANGUAGES = ("en", "de", "fr", "tr")


def main() -> None:
    sentences: dict[str, list[str]] = {}
    for language in LANGUAGES[1:]:
        name = f"tatoeba-en-{language}"
        pairs = list(read_pairs(get_dataset(name, ["test.tsv.gz"]) / "test.tsv.gz"))
        sentences[language] = [pair.target for pair in pairs]
        sentences["en"] = [pair.source for pair in pairs]
    files = {language: f"test_2016_flickr.{language}.gz" for language in LANGUAGES[:3]}
    folder = get_dataset("multi30k", list(files.values()))
    captions = {language: list(read_lines(folder / file)) for language, file in files.items()}
    kinds = {"captions": captions, "short sentences": sentences, "single words": _words(sentences)}
    cases = [log(_case(kind, language, texts[language])) for kind, texts in kinds.items() for language in texts]
    print(f"Results written to {write_results('language-identification', cases)}")


def _words(sentences: dict[str, list[str]]) -> dict[str, list[str]]:
    words = {
        language: {word for text in texts for word in re.findall(r"[^\W\d_]{3,}", text.lower())}
        for language, texts in sentences.items()
    }
    counts = Counter(word for each in words.values() for word in each)
    return {language: sorted(word for word in each if counts[word] == 1) for language, each in words.items()}


def _case(kind: str, language: str, texts: list[str]) -> dict[str, Any]:
    case: dict[str, Any] = {"case": kind, "language": language, "texts": len(texts)}
    for name, candidates in (("four", LANGUAGES), ("all", sorted(known_languages()))):
        first = [identify(text, candidates)[0] for text in texts]
        right = sum(guess.language == language for guess in first)
        case[name] = {
            "languages": len(candidates),
            "accuracy": round(100 * right / len(texts), 1),
            "confidence": round(100 * statistics.mean(guess.confidence for guess in first), 1),
        }
    return case


if __name__ == "__main__":
    main()
