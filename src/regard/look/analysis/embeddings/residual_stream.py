"""The residual stream of the text that a model reads: its norm at each token, and how far each layer turns it.

Of a model with an encoder this is the source. The logit lens has the same numbers of a decoder's steps.
"""

from itertools import pairwise

import torch
from torch import Tensor

from regard.look.analysis.embeddings.text_models import require_text_model
from regard.look.schema import ResidualStream
from regard.look.trace import Trace
from regard.model import CausalLM

MAX_TOKENS = 256
"""Tokens in one response, the first of a text."""


@torch.no_grad()
def residual_stream(trace: Trace) -> ResidualStream:
    """Norms and cosines of the tokens of a trace: those of the source, or all of a language model."""
    text_model = require_text_model(trace.require_model())
    header, model = trace.header, text_model.model
    limit = min(MAX_TOKENS, model.max_positions or MAX_TOKENS)
    tokens = (header.target if isinstance(model, CausalLM) else header.source)[:limit]
    with text_model.ablated(header.request):
        states = model.hidden_states(torch.tensor([[token.id for token in tokens]], device=model.device))
    rows = [state[0].double().cpu() for state in states]
    return ResidualStream(
        tokens=tokens,
        norms=[row.norm(dim=-1).tolist() for row in rows],
        cosines=[_cosines(row, before) for before, row in pairwise(rows)],
    )


def _cosines(row: Tensor, before: Tensor) -> list[float]:
    """The cosine of each token's vector to that before the layer; none if a layer changes the width."""
    return torch.cosine_similarity(row, before).tolist() if row.shape == before.shape else []
