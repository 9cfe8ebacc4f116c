"""Texts as batches: token streams, cached by their content, and the rows that are cut from them."""

import json
from collections.abc import Iterator, Sequence

from regard.data.batching.packing import PackedDocuments
from regard.data.batching.row_batch import RowBatch
from regard.data.batching.windows import ContiguousWindows, RandomWindows, TokenStream, sequential_windows
from regard.data.registry import cache_folder
from regard.data.store.token_store import cached_store
from regard.data.text.documents import TextConfig, encode_passages, read_passages, text_fingerprint
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.errors import UserError
from regard.task.language_modeling.recipe import LanguageModelingDataConfig
from regard.train.task import LogFn

TextBatches = ContiguousWindows | RandomWindows | PackedDocuments

_VALIDATION_TOKENS = 16384


def make_token_stream(
    sources: Sequence[TextConfig],
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
    fingerprints = [text_fingerprint(source) for source in sources]
    key = json.dumps([fingerprints, tokenizer.fingerprint, whole, end, *([list(before)] if before else [])])
    sizes = {"text": tokenizer.vocab_size}

    def items() -> Iterator[tuple[list[int]]]:
        for source in sources:
            for (ids,) in encode_passages(read_passages(source), tokenizer, eos_id=end, by_document=whole):
                yield ([*before, *ids],)

    stream = TokenStream.from_store(cached_store(cache_folder() / "tokens", key, items, tuple(sizes), sizes, log))
    needed = 1 if whole else 2  # the first token of a window is an input and never a target
    if len(stream) < needed:
        locations = ", ".join(source.location for source in sources)
        raise UserError(f"{locations}: too little text: {len(stream)} tokens, and at least {needed} are needed.")
    return stream


def training_batches(
    data: LanguageModelingDataConfig, stream: TokenStream, rows: int, *, seed: int, start: int | None = None
) -> TextBatches:
    """Endless batches of `rows` rows. Packed documents begin with the token `start`."""
    match data.packing:
        case "contiguous":
            return ContiguousWindows(stream, data.context_length, rows, seed=seed)
        case "random":
            return RandomWindows(stream, data.context_length, rows, seed=seed)
        case "packed":
            return PackedDocuments(stream, data.context_length, rows, seed=seed, bos_id=start)


def evaluation_batches(
    data: LanguageModelingDataConfig, stream: TokenStream, *, start: int | None = None
) -> Iterator[RowBatch]:
    """The whole text once, in the same rows each time."""
    rows = max(1, _VALIDATION_TOKENS // data.context_length)
    if data.packing == "packed":
        return PackedDocuments(stream, data.context_length, rows, bos_id=start).epoch()
    return sequential_windows(stream, data.context_length, rows)
