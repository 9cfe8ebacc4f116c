"""Make the table of character n-grams from which the server tells languages apart (serve/languages/profiles.json.gz).

    pip download --no-deps --no-binary :all: langdetect==1.0.9 && tar xzf langdetect-1.0.9.tar.gz
    python scripts/language_profiles.py langdetect-1.0.9/langdetect/profiles

The counts are those of langdetect (Nakatani Shuyo, Apache License 2.0), taken from Wikipedia's abstracts. Here letters
become small and the kinds of Chinese become one; the most frequent n-grams of each language are kept, with their
frequency in quarters of a bit.
"""

import gzip
import json
import math
import sys
from collections import Counter
from pathlib import Path

from regard.serve.languages.identification import PROFILES, fold

KEPT = {1: 80, 2: 500, 3: 1000}
"""N-grams that are kept of each length."""


def main(folder: Path) -> None:
    counts: dict[str, Counter[str]] = {}
    characters: Counter[str] = Counter()
    for path in sorted(folder.iterdir()):
        profile = json.loads(path.read_text(encoding="utf-8"))
        language = path.name.partition("-")[0]
        found = counts.setdefault(language, Counter())
        for text, count in profile["freq"].items():
            folded = fold(text)
            if len(folded) == len(text) and folded.strip():
                found[folded] += count
        characters[language] += profile["n_words"][0]
    table = {language: _kept(counts[language], characters[language]) for language in counts}
    content = json.dumps(table, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
    PROFILES.write_bytes(gzip.compress(content, mtime=0))
    print(f"{PROFILES}: {len(table)} languages, {PROFILES.stat().st_size:,} bytes")


def _kept(counts: Counter[str], characters: int) -> dict[int, str]:
    """The n-grams by their level: how many quarters of a bit one costs."""
    levels: dict[int, list[str]] = {}
    for length, number in KEPT.items():
        for text, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            if len(text) == length and number:
                levels.setdefault(round(-4 * math.log2(count / characters)), []).append(text)
                number -= 1
    return {level: "|".join(sorted(texts)) for level, texts in sorted(levels.items())}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
