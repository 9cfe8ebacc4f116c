"""Texts as batches: token streams, cached by their content, and the rows that are cut from them."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from regard.data.batching.packing import PackedDocuments
from regard.data.batching.row_batch import RowBatch
from regard.data.batching.windows import ContiguousWindows, RandomWindows, TokenStream, sequential_windows
from regard.data.registry import cache_folder
from regard.data.store.token_store import cached_store
from regard.data.text.documents import (
    TextConfig,
    encode_passages,
    read_passages,
    text_fingerprint,
    without_documents,
)
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.errors import UserError
from regard.task.base import Recipe
from regard.task.held_out import HELD_OUT, Texts, hold_out_texts
from regard.task.language_modeling.recipe import LanguageModelingDataConfig
from regard.train.task import LogFn

TextBatches = ContiguousWindows | RandomWindows | PackedDocuments

_VALIDATION_TOKENS = 16384


def training_and_evaluation_texts(recipe: Recipe, folder: Path, log: LogFn) -> tuple[Texts, dict[str, TextConfig]]:
    """The texts to train on, and those to evaluate on by name: "valid", which may be held out, and the test sets."""
    data: LanguageModelingDataConfig = recipe.data
    if data.valid is not None:
        return Texts(data.train), {"valid": data.valid, **data.test}
    training = hold_out_texts(data.train, folder / HELD_OUT, data.dev_size, log)
    held_out = recipe.held_out_source(folder)
    return training, dict(data.test) if held_out is None else {"valid": held_out, **data.test}


def make_token_stream(
    texts: Texts,
    tokenizer: TextTokenizer,
    log: LogFn,
    *,
    whole: bool,
    before: Sequence[int] = (),
    end: int | None = None,
) -> TokenStream:
    """The ids of texts, concatenated, each document followed by `end`.

    With `whole`, the stream keeps the documents apart, and the ids `before` precede each of them.
    """
    fingerprints = [text_fingerprint(source) for source in texts.sources]
    key = json.dumps([fingerprints, tokenizer.fingerprint, whole, end, *([list(before)] if before else [])])
    key += json.dumps(sorted(texts.skip)) if texts.skip else ""
    sizes = {"text": tokenizer.vocab_size}

    def items() -> Iterator[tuple[list[int]]]:
        for source in texts.sources:
            passages = without_documents(read_passages(source), texts.skip)
            for (ids,) in encode_passages(passages, tokenizer, eos_id=end, by_document=whole):
                yield ([*before, *ids],)

    stream = TokenStream.from_store(cached_store(cache_folder() / "tokens", key, items, tuple(sizes), sizes, log))
    needed = 1 if whole else 2  # the first token of a window is an input and never a target
    if len(stream) < needed:
        locations = ", ".join(source.location for source in texts.sources)
        raise UserError(f"{locations}: too little text: {len(stream)} tokens, and at least {needed} are needed.")
    return stream


def training_batches(
    data: LanguageModelingDataConfig, stream: TokenStream, rows: int, *, seed: int, start: int | None = None
) -> TextBatches:
    """Endless batches of `rows` rows, or of fewer and shorter ones that hold the whole text.

    Packed documents begin with the token `start`.
    """
    if data.packing == "packed":
        return _packed(stream, data.context_length, rows, seed=seed, start=start)
    positions = len(stream) - 1
    length = min(data.context_length, positions)
    if data.packing == "random":
        return RandomWindows(stream, length, min(rows, -(-positions // length)), seed=seed)
    windows = 1 + -(-(positions - 1) // length)  # the first window may be short
    return ContiguousWindows(stream, length, min(rows, windows), seed=seed)


def evaluation_batches(
    data: LanguageModelingDataConfig, stream: TokenStream, *, start: int | None = None
) -> Iterator[RowBatch]:
    """The whole text once, in the same rows each time."""
    rows = max(1, _VALIDATION_TOKENS // data.context_length)
    if data.packing == "packed":
        return _packed(stream, data.context_length, rows, start=start).epoch()
    return sequential_windows(stream, data.context_length, rows)


def _packed(stream: TokenStream, length: int, rows: int, *, seed: int = 0, start: int | None) -> PackedDocuments:
    """Packed documents in batches of at most `rows` rows, none of which is always empty."""
    length = min(length, len(stream))
    packed = PackedDocuments(stream, length, rows, seed=seed, bos_id=start)
    if packed.row_count >= rows:
        return packed
    return PackedDocuments(stream, length, packed.row_count, seed=seed, bos_id=start)
