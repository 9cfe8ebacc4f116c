"""Make the small data set that ships with the package: short English–Turkish sentences in frequent words.

Run with REGARD_DATA set to where `tatoeba-en-tr` lies. The same input gives the same files, byte for byte.
"""

import collections
import gzip
import random
import re
from pathlib import Path

from regard.data.pairs import Pair, read_pairs
from regard.data.registry import get
from regard.files import file_sha256

ENGLISH_WORDS, TURKISH_WORDS, LONGEST = 500, 4000, 7
HELD_OUT = {"test": 500, "valid": 300}
PLACE = Path(__file__).parent.parent / "src" / "regard" / "data" / "shipped" / "tatoeba-en-tr-small"


def main() -> None:
    pairs = list(read_pairs(get("tatoeba-en-tr", ["train.tsv.gz"]) / "train.tsv.gz"))
    english, turkish = (
        frequent([pair.source for pair in pairs], ENGLISH_WORDS),
        frequent([pair.target for pair in pairs], TURKISH_WORDS),
    )
    chosen = [pair for pair in pairs if fits(pair.source, english) and fits(pair.target, turkish)]
    random.Random(0).shuffle(chosen)
    held: set[str] = set()
    for name, count in HELD_OUT.items():
        part = [pair for pair in chosen if held.isdisjoint(map(plain, pair))][:count]
        held |= {plain(side) for pair in part for side in pair}
        write(name, part)
    write("train", [pair for pair in chosen if held.isdisjoint(map(plain, pair))])


def words(text: str) -> list[str]:
    return re.findall(r"[\w']+", text.lower())


def plain(text: str) -> str:
    return " ".join(words(text))


def frequent(texts: list[str], count: int) -> set[str]:
    return {word for word, _ in collections.Counter(w for text in texts for w in words(text)).most_common(count)}


def fits(text: str, known: set[str]) -> bool:
    found = words(text)
    return len(found) <= LONGEST and known.issuperset(found)


def write(name: str, pairs: list[Pair]) -> None:
    PLACE.mkdir(parents=True, exist_ok=True)
    path = PLACE / f"{name}.tsv.gz"
    text = "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    size, sha256 = path.stat().st_size, file_sha256(path)
    print(f'    {{ name = "{path.name}", size = {size}, count = {len(pairs)}, sha256 = "{sha256}" }},')


if __name__ == "__main__":
    main()
