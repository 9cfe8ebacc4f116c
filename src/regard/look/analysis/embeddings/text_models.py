"""Which traced models have vectors of tokens: those that read texts, with a table of token embeddings."""

from torch import Tensor, nn

from regard.errors import UserError
from regard.look.models.autoregressive import TracedAutoregressiveModel
from regard.look.models.detokenizer import Detokenizer
from regard.look.models.encoder import TracedTextEncoder
from regard.look.models.traced_model import TracedModel
from regard.look.schema import Side

TracedTextModel = TracedAutoregressiveModel | TracedTextEncoder


def require_text_model(traced_model: TracedModel) -> TracedTextModel:
    """The traced model, or an error if it reads images."""
    if not isinstance(traced_model, TracedAutoregressiveModel | TracedTextEncoder):
        raise UserError(f"{traced_model.name} reads images, so it has no embeddings of tokens.")
    return traced_model


def token_embeddings(model: nn.Module, side: Side) -> Tensor:
    """The input embeddings of the source's or the target's tokens.  # (vocabulary, width)"""
    separate = getattr(model, "source_embed_tokens", None) if side == "source" else None
    table = getattr(model, "embed_tokens", None) if separate is None else separate
    weight = getattr(table, "weight", None)
    if not isinstance(weight, Tensor):
        raise UserError("This model has no embeddings of tokens: it looks tokens up in no table of vectors.")
    return weight.detach()


def detokenizer_of(traced_model: TracedTextModel, side: Side) -> Detokenizer:
    """What displays the tokens of the source or the target."""
    if isinstance(traced_model, TracedTextEncoder):
        return traced_model.detokenizer
    return traced_model.source_detokenizer if side == "source" else traced_model.target_detokenizer
