"""Texts as rows of ids: streams made once and found again by content, and the rows that are cut from them."""

import json
from collections.abc import Iterator, Sequence

from regard.data.packed import PackedRows
from regard.data.registry import cache_folder
from regard.data.rows import RowBatch
from regard.data.store import cached
from regard.data.texts import TextConfig, encode_passages, fingerprint, read_passages
from regard.data.tokenizer import TextTokenizer
from regard.data.windows import ContiguousWindows, RandomWindows, TokenStream, whole_windows
from regard.errors import UserError
from regard.task.language_recipe import LanguageDataConfig
from regard.task.recipe import Say

Batches = ContiguousWindows | RandomWindows | PackedRows

_VALIDATION_TOKENS = 16384


def make_stream(
    parts: Sequence[TextConfig],
    tokenizer: TextTokenizer,
    say: Say,
    *,
    whole: bool,
    before: Sequence[int] = (),
    end: int | None = None,
) -> TokenStream:
    """The ids of some texts one behind the other. `whole`: its documents are those of the texts; only then can ids
    stand `before` each."""
    prints = [fingerprint(part) for part in parts]
    key = json.dumps([prints, tokenizer.fingerprint, whole, end, *([list(before)] if before else [])])
    sizes = {"text": tokenizer.vocabulary}

    def items() -> Iterator[tuple[list[int]]]:
        for part in parts:
            for (ids,) in encode_passages(read_passages(part), tokenizer, end=end, whole=whole):
                yield ([*before, *ids],)

    stream = TokenStream.of(cached(cache_folder() / "tokens", key, items, tuple(sizes), sizes, say))
    fewest = 1 if whole else 2  # the first of a window is read and never predicted
    if len(stream) < fewest:
        places = ", ".join(part.place for part in parts)
        raise UserError(f"{places}: too little text, {len(stream)} of the {fewest} tokens that are needed at least.")
    return stream


def training_rows(
    data: LanguageDataConfig, stream: TokenStream, rows: int, *, seed: int, start: int | None = None
) -> Batches:
    """Rows without end, in batches of `rows`. Packed documents are read from a `start` token on."""
    match data.rows:
        case "contiguous":
            return ContiguousWindows(stream, data.context, rows, seed=seed)
        case "random":
            return RandomWindows(stream, data.context, rows, seed=seed)
        case "packed":
            return PackedRows(stream, data.context, rows, seed=seed, start=start)


def whole_rows(data: LanguageDataConfig, stream: TokenStream, *, start: int | None = None) -> Iterator[RowBatch]:
    """All of a text once, the same rows each time."""
    rows = max(1, _VALIDATION_TOKENS // data.context)
    if data.rows == "packed":
        return PackedRows(stream, data.context, rows, start=start).epoch()
    return whole_windows(stream, data.context, rows)
