r"""ARPA files, the exchange format of n-gram models, which KenLM, SRILM and others write and read.

    \data\
    ngram 1=3
    ngram 2=2

    \1-grams:
    -0.52	</s>	0      log10 probability, tokens, log10 of the back-off weight (absent where it is no context)
    …
    \end\

The text begins with `<s>`, which is never predicted, and ends with `</s>`. A model without BOS has the end of the
document before in its place, and is written with `<s>` wherever an n-gram begins with EOS, so that others can use it.
A file whose name ends with .gz is compressed.
"""

import gzip
import math
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, TextIO

import numpy as np

from regard.errors import UserError
from regard.files import new_file
from regard.model.before.ngram.estimation import IMPOSSIBLE, Floats, Integers, Ngrams
from regard.model.before.ngram.model import NgramConfig, NgramLM
from regard.model.embedding import SpecialTokensConfig

BEGIN, END = "<s>", "</s>"
_LN10 = math.log(10)
_MAX_ORDER = 1000


def read_arpa(path: str | Path) -> tuple[NgramLM, list[str]]:
    """A model from an ARPA file, and its vocabulary: the tokens in the order of their ids, which is that of the file.

    Unknown words have the token <unk>, if the file has one.
    """
    path = Path(path)
    try:
        with _open(path) as file:
            return _read(_Lines(file, path))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file.") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); give an ARPA file, or a compressed one (.gz).") from None


def write_arpa(model: NgramLM, vocabulary: Sequence[str], path: str | Path) -> None:
    """Write a model as an ARPA file. `vocabulary` has the name of each token, by its id.

    Names of special tokens are those that ARPA files prescribe. An existing file is replaced.
    """
    path, config = Path(path), model.config
    if len(vocabulary) != config.vocab_size:
        raise UserError(f"The vocabulary has {len(vocabulary)} tokens, but the model has {config.vocab_size}.")
    special = config.special_tokens
    names = list(vocabulary)
    for token, name in ((special.bos, BEGIN), (special.eos, END)):
        if token is not None:
            names[token] = name
    _check_names(names)
    first = list(names)  # as the first token of several
    if special.bos is None and special.eos is not None:
        first[special.eos] = BEGIN
    with new_file(path) as temporary, _open(temporary, "w") as file:
        file.writelines(_lines(model, names, first))


