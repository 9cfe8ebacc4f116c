"""The word vectors of whatever has some: a file, a run of word vectors, or the token embeddings of any other model.

A model's tokens are not words. Those that are whole words stand for them: every token in a vocabulary of words, tokens
that begin with a space (or its sign ▁ or Ġ) in a vocabulary of subwords, and tokens without ## in one of WordPiece.
The space or sign is left out. All other tokens, which are parts of words, have no place in these vectors.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from regard.errors import UserError
from regard.interop.word_vectors import looks_like_vectors, open_word_vectors
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from regard.run import find_model, load_model
from regard.run.locate import note
from regard.task.evaluate import recorded_task
from regard.task.initial_embeddings import embedding_table, whole_words
from regard.task.text_encoder import encoder_tokenizer

TASK = "word-vectors"
"""The name of the task that trains word vectors."""
Side = Literal["source", "target"]


def open_keyed_vectors(name: str | Path, side: Side = "source", log: Callable[[str], None] = note) -> KeyedVectors:
    """The vectors of a file or a model. Of a model with two vocabularies, `side` chooses one."""
    path = find_model(name)
    if path.is_file():
        return open_word_vectors(path, log)
    if not path.exists():
        raise UserError(f"{name}: there is no such file or model; give a file of word vectors, a run folder, or en-tr.")
    info = recorded_task(name) if path.is_dir() else None
    if info is not None and info.name == TASK:
        from regard.task.auto import open_model

        keyed: KeyedVectors = getattr(open_model(name), "keyed")  # noqa: B009
        return keyed
    return _token_embeddings(name, side, log)


def has_word_vectors(name: str | Path) -> bool:
    """Whether a name is that of a file or run of word vectors, and not of a model that merely has embeddings."""
    path = find_model(name)
    if path.is_file():
        return looks_like_vectors(path)
    info = recorded_task(name) if path.is_dir() else None
    return info is not None and info.name == TASK


def _token_embeddings(name: str | Path, side: Side, log: Callable[[str], None]) -> KeyedVectors:
    loaded = load_model(name)
    table, tokenizer = embedding_table(loaded.model, side), loaded.tokenizer
    if table is None or tokenizer is None:
        missing = "token embeddings" if table is None else "a tokenizer"
        raise UserError(f"{name}: a model of kind {loaded.config.kind!r} without {missing} has no word vectors.")
    special = getattr(loaded.config, "special_tokens", None)
    text_tokenizer = encoder_tokenizer(loaded.target_tokenizer or tokenizer if side == "target" else tokenizer, special)
    words, size = whole_words(text_tokenizer), text_tokenizer.vocab_size
    if not words:
        raise UserError(f"{name}: none of its {size:,} tokens is a whole word.")
    ordered = sorted(words, key=words.__getitem__)  # tokenizers give frequent tokens low ids
    rows = table.weight.detach().cpu().float().numpy()[[words[word] for word in ordered]]
    log(f"{name}: {len(ordered):,} of its {size:,} tokens are whole words; these have vectors here.")
    return KeyedVectors(ordered, np.ascontiguousarray(rows), name=str(name))
