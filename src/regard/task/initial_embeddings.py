"""Starting token embeddings from word vectors: the [word_vectors] table of a recipe.

A token that is a whole word starts from that word's vector; all other tokens keep their random initialization. In a
vocabulary of subwords, whole words are tokens with the space before them. The file is read when a run begins: a run
that is resumed has the embeddings in its checkpoint.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from regard.config import Config, ConfigError
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.errors import UserError
from regard.interop.word_vectors import read_word_vectors, word_vector_dimension
from regard.model import AnyModel, AnyModelConfig, build_meta
from regard.model.embedding import TokenEmbedding
from regard.run.checkpoint import CheckpointReader
from regard.train.task import LogFn


class WordVectorsConfig(Config):
    """Word vectors that token embeddings start from."""

    path: str = Field(min_length=1)
    """A file of word vectors: of word2vec (text or binary), GloVe, fastText (.vec) or safetensors."""
    freeze: bool = False
    """Whether the embeddings stay as they are: all of the vocabulary, and the output projection if it is tied."""


class TranslationWordVectorsConfig(Config):
    """Word vectors that the token embeddings of a translation model start from."""

    source: WordVectorsConfig | None = None
    """Those of the source language."""
    target: WordVectorsConfig | None = None
    """Those of the target language. If one vocabulary serves both languages, a word in both files gets this vector."""

    def tables(self) -> dict[str, WordVectorsConfig]:
        """The files by side, the source first."""
        sides = {"source": self.source, "target": self.target}
        return {side: config for side, config in sides.items() if config is not None}


def check_word_vectors(config: AnyModelConfig, sides: Mapping[str, WordVectorsConfig], init_from: str | None) -> None:
    """Refuse a recipe whose model cannot start from word vectors. No file is read."""
    if init_from is not None:
        raise ConfigError("word_vectors", "the embeddings are those of the model in init_from; leave one of them out.")
    if not sides:
        raise ConfigError("word_vectors", "no file is given; set source, target or both, or leave this table out.")
    model = build_meta(config)
    tables = {side: embedding_table(model, side) for side in sides}
    if any(table is None for table in tables.values()):
        kind = config.plain().get("kind", type(config).__name__)
        raise ConfigError("word_vectors", f"a model of kind {kind!r} has no token embeddings; leave this table out.")
    if len({id(table) for table in tables.values()}) < len({each.freeze for each in sides.values()}):
        raise ConfigError(
            "word_vectors.target.freeze", "source and target share one table, so either both are frozen or none is."
        )


def check_dimensions(config: AnyModelConfig, sides: Mapping[str, WordVectorsConfig], folder: Path) -> None:
    """Refuse vectors of another size than the model's embeddings, before any data is read; not if the run in the folder
    goes on from a checkpoint, which has the embeddings."""
    if not sides or _is_resumed(folder):
        return
    model = build_meta(config)
    for side, vectors in sides.items():
        table, dimension = embedding_table(model, side), word_vector_dimension(vectors.path)
        if table is not None and table.weight.shape[1] != dimension:
            raise UserError(
                f"{vectors.path}: the vectors have {dimension} numbers, but the model's embeddings have "
                f"{table.weight.shape[1]}; set model.width to {dimension}, or use other vectors."
            )


@torch.no_grad()
def start_from_word_vectors(
    model: AnyModel,
    sides: Mapping[str, WordVectorsConfig],
    tokenizers: Mapping[str, TextTokenizer],
    folder: Path,
    log: LogFn,
) -> None:
    """Copy the vectors of each side's words into the model, unless the run has a checkpoint; freeze what is frozen."""
    for side, config in sides.items():
        table, tokenizer = embedding_table(model, side), tokenizers[side]
        assert table is not None
        if not _is_resumed(folder):
            words = whole_words(tokenizer)
            vectors, _ = read_word_vectors(config.path, words)
            if not vectors:
                raise UserError(
                    f"{config.path}: it has none of the {len(words):,} whole words of the vocabulary; use vectors of "
                    "this language, with the same letter case as the training data."
                )
            for word, vector in vectors.items():
                table.weight[words[word]] = vector
            log(f"{len(vectors):,} of {tokenizer.vocab_size:,} tokens start from the word vectors in {config.path}.")
        table.weight.requires_grad_(not config.freeze)


def whole_words(tokenizer: TextTokenizer) -> dict[str, int]:
    """The tokens that are whole words, by the word as it is written: their ids.

    In a vocabulary of words that is every token, and in one of WordPiece every token that does not continue a word
    (##ing). Otherwise it is a token that begins with a space: without one it may be a part of a longer word.
    """
    model = json.loads(tokenizer.json)["model"]
    continued = "" if model["type"] == "WordLevel" else model.get("continuing_subword_prefix") or ""
    found = {}
    for token in tokenizer.ids:
        if token in tokenizer.special_ids:
            continue
        name = tokenizer.tokenizer.id_to_token(token) or ""
        if model["type"] == "WordLevel" or (model["type"] == "WordPiece" and not name.startswith(continued or "\0")):
            word = name
        elif model["type"] == "WordPiece":
            continue
        else:  # a decoder may drop the sign of a space at the beginning of a text
            text = f" {name[1:]}" if name.startswith("▁") else tokenizer.decode([token])
            word = text[1:] if text.startswith(" ") else ""
        if word and not any(map(str.isspace, word)):
            found[word] = token
    return found


def embedding_table(model: Any, side: str) -> TokenEmbedding | None:
    """The token embedding of a side; None if the model has none."""
    names = ("source_embed_tokens", "embed_tokens") if side == "source" else ("embed_tokens",)
    tables = [table for name in names if isinstance(table := getattr(model, name, None), TokenEmbedding)]
    return tables[0] if tables else None


def _is_resumed(folder: Path) -> bool:
    """Whether the run in a folder goes on from a checkpoint."""
    return CheckpointReader(folder / "checkpoints").newest() is not None
