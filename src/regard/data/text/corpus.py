"""Parallel corpora: several sources of sentence pairs, each with a weight, read as one.

A weight is the number of times that every pair of a source occurs in one epoch: 1 once, 2 twice, 0.5 every other pair
(another half in each epoch). It multiplies the size of the source, so adding sentences to a source increases its
fraction, and weights need not sum to anything. Reading ignores the weights: pairs are filtered, held out and tokenized
once, and weighted in each epoch's batches (data/batching/item_weights.py).
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, model_validator

from regard.config import ConfigError
from regard.data.batching.item_weights import MAX_WEIGHT
from regard.data.source import DataSource, NonEmpty, TwoColumns, TwoKeys
from regard.data.text.lines import uncompressed_suffix
from regard.data.text.pairs import COLUMNS, KEYS, Pair, list_pair_files, read_pairs
from regard.data.text.records import is_records
from regard.errors import UserError
from regard.files import file_sha256


class CorpusConfig(DataSource):
    """Sentence pairs: two aligned files (`source` and `target`), or one `path` to a file or folder."""

    path: NonEmpty | None = None
    """A file with both sides: .tsv, .txt, .csv or .jsonl, compressed or not, or .parquet; a folder of such files or of
    aligned files, or one written by `datasets.save_to_disk`."""
    source: NonEmpty | None = None
    """The file of source sentences, one per line; `target` has their translations, line by line."""
    target: NonEmpty | None = None
    """The file of translations, aligned with `source`."""
    columns: TwoColumns | None = None
    """The columns of source and target in a table, by name or by number, counted from 1. By default the first two of a
    .tsv file; in a .csv or .parquet file those named source and target, or the fields of "translation", or the only
    two."""
    keys: TwoKeys | None = None
    """The keys of source and target in a .jsonl file; "translation.en" is nested in "translation". By default as the
    columns of a .csv file."""
    suffixes: TwoKeys | None = None
    """The suffixes of aligned files in a folder: ["en", "de"] for train.en.gz and train.de.gz."""
    weight: float = Field(default=1.0, gt=0, le=MAX_WEIGHT)
    """The number of times that each pair occurs in one epoch; of 0.3, three tenths of the pairs, others each time."""

    file_keys: ClassVar[tuple[str, ...]] = ("source", "target", "weight")

    @model_validator(mode="after")
    def _path_or_source_and_target(self) -> Self:
        if self.path is not None:
            for name in ("source", "target"):
                if getattr(self, name) is not None:
                    raise ConfigError(name, "path is given too; give either path, or source and target.")
        elif self.source is None and self.target is None:
            raise ConfigError("path", "this key is required, unless source and target are given.")
        elif self.source is None:
            raise ConfigError("source", "this key is required with target.")
        elif self.target is None:
            raise ConfigError("target", "this key is required with source.")
        if self.suffixes is not None and self.suffixes[0] == self.suffixes[1]:
            raise ConfigError("suffixes", f"both are {self.suffixes[0]!r}; source and target need different suffixes.")
        return self

    @property
    def location(self) -> str:
        return self.describe(self.path if self.path is not None else f"{self.source} and {self.target}")

    def paths(self) -> tuple[Path, Path | None]:
        """The path, or source and target, on this machine (`DataSource.resolve`)."""
        path, *target = self.resolve(*(name for name in (self.path, self.source, self.target) if name is not None))
        return path, target[0] if target else None


def corpus_of_files(
    pairs: str | Path | None,
    source: str | Path | None,
    target: str | Path | None,
    dataset: str | None = None,
    *,
    names: tuple[str, str, str] = ("pairs", "source", "target"),
) -> CorpusConfig | None:
    """A user's own sentence pairs: one file or folder of `pairs`, or two aligned files; None if none is given.

    With `dataset`, the files are in a dataset of that name. `names` are those of the first three for errors.
    """
    if pairs is not None and (source is not None or target is not None):
        raise UserError(f"{names[0]} and {names[1]}/{names[2]} both name the data; give one of the two.")
    if pairs is None and source is None and target is None:
        if dataset is not None:
            raise UserError(
                f"--dataset {dataset}: also name the files in it, with {names[0]}, or {names[1]} and {names[2]}."
            )
        return None
    if pairs is None and (source is None or target is None):
        raise UserError(f"{names[1]} and {names[2]} belong together: two files with aligned lines.")

    def as_string(path: str | Path | None) -> str | None:
        return None if path is None else str(Path(path).absolute() if dataset is None else path)

    return CorpusConfig(dataset=dataset, path=as_string(pairs), source=as_string(source), target=as_string(target))


@dataclass(frozen=True)
class Corpus:
    """A named list of sources of sentence pairs."""

    name: str
    parts: tuple[CorpusConfig, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise UserError(f"The corpus {self.name!r} is empty; give at least one source.")

    def read(self) -> Iterator[Pair]:
        """Every pair once, source after source, regardless of the weights."""
        for part in self.parts:
            yield from read_corpus(part)

    def fingerprint(self) -> str:
        """SHA-256 over the fingerprints of the sources and their weights, in order."""
        return self._combine([part.weight for part in self.parts])

    def content_fingerprint(self) -> str:
        """The same regardless of the weights."""
        return self._combine([1.0] * len(self.parts))

    @cached_property
    def _part_fingerprints(self) -> list[str]:
        return [corpus_fingerprint(part) for part in self.parts]

    def _combine(self, weights: list[float]) -> str:
        lines = [f"{part} {weight!r}\n" for part, weight in zip(self._part_fingerprints, weights, strict=True)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_corpus(config: CorpusConfig) -> Iterator[Pair]:
    """The pairs of one source, once, in file order. An empty source is an error."""
    pairs = read_pairs(*config.paths(), columns=config.columns, keys=config.keys, suffixes=config.suffixes)
    first = next(pairs, None)
    if first is None:
        raise UserError(f"{config.location}: there are no sentence pairs in it; at least one is needed.")
    yield first
    yield from pairs


def corpus_files(config: CorpusConfig) -> list[Path]:
    """All files that a source is read from."""
    files = list_pair_files(*config.paths(), suffixes=config.suffixes)
    return [path for each in files for path in each if path is not None]


def corpus_fingerprint(config: CorpusConfig) -> str:
    """SHA-256 over the files' bytes and the settings that determine how they are read.

    It does not depend on where the files are or on their weights, so the tokenized corpus can be cached by it.
    """
    digest = hashlib.sha256(repr((config.columns or COLUMNS, config.keys or KEYS)).encode())
    for files in list_pair_files(*config.paths(), suffixes=config.suffixes):
        digest.update(b"aligned" if files.target else b"single")
        if files.target is None and is_records(files.path) and (config.columns or config.keys):
            digest.update(repr((config.columns, config.keys)).encode())  # without them, names decide
        for path in (files.path, files.target):
            if path is not None:
                # The suffixes determine how a file is read; for aligned files only the compression matters.
                suffix = path.suffix.lower() if files.target else uncompressed_suffix(path) + path.suffix.lower()
                try:
                    digest.update(f"{suffix} {file_sha256(path)}\n".encode())
                except OSError as error:
                    raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    return digest.hexdigest()
