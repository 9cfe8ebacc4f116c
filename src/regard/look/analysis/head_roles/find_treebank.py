"""Finding sentences with syntactic governors for a model: a parser's own trees, or an English treebank."""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.registry import find_dataset
from regard.data.trees.cleaning import clean_tree
from regard.data.trees.tree import Tree, read_trees
from regard.look.analysis.head_roles.treebank import GovernedSentence, governors_of, read_conllu

MAX_SENTENCES = 200
"""Sentences of a treebank that are used."""
_TREES = (("gum", "dev.clean.gz"), ("ptb-sample", "dev.clean.gz"))
_ENGLISH = frozenset(["the", "to", "is", "of", "and", "a", "i", "you", "in", "it", "that", "was", "he"])
_ENGLISH_SHARE = 0.1
"""Words of a text that are among these at least, if it is English; other languages have a few of them too."""


class Treebank(NamedTuple):
    """Sentences with governors, and a sentence about where they are from."""

    sentences: list[GovernedSentence]
    description: str


def find_treebank(items: Sequence[Any], words: Iterable[str]) -> Treebank:
    """The treebank for a model with an encoder: the trees among the items of its dev set, or else an English one.

    words: those that the encoder reads in the dev set, which show whether they are English.
    """
    trees = [item for item in items if isinstance(item, Tree)]
    if trees:
        return Treebank(
            [governors_of(tree) for tree in trees], "Syntactic governors are from the trees of the dev set."
        )
    if not is_english(words):
        return Treebank([], "Syntactic governors are measured for English only, and the dev set does not look English.")
    for path in _conllu_files():
        return Treebank(
            list(islice(read_conllu(path), MAX_SENTENCES)), f"Syntactic governors are from the treebank {path.name}."
        )
    for name, file in _TREES:
        folder = find_dataset(name, [file])
        if folder is not None:
            cleaned = (clean_tree(tree) for tree in islice(read_trees(folder / file), MAX_SENTENCES))
            found = [governors_of(tree) for tree in cleaned if tree is not None]
            return Treebank(
                found,
                f"Syntactic governors are from the trees of the dataset {name}, by the head rules of Collins 1999.",
            )
    return Treebank(
        [],
        "Syntactic governors are not measured, because no English treebank is on this machine. Put the dataset gum, or "
        "a file en_*-dev.conllu of Universal Dependencies, under $REGARD_DATA.",
    )


def is_english(words: Iterable[str]) -> bool:
    """Whether a text is English, by its most frequent words."""
    lowercase = [word.lower() for word in words if word.isalpha()]
    return sum(word in _ENGLISH for word in lowercase) > _ENGLISH_SHARE * len(lowercase)


def _conllu_files() -> Iterator[Path]:
    """Dev sets of English dependency treebanks under REGARD_DATA, or in one of its folders."""
    given = os.environ.get("REGARD_DATA")
    if given:
        root = Path(given).expanduser()
        yield from sorted((*root.glob("en_*-dev.conllu"), *root.glob("*/en_*-dev.conllu")))
