"""Several corpora read as one.

A corpus is a name and a list of places to read pairs from, each with a weight. A weight says how often every pair
of its part is read in one round: 1 once, 2 twice, 0.5 every other pair (a fresh half in each round). It multiplies a
part's own size, so adding sentences to a part adds to its share, and weights need not sum to anything.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, PositiveInt, model_validator

from regard.config import Config, ConfigError
from regard.data.pairs import COLUMNS, KEYS, Pair, list_parts, read_pairs
from regard.data.registry import get
from regard.data.text import plain_suffix
from regard.errors import UserError

_Name = Annotated[str, Field(min_length=1)]
_TwoColumns = Annotated[tuple[PositiveInt, PositiveInt], Field(strict=False)]  # files have lists, not tuples
_TwoNames = Annotated[tuple[_Name, _Name], Field(strict=False)]


class CorpusConfig(Config):
    """Where pairs are: two aligned files (`source` and `target`), or one `path` to a file or folder."""

    set: _Name | None = None
    """A named data set (`regard data list`) that the paths are in; without it they are paths of the file system."""
    path: _Name | None = None
    """A .tsv, .txt or .jsonl file, compressed or not, or a folder of such files."""
    source: _Name | None = None
    target: _Name | None = None
    columns: _TwoColumns = COLUMNS
    """The columns of source and target in a .tsv file, counted from 1."""
    keys: _TwoNames = KEYS
    """The keys of source and target in a .jsonl file; "translation.en" looks inside "translation"."""
    endings: _TwoNames | None = None
    """How aligned files in a folder end: ["en", "de"] for train.en.gz and train.de.gz."""
    weight: float = Field(default=1.0, gt=0)
    """How often each pair is read in one round."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.path is not None:
            for name in ("source", "target"):
                if getattr(self, name) is not None:
                    raise ConfigError(name, "path is given too; please give either path, or source and target.")
        elif self.source is None and self.target is None:
            raise ConfigError("path", "this key is required, or source and target in its place.")
        elif self.source is None:
            raise ConfigError("source", "this key is required beside target: the file of the other side.")
        elif self.target is None:
            raise ConfigError("target", "this key is required beside source: the file of the other side.")
        if self.endings is not None and self.endings[0] == self.endings[1]:
            raise ConfigError("endings", f"both are {self.endings[0]!r}; source and target need different ones.")
        return self

    @property
    def place(self) -> str:
        """The path or paths, for messages."""
        paths = self.path if self.path is not None else f"{self.source} and {self.target}"
        return paths if self.set is None else f"{self.set}: {paths}"

    def paths(self) -> tuple[Path, Path | None]:
        """The path, or source and target. Files of a named set are found on this machine, or fetched."""
        first, second = self.path or self.source or "", self.target
        folder = Path() if self.set is None else get(self.set, [first] if second is None else [first, second])
        return folder / first, None if second is None else folder / second


@dataclass(frozen=True)
class Corpus:
    """A named list of places to read pairs from."""

    name: str
    parts: tuple[CorpusConfig, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise UserError(f"The corpus {self.name!r} has no parts; please give at least one.")

    def read(self) -> Iterator[Pair]:
        """Every pair once, part after part, whatever the weights."""
        for part in self.parts:
            yield from read_corpus(part)

    def mix(self, seed: int, turn: int = 0) -> Iterator[Pair]:
        """One round over the parts by their weights; see `mix`."""
        return mix(self.parts, seed, turn)

    def fingerprint(self) -> str:
        """SHA-256 in hexadecimal over the fingerprints of the parts and their weights, in order."""
        lines = [f"{fingerprint(part)} {part.weight!r}\n" for part in self.parts]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_corpus(config: CorpusConfig) -> Iterator[Pair]:
    """The pairs of one part, once, in the order of the files. None at all is an error."""
    pairs = read_pairs(*config.paths(), columns=config.columns, keys=config.keys, endings=config.endings)
    first = next(pairs, None)
    if first is None:
        raise UserError(f"{config.place}: there are no sentence pairs in it; at least one is needed.")
    yield first
    yield from pairs


def mix(parts: Sequence[CorpusConfig], seed: int, turn: int = 0) -> Iterator[Pair]:
    """One round over several parts, interleaved by a seed.

    If all weights are 1, the round is every pair once, part after part. Otherwise a part of n pairs gives exactly
    round(weight × n) of them, at least one: whole passes first, then one more over a random choice, each in the order
    of the files. Which part comes next is drawn in proportion to what each has still to give, so all orders that keep
    the parts' own are equally likely, and the mixture is the same from start to end. The same seed and turn give
    the same round; another turn draws anew. Sizes are counted by reading everything once before.
    """
    if all(part.weight == 1 for part in parts):
        for part in parts:
            yield from read_corpus(part)
        return
    sizes = [sum(1 for _ in read_corpus(part)) for part in parts]
    left = [max(1, round(part.weight * size)) for part, size in zip(parts, sizes, strict=True)]
    streams = [
        _repeat(part, size, wanted, random.Random(f"{seed} {turn} {number}"))
        for number, (part, size, wanted) in enumerate(zip(parts, sizes, left, strict=True))
    ]
    dice = random.Random(f"{seed} {turn}")
    for total in range(sum(left), 0, -1):
        drawn = dice.random() * total
        number = 0
        while drawn >= left[number]:
            drawn -= left[number]
            number += 1
        left[number] -= 1
        pair = next(streams[number], None)
        if pair is None:
            raise UserError(f"{parts[number].place}: has fewer pairs than a moment ago; it changed while being read.")
        yield pair


def fingerprint(config: CorpusConfig) -> str:
    """SHA-256 in hexadecimal over the files' bytes and the settings that decide how they are read.

    Where the files are and how often they are read makes no difference; so what is made of one reading (its tokens)
    can be kept under this name.
    """
    whole = hashlib.sha256(repr((config.columns, config.keys)).encode())
    for part in list_parts(*config.paths(), endings=config.endings):
        whole.update(b"aligned" if part.target else b"single")
        for path in (part.path, part.target):
            if path is not None:
                # How a file is read depends on its suffixes; of aligned files only the compression matters.
                kind = path.suffix.lower() if part.target else plain_suffix(path) + path.suffix.lower()
                whole.update(f"{kind} {_digest(path)}\n".encode())
    return whole.hexdigest()


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None


def _repeat(config: CorpusConfig, size: int, wanted: int, dice: random.Random) -> Iterator[Pair]:
    """`wanted` pairs: whole passes, then a random choice of the rest in order (Knuth, volume 2, algorithm S)."""
    passes, rest = divmod(wanted, size)
    for _ in range(passes):
        yield from read_corpus(config)
    if rest:
        for seen, pair in enumerate(read_corpus(config)):
            if dice.random() * (size - seen) < rest:
                rest -= 1
                yield pair
                if not rest:
                    return