class _Lines:
    """The lines of a file that are not empty, with their numbers for errors."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self.path, self.number = path, 0
        self._file = file

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            self.number += 1
            if line.strip():
                yield line.strip("\r\n")

    def error(self, problem: str) -> UserError:
        return UserError(f"{self.path}, line {self.number}: {problem}")


def _open(path: Path, mode: Literal["r", "w"] = "r") -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt" if mode == "r" else "wt", encoding="utf-8", newline="\n")
    return path.open(mode, encoding="utf-8", newline="\n")


def _read(lines: _Lines) -> tuple[NgramLM, list[str]]:
    stream = iter(lines)
    counts = _read_counts(stream, lines)
    vocabulary: list[str] = []
    tables: list[Ngrams] = []
    token_ids: dict[str, int] = {}
    for order, count in enumerate(counts, start=1):
        if order == 1:
            words, logprobs, backoffs = _read_section(stream, lines, 1, count)
            vocabulary = list(chain.from_iterable(words))
            token_ids = {word: number for number, word in enumerate(vocabulary)}
            if len(token_ids) != count:
                raise lines.error("a token is listed twice among the 1-grams.")
            if BEGIN in token_ids:  # its probability is that of the beginning, of which there is no doubt
                logprobs[token_ids[BEGIN]] = IMPOSSIBLE
            tables.append(Ngrams(np.arange(count), logprobs, backoffs if len(counts) > 1 else None))
            continue
        words, logprobs, backoffs = _read_section(stream, lines, order, count)
        keys = _keys(words, token_ids, tables, lines, order)
        by_key = np.argsort(keys, kind="stable")
        keys = keys[by_key]
        if (keys[1:] == keys[:-1]).any():
            raise lines.error(f"one of the {order}-grams is listed twice.")
        tables.append(Ngrams(keys, logprobs[by_key], backoffs[by_key] if order < len(counts) else None))
    if next(stream, "").strip() != "\\end\\":
        raise lines.error("expected \\end\\ after the last n-gram.")
    special = SpecialTokensConfig(bos=token_ids.get(BEGIN), eos=token_ids.get(END))
    model = NgramConfig(vocab_size=len(vocabulary), special_tokens=special, order=len(counts)).build()
    model.set_tables(tables)
    return model, vocabulary


def _read_counts(stream: Iterator[str], lines: _Lines) -> list[int]:
    """The number of n-grams of each order, from the head of a file."""
    counts: list[int] = []
    if not any(line.strip() == "\\data\\" for line in stream):
        raise lines.error("this is not an ARPA file: it has no line \\data\\.")
    for line in stream:
        if line.strip() == "\\1-grams:":
            break
        order, _, count = line.removeprefix("ngram").partition("=")
        if not (line.startswith("ngram") and order.strip() == str(len(counts) + 1) and count.strip().isdecimal()):
            raise lines.error(f"expected 'ngram {len(counts) + 1}=…', found {line!r}.")
        counts.append(int(count))
    if not 0 < len(counts) <= _MAX_ORDER or not counts[0]:
        raise lines.error("the head of the file names no 1-grams.")
    return counts


def _read_section(
    stream: Iterator[str], lines: _Lines, order: int, count: int
) -> tuple[list[list[str]], Floats, Floats]:
    """The n-grams of one order: their tokens, and natural logarithms of probabilities and back-off weights."""
    if order > 1 and (line := next(stream, "")).strip() != f"\\{order}-grams:":
        raise lines.error(
            f"expected '\\{order}-grams:' after the {order - 1}-grams that the head counts, found {line!r}."
        )
    words: list[list[str]] = []
    values: list[tuple[float, float]] = []
    for _ in range(count):
        parts = next(stream, "").split()
        try:
            value = float(parts[0]), float(parts[order + 1]) if len(parts) == order + 2 else 0.0
        except (ValueError, IndexError):
            value = (math.nan, math.nan)
        if len(parts) not in (order + 1, order + 2) or math.isnan(sum(value)):
            raise lines.error(
                f"expected a probability, {order} tokens and a back-off weight; the file says that it has {count:,} "
                f"{order}-grams."
            )
        words.append(parts[1 : order + 1])
        values.append(value)
    logs = np.clip(np.array(values, dtype=np.float64).reshape(count, 2) * _LN10, IMPOSSIBLE, -IMPOSSIBLE)
    return words, logs[:, 0].copy(), logs[:, 1].copy()


def _keys(
    words: list[list[str]], token_ids: dict[str, int], tables: list[Ngrams], lines: _Lines, order: int
) -> Integers:
    """The keys of n-grams: each extends an (n − 1)-gram by a token."""
    size = len(token_ids)
    try:
        flat = [token_ids[word] for word in chain.from_iterable(words)]
    except KeyError as error:
        raise lines.error(f"{error.args[0]!r} in the {order}-grams is not among the 1-grams.") from None
    ids = np.array(flat, dtype=np.int64).reshape(len(words), order)
    index = ids[:, 0]
    for column in range(1, order - 1):
        keys, known = index * size + ids[:, column], tables[column].keys
        index = np.searchsorted(known, keys)
        missing = (known[np.minimum(index, len(known) - 1)] != keys) if len(known) else np.ones(len(keys), dtype=bool)
        if missing.any():
            gram = " ".join(words[int(np.argmax(missing))])
            raise lines.error(f"{gram!r} is among the {order}-grams, but its beginning is not among the shorter ones.")
    return index * size + ids[:, -1]


def _check_names(names: Sequence[str]) -> None:
    """Refuse tokens that an ARPA file cannot hold: it separates them by spaces."""
    wrong = next((name for name in names if name.split() != [name]), None)
    if wrong is not None:
        raise UserError(f"An ARPA file cannot hold the token {wrong!r}: its tokens have no spaces and are not empty.")
    if len(set(names)) != len(names):
        raise UserError("The vocabulary has a token twice; an ARPA file tells tokens apart by their names.")


def _lines(model: NgramLM, names: list[str], first: list[str]) -> Iterator[str]:
    """The lines of a file. Numbers have as many digits as tell any two float32 values apart."""
    config, size = model.config, model.config.vocab_size
    tables = [{name: tensor.cpu() for name, tensor in table.state_dict().items()} for table in model.tables]
    extra = size if names == first else size + 1  # <s> and </s> are one token of the model
    yield "\\data\\\n"
    for number, table in enumerate(tables):
        yield f"ngram {number + 1}={len(table['logprobs']) if number else extra}\n"
    grams = list(names)
    for number, table in enumerate(tables):
        yield f"\n\\{number + 1}-grams:\n"
        logprobs = (table["logprobs"].double() / _LN10).tolist()
        backoffs = (table["backoffs"].double() / _LN10).tolist() if "backoffs" in table else None
        if number:
            keys = table["keys"].tolist()
            before = first if number == 1 else grams
            grams = [f"{before[key // size]} {names[key % size]}" for key in keys]
        special = config.special_tokens
        for index, (gram, logprob) in enumerate(zip(grams, logprobs, strict=True)):
            backoff = None if backoffs is None else backoffs[index]
            if number == 0 and index == special.bos:
                logprob = 0.0  # as KenLM writes it
            if number == 0 and names != first and index == special.eos:
                yield _line(0.0, BEGIN, backoff)
                backoff = None if backoff is None else 0.0
            yield _line(logprob, gram, backoff)
    yield "\n\\end\\\n"


def _line(logprob: float, gram: str, backoff: float | None) -> str:
    return f"{logprob:.9g}\t{gram}\n" if backoff is None else f"{logprob:.9g}\t{gram}\t{backoff:.9g}\n"
