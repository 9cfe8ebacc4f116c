"""Create the small dataset that ships with the package: short English–Turkish sentences of frequent words.

    REGARD_DATA=… python scripts/small_tatoeba.py

REGARD_DATA is the folder that contains `tatoeba-en-tr`. The output is deterministic, byte for byte. The entries of the
registry are printed.
"""

import argparse
import collections
import gzip
import random
import re
from pathlib import Path

from regard.data.registry import get_dataset
from regard.data.text.pairs import Pair, read_pairs
from regard.files import file_sha256

ENGLISH_WORDS, TURKISH_WORDS, MAX_WORDS = 500, 4000, 7
"""The size of each vocabulary, and the maximum length of a sentence."""
HELD_OUT = {"test": 500, "valid": 300}
OUTPUT_DIR = Path(__file__).parent.parent / "src" / "regard" / "data" / "shipped" / "tatoeba-en-tr-small"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    pairs = list(read_pairs(get_dataset("tatoeba-en-tr", ["train.tsv.gz"]) / "train.tsv.gz"))
    english = most_frequent([pair.source for pair in pairs], ENGLISH_WORDS)
    turkish = most_frequent([pair.target for pair in pairs], TURKISH_WORDS)
    selected = [pair for pair in pairs if is_simple(pair.source, english) and is_simple(pair.target, turkish)]
    random.Random(0).shuffle(selected)
    held_out: set[str] = set()
    for split, count in HELD_OUT.items():
        part = [pair for pair in selected if held_out.isdisjoint(map(normalize, pair))][:count]
        held_out |= {normalize(side) for pair in part for side in pair}
        write_pairs(split, part)
    write_pairs("train", [pair for pair in selected if held_out.isdisjoint(map(normalize, pair))])


def split_words(text: str) -> list[str]:
    return re.findall(r"[\w']+", text.lower())


def normalize(text: str) -> str:
    """Lowercased words without punctuation, to find near-duplicates."""
    return " ".join(split_words(text))


def most_frequent(texts: list[str], count: int) -> set[str]:
    counts = collections.Counter(word for text in texts for word in split_words(text))
    return {word for word, _ in counts.most_common(count)}


def is_simple(text: str, vocabulary: set[str]) -> bool:
    """Whether a sentence is short and all its words are in the vocabulary."""
    words = split_words(text)
    return len(words) <= MAX_WORDS and vocabulary.issuperset(words)


def write_pairs(split: str, pairs: list[Pair]) -> None:
    """Write a split, and print its entry of the registry."""
    OUTPUT_DIR.mkdir(parents=True, exist_ok=True)
    path = OUTPUT_DIR / f"{split}.tsv.gz"
    text = "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    size, sha256 = path.stat().st_size, file_sha256(path)
    print(f'    {{ name = "{path.name}", size = {size}, count = {len(pairs)}, sha256 = "{sha256}" }},')


if __name__ == "__main__":
    main()
