"""Create the labeled texts that ship with the package: passages of the Brown corpus and their genre.

    REGARD_DATA=… python scripts/small_brown.py

REGARD_DATA is the folder that contains `brown`. A text is a passage of three sentences. The parts have no document in
common, since passages of one document resemble each other. The output is deterministic, byte for byte. The entries of
the registry are printed.
"""

import argparse
import gzip
import math
import random
import re
from itertools import islice
from pathlib import Path

from regard.data.registry import get_dataset
from regard.data.text.documents import TextConfig, read_texts
from regard.files import file_sha256

CATEGORIES = {"A": 44, "B": 27, "C": 17, "D": 17, "E": 36, "F": 48, "G": 75, "H": 30, "J": 80, "K": 29, "L": 24, "M": 6}
CATEGORIES |= {"N": 29, "P": 29, "R": 9}
"""The number of documents of each category, in the order of the corpus."""
GENRES = {"news": "A", "government": "H", "science": "J", "fiction": "KLMNP"}
"""The categories of each genre: press reportage; government documents; learned; novels and stories."""
SENTENCES = 3
DOCUMENTS = {"test": 0.2, "valid": 0.1, "train": 0.7}
"""The fraction of each genre's documents."""
PASSAGES = {"train": 600, "valid": 60, "test": 120}
"""The number of passages of each genre."""
OUTPUT_DIR = Path(__file__).parent.parent / "src" / "regard" / "data" / "shipped" / "brown-genres"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    path = get_dataset("brown", ["brown.txt.gz"]) / "brown.txt.gz"
    documents = read_texts(TextConfig(path=str(path), unit="paragraph"))
    by_category = {name: list(islice(documents, count)) for name, count in CATEGORIES.items()}
    rng = random.Random(0)
    parts: dict[str, list[tuple[str, str]]] = {part: [] for part in DOCUMENTS}
    for genre, categories in GENRES.items():
        shuffled = [document for name in categories for document in by_category[name]]
        rng.shuffle(shuffled)
        remaining = iter(shuffled)
        for part, fraction in DOCUMENTS.items():
            count = math.ceil(fraction * len(shuffled))
            texts = [text for document in islice(remaining, count) for text in passages(document)]
            parts[part] += [(text, genre) for text in rng.sample(texts, PASSAGES[part])]
    for part, examples in parts.items():
        rng.shuffle(examples)
        write_texts(part, examples)


def passages(document: str) -> list[str]:
    """Consecutive sentences of a document, as people write them."""
    sentences = [detokenize(line) for line in document.splitlines()]
    starts = range(0, len(sentences) - SENTENCES + 1, SENTENCES)
    return [" ".join(sentences[start : start + SENTENCES]) for start in starts]


def detokenize(sentence: str) -> str:
    """A sentence without the spaces around punctuation, with plain quotation marks."""
    text = re.sub(r"`` ?| ?''", '"', sentence)
    text = re.sub(r" ([.,;:?!)\]])", r"\1", re.sub(r"([(\[]) ", r"\1", text))
    return re.sub(r"([.?!;])(?: ?\1)+", r"\1", text)  # the corpus doubles some marks


def write_texts(part: str, examples: list[tuple[str, str]]) -> None:
    """Write a part, and print its entry of the registry."""
    OUTPUT_DIR.mkdir(parents=True, exist_ok=True)
    path = OUTPUT_DIR / f"{part}.tsv.gz"
    text = "".join(f"{text}\t{genre}\n" for text, genre in examples)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    size, sha256 = path.stat().st_size, file_sha256(path)
    print(f'    {{ name = "{path.name}", size = {size}, count = {len(examples)}, sha256 = "{sha256}" }},')


if __name__ == "__main__":
    main()
