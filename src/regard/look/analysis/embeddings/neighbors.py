"""The nearest neighbors of a token among the static embeddings of its vocabulary, by cosine similarity.

A static embedding is the row of the table that a token looks up, before positions and layers: the same wherever the
token stands.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from torch import nn

from regard.errors import UserError
from regard.look.analysis.embeddings.text_models import detokenizer_of, require_text_model, token_embeddings
from regard.look.models.traced_model import TracedModel
from regard.look.schema import Neighbor, Neighbors, Side
from regard.model.before.word_vectors.neighbors import NeighborSearch

MAX_NEIGHBORS = 10


def nearest_neighbors(traced_model: TracedModel, side: Side, token: int) -> Neighbors:
    """The neighbors of a token of the source or the target."""
    text_model = require_text_model(traced_model)
    search = _search(text_model.model, side)
    size, width = search.vectors.shape
    if not 0 <= token < size:
        raise UserError(f"token: there is no token {token}; the ids of this vocabulary are 0 to {size - 1}.")
    found = search.nearest(np.asarray(search.vectors[[token]], np.float32), MAX_NEIGHBORS, excluded=[[token]])
    detokenizer = detokenizer_of(text_model, side)
    pairs = zip(found.rows[0].tolist(), found.similarities[0].tolist(), strict=True)
    return Neighbors(
        side=side,
        token=detokenizer.tokens([token])[0],
        vocab_size=size,
        width=width,
        neighbors=[
            Neighbor(token=detokenizer.tokens([row])[0], similarity=similarity) for row, similarity in pairs if row >= 0
        ],
    )


@lru_cache(maxsize=4)
def _search(model: nn.Module, side: Side) -> NeighborSearch:
    """The search over a table. It keeps the norms of the rows, so a click on a token takes no more than a product."""
    vectors: Any = token_embeddings(model, side).float().cpu().numpy()
    return NeighborSearch(vectors)
