"""Vectors of words in their sentence and of whole sentences, from a pipeline of any kind.

Static vectors of words answer the same questions, for comparison: there a word has one vector wherever it stands, and a
sentence is the bag of its words.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.data.text.treebank_tokenizer import treebank_tokenize
from regard.data.text.words import WordsConfig, splitter
from regard.errors import UserError
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from regard.task.contextual_vectors.model import Layer, Pooling, Progress, Sentence, Text, TextVectors

if TYPE_CHECKING:
    from regard.task.pipeline import Pipeline


def contextual_vectors(
    pipeline: "Pipeline",
    sentences: Sequence[Sentence],
    *,
    layer: Layer = None,
    pooling: Pooling = "mean",
    progress: Progress | None = None,
) -> list[TextVectors]:
    """The words of each sentence with their vectors; of static vectors, the words that have one."""
    keyed = static_vectors_of(pipeline)
    if keyed is None:
        return pipeline.context_model.word_vectors(sentences, layer, pooling, progress)
    _check_static(layer)
    return [_static_words(keyed, treebank_tokenize(each) if isinstance(each, str) else each) for each in sentences]


def occurrences(
    pipeline: "Pipeline", word: str, sentences: Sequence[str], *, layer: int | None = None
) -> list[tuple[str, Tensor]]:
    """Each sentence once for every time that it has the word, in any letter case, with the word's vector there."""
    found = []
    for sentence, (words, vectors) in zip(sentences, contextual_vectors(pipeline, sentences, layer=layer), strict=True):
        same = [vector for each, vector in zip(words, vectors, strict=True) if each.lower() == word.lower()]
        if not same:
            raise UserError(f"{word!r} has no vector in {sentence!r}; give sentences with this word.")
        found += [(sentence, vector) for vector in same]
    return found


def sentence_vectors(
    pipeline: "Pipeline",
    texts: Sequence[Text],
    *,
    layer: int | None = None,
    truncate: bool = False,
    progress: Progress | None = None,
) -> Tensor:
    """A unit vector for each text; zeros for one without tokens, or without known words.  # (texts, width)"""
    keyed = static_vectors_of(pipeline)
    if keyed is None:
        means = pipeline.context_model.mean_vectors(texts, layer, truncate=truncate, progress=progress)
        return functional.normalize(means, dim=-1)
    _check_static(layer)
    return functional.normalize(bag_of_vectors(keyed, _only_texts(texts)), dim=-1)


def count_tokens(pipeline: "Pipeline", texts: Sequence[Text]) -> int:
    """How many tokens some texts have; for static vectors, how many words."""
    if static_vectors_of(pipeline) is not None:
        split = splitter(WordsConfig(lowercase=False))
        return sum(len(split(text)) for text in _only_texts(texts))
    return sum(map(len, pipeline.context_model.token_rows(texts)))


def bag_of_vectors(keyed: KeyedVectors, texts: Sequence[str]) -> Tensor:
    """The mean of the static vectors of each text's words; zeros where none is known.  # (texts, width)"""
    split = splitter(WordsConfig(lowercase=False))
    found = torch.zeros(len(texts), keyed.dimension)
    for row, text in enumerate(texts):
        known = _static_words(keyed, split(text)).vectors
        if len(known):
            found[row] = known.mean(dim=0)
    return found


def static_vectors_of(pipeline: Any) -> KeyedVectors | None:
    """The static vectors of a pipeline that has nothing else; None for a model that reads sentences."""
    keyed = getattr(pipeline, "keyed", None)
    return keyed if isinstance(keyed, KeyedVectors) else None


def _static_words(keyed: KeyedVectors, words: Sequence[str]) -> TextVectors:
    """The words that have a vector, as they are spelled or in small letters."""
    known: list[tuple[str, Tensor]] = []
    for word in words:
        spelling = word if word in keyed else word.lower()
        if spelling in keyed:
            known.append((word, torch.from_numpy(keyed[spelling])))
        elif keyed.compose is not None and (composed := keyed.compose(spelling)) is not None:
            known.append((word, torch.from_numpy(composed)))
    vectors = torch.stack([vector for _, vector in known]) if known else torch.zeros(0, keyed.dimension)
    return TextVectors(tuple(word for word, _ in known), vectors)


def _only_texts(texts: Sequence[Text]) -> list[str]:
    found = [text for text in texts if isinstance(text, str)]
    if len(found) < len(texts):
        raise UserError("Static vectors of words have no token ids; give texts.")
    return found


def _check_static(layer: Layer) -> None:
    if layer not in (None, 0, "all"):
        raise UserError(f"There is no layer {layer}; static vectors of words have no layers.")
