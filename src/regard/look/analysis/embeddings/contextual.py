"""The words of some sentences after each layer: as points of a plane, and how similar the occurrences of one word are.

Before the layers, *bank* beside a river and *bank* beside money have one vector. Each layer adds what it reads from the
other words, and the two part. Sentences are put into groups, such as one for each sense of a word; group 0 is for those
that belong to none.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from regard.errors import UserError
from regard.look.analysis.embeddings.text_models import TracedTextModel, require_text_model, token_embeddings
from regard.look.models.traced_model import TracedModel
from regard.look.schema import (
    ContextualVectors,
    ContextualVectorsRequest,
    GroupSimilarity,
    LayerVectors,
    SentenceWord,
)
from regard.model.before.word_vectors.neighbors import unit_rows
from regard.model.before.word_vectors.projection import pca
from regard.task.contextual_vectors.model import pool_words, tokenize_words

MAX_POINTS = 400
"""Words on a map."""


class Stage(NamedTuple):
    """The vectors of all words at one place of the model."""

    name: str
    vectors: Tensor  # (words, width)


def contextual_vectors(traced_model: TracedModel, request: ContextualVectorsRequest) -> ContextualVectors:
    """Where the words of the sentences are in the static embeddings, in the input of the layers, and after each."""
    text_model = require_text_model(traced_model)
    words, stages = word_stages(text_model, [sentence.text for sentence in request.sentences])
    wanted = {word.lower() for word in request.words or ()}
    shown = [index for index, word in enumerate(words) if not wanted or word.text.lower() in wanted]
    if not shown:
        raise UserError("None of the sentences has one of these words; write words as they stand in a sentence.")
    if len(shown) > MAX_POINTS:
        raise UserError(
            f"The sentences have {len(shown)} words, and a map has room for {MAX_POINTS}; name the words to show, or "
            "give fewer sentences."
        )
    counts = [index for index, word in enumerate(words) if word.text.lower() == (request.word or "").lower()]
    groups = [request.sentences[words[index].sentence].group for index in counts]
    layers: list[LayerVectors] = []
    before: NDArray[np.float64] | None = None
    for stage in stages:
        projection = pca(unit_rows(stage.vectors[shown].double().numpy()))
        before = _oriented(projection.points, before)
        cosines = _cosines(stage.vectors[counts])
        layers.append(
            LayerVectors(
                name=stage.name,
                points=before.tolist(),
                variance=projection.quality,
                cosines=cosines.tolist(),
                groups=_group_similarities(cosines, groups),
            )
        )
    return ContextualVectors(words=words, shown=shown, occurrences=counts, layers=layers)


@torch.no_grad()
def word_stages(text_model: TracedTextModel, sentences: Sequence[str]) -> tuple[list[SentenceWord], list[Stage]]:
    """All words of some sentences, and their vectors: static, in the input, and after each layer.

    A word of several tokens has the mean of their vectors, as in `Pipeline.contextual_vectors`.
    """
    context = text_model.pipeline.context_model
    tokenized = [tokenize_words(context.tokenizer, sentence) for sentence in sentences]
    static = token_embeddings(text_model.model, "source").float()
    found: dict[int, list[Tensor]] = {}
    for numbers, states, _ in context.hidden_states([each.ids for each in tokenized], "all"):
        for row, number in enumerate(numbers):
            each = tokenized[number]
            inside = [state[row, len(context.before) :].cpu() for state in states]
            rows = [static[each.ids].cpu(), *inside]
            found[number] = [pool_words(vectors, each.tokens, "mean") for vectors in rows]
    words = [SentenceWord(sentence=number, text=word) for number, each in enumerate(tokenized) for word in each.words]
    layers = zip(*(found[number] for number in range(len(tokenized))), strict=True)
    vectors = [torch.cat(parts) for parts in layers]
    names = ["static embeddings", "input of layer 1", *(f"layer {layer}" for layer in range(1, len(vectors) - 1))]
    return words, [Stage(name, each) for name, each in zip(names, vectors, strict=True)]


def _oriented(points: NDArray[np.float64], before: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """The same map, mirrored so that it is like the one before: the direction of a principal axis means nothing."""
    if before is None:
        return points
    agreement = (points * before).sum(axis=0)
    mirrored: NDArray[np.float64] = points * np.where(agreement < 0, -1, 1)
    return mirrored


def _cosines(vectors: Tensor) -> Tensor:
    """The cosine similarity of each pair.  vectors: # (n, width); gives (n, n)"""
    units = functional.normalize(vectors.double(), dim=-1)
    return units @ units.T


def _group_similarities(cosines: Tensor, groups: Sequence[int]) -> list[GroupSimilarity]:
    """The mean cosine of the pairs within each group, and between each two."""
    found: list[GroupSimilarity] = []
    known = sorted(set(groups))
    for first in known:
        for second in known:
            pairs = [
                float(cosines[row, column])
                for row, one in enumerate(groups)
                for column, other in enumerate(groups)
                if (one, other) == (first, second) and (row < column or first < second)
            ]
            if first <= second and pairs:
                mean = sum(pairs) / len(pairs)
                found.append(GroupSimilarity(first=first, second=second, pairs=len(pairs), mean=mean))
    return found
