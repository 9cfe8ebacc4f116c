"""Download and prepare WMT14 English–German, the data of the recipes transformer-base and transformer-big.

    python scripts/prepare_wmt14.py                # into wmt14, where the recipes look for it
    REGARD_DATA=wmt14 regard train transformer-base

The folder gets `train.en` and `train.de` (Europarl v7, Common Crawl and News Commentary v9: about 4.5 million pairs),
`wmt-newstest` with newstest2013 and newstest2014, and `downloads` with the archives (1.7 GB), which can be deleted
afterwards. Interrupted downloads are resumed, and every archive is verified by its SHA-256. Pairs with an empty side
are dropped; everything else stays as published, not tokenized.
"""

import argparse
import functools
import gzip
import html
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from regard.cli.progress import download_progress
from regard.data.registry.download import download
from regard.errors import UserError
from regard.files import new_file

Pair = tuple[str, str]  # English, German


@dataclass(frozen=True)
class Archive:
    """A .tgz archive with parallel texts."""

    url: str
    sha256: str
    """As in TensorFlow Datasets (url_checksums/wmt14_translate.txt)."""
    english: str
    """The path of the English side in the archive; that of the German side is `german`."""
    german: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


WMT = "https://www.statmt.org"
NEWSTEST = (
    "https://data.statmt.org/wmt19/translation-task/dev.tgz",
    "7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7",
)
TRAINING = (
    Archive(
        f"{WMT}/wmt13/training-parallel-europarl-v7.tgz",
        "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
        "training/europarl-v7.de-en.en",
        "training/europarl-v7.de-en.de",
    ),
    Archive(
        f"{WMT}/wmt13/training-parallel-commoncrawl.tgz",
        "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
        "commoncrawl.de-en.en",
        "commoncrawl.de-en.de",
    ),
    Archive(
        f"{WMT}/wmt14/training-parallel-nc-v9.tgz",
        "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
        "training/news-commentary-v9.de-en.en",
        "training/news-commentary-v9.de-en.de",
    ),
)
TESTS = {
    "newstest2013": Archive(*NEWSTEST, "dev/newstest2013.en", "dev/newstest2013.de"),
    "newstest2014": Archive(*NEWSTEST, "dev/newstest2014-deen-ref.en.sgm", "dev/newstest2014-deen-src.de.sgm"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("wmt14"), help="folder to write (default: wmt14)")
    folder = parser.parse_args().folder
    try:
        pairs = prepare(folder, TRAINING, TESTS)
    except UserError as error:
        print(f"prepare_wmt14: {error}", file=sys.stderr)
        return 2
    print(f"{pairs:,} training pairs in {folder}. Train with: REGARD_DATA={folder} regard train transformer-base")
    return 0


def prepare(folder: Path, training: Sequence[Archive], tests: dict[str, Archive]) -> int:
    """Download all archives and write the training and test files; returns the number of training pairs."""
    with download_progress() as progress:
        for archive in [*training, *tests.values()]:
            report = functools.partial(progress, archive.name)
            target = folder / "downloads" / archive.name
            download(archive.url, target, sha256=archive.sha256, progress=report)
    tests_folder = folder / "wmt-newstest"
    tests_folder.mkdir(exist_ok=True)
    for name, archive in tests.items():
        sides = zip(*read_pairs(folder, archive), strict=True)
        for language, lines in zip(("en", "de"), sides, strict=True):
            with new_file(tests_folder / f"{name}.en-de.{language}.gz") as temporary:
                text = "".join(f"{line}\n" for line in lines)
                temporary.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    with new_file(folder / "train.en") as english, new_file(folder / "train.de") as german:
        return write_pairs((pair for archive in training for pair in read_pairs(folder, archive)), english, german)


def write_pairs(pairs: Iterable[Pair], english: Path, german: Path) -> int:
    """Write the pairs that have both sides; returns how many these are."""
    count = 0
    with english.open("w", encoding="utf-8") as english_file, german.open("w", encoding="utf-8") as german_file:
        for pair in pairs:
            if all(pair):
                count += 1
                english_file.write(f"{pair[0]}\n")
                german_file.write(f"{pair[1]}\n")
    return count


def read_pairs(folder: Path, archive: Archive) -> Iterator[Pair]:
    """The pairs of an archive, line by line or segment by segment."""
    path = folder / "downloads" / archive.name
    english, german = (read_member(path, member) for member in (archive.english, archive.german))
    for pair in zip_longest(english, german):
        if None in pair:
            raise UserError(f"{path}: {archive.english} and {archive.german} have different numbers of lines.")
        yield pair


def read_member(path: Path, member: str) -> Iterator[str]:
    """The lines of a file in an archive; of an SGML file, its segments."""
    segment = re.compile(r"<seg[^>]*>(.*?)</seg>")
    with tarfile.open(path) as archive:
        try:
            file = archive.extractfile(member)
        except KeyError:
            file = None
        if file is None:
            raise UserError(f"{path}: there is no file {member} in this archive.")
        for line in file:  # binary lines end at line feeds only, as in the other language
            text = line.decode("utf-8", errors="replace").strip()
            if not member.endswith(".sgm"):
                yield " ".join(text.split())
            elif found := segment.search(text):
                yield html.unescape(found[1]).strip()


if __name__ == "__main__":
    sys.exit(main())
