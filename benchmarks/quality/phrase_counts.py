"""How training pairs translate a phrase: what a model could have learned it from.

    REGARD_DATA=… python benchmarks/quality/phrase_counts.py

REGARD_DATA has `tatoeba-en-tr`, the data of the model that ships with regard. Counted are the pairs whose source has a
phrase, and those of them whose target has a word that begins in one of some ways.
"""

import re

from benchmarks.common import log, write_results

from regard.data.registry import get_dataset
from regard.data.text.pairs import read_pairs

PHRASES = {
    r"^The light\b": ("hafif", "ışı"),
    r"^A light\b": ("hafif", "ışı"),
    r"\bbanks?\b": ("banka", "kıyı"),
}
"""Regular expressions of phrases, and beginnings of words on the other side."""


def main() -> None:
    pairs = list(read_pairs(get_dataset("tatoeba-en-tr", ["train.tsv.gz"]) / "train.tsv.gz"))
    cases = []
    for phrase, beginnings in PHRASES.items():
        targets = [pair.target for pair in pairs if re.search(phrase, pair.source)]
        found = {
            beginning: sum(any(word.startswith(beginning) for word in _lower(target).split()) for target in targets)
            for beginning in beginnings
        }
        cases.append(log({"case": phrase, "pairs": len(pairs), "with_phrase": len(targets), "found": found}))
    print(f"Results written to {write_results('phrase-counts', cases)}")


def _lower(text: str) -> str:
    """Lower case in Turkish, which has two pairs of i."""
    return text.replace("İ", "i").replace("I", "ı").lower()


if __name__ == "__main__":
    main()
