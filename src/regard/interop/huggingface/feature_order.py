"""Which axes of a model's tensors run over the features of the residual stream, so that these can be permuted."""

from torch import nn

from regard.attention import CrossAttention
from regard.attention.multi_head import HasKVProjections, MultiHeadAttention
from regard.model.embedding import EmbeddingLayer, TokenEmbedding
from regard.model.feed_forward import FeedForward, GatedFeedForward
from regard.model.stack import Block, Stack


def residual_axes(model: nn.Module) -> dict[str, int]:
    """Which axis of a tensor runs over the features of the residual stream, by the tensor's name.

    Tensors that are not named have none: queries, keys, values, hidden features and logits keep their order.
    """
    names = {module: name for name, module in model.named_modules()}
    axes: dict[str, int] = {}

    def writes(*modules: nn.Module) -> None:
        axes.update({f"{names[module]}.{kind}": 0 for module in modules for kind in ("weight", "bias")})

    def reads(*modules: nn.Module) -> None:
        axes.update({f"{names[module]}.weight": 1 for module in modules})

    for module in model.modules():
        if isinstance(module, TokenEmbedding):
            reads(module)
        elif isinstance(module, EmbeddingLayer):
            writes(module.norm)
        elif isinstance(module, Stack):
            writes(module.final_norm)
        elif isinstance(module, Block):
            writes(*(sublayer.norm for sublayer in module.sublayers))
        elif isinstance(module, FeedForward):
            reads(module.up_proj, *([module.gate_proj] if isinstance(module, GatedFeedForward) else []))
            writes(module.down_proj)
        elif isinstance(module, MultiHeadAttention):
            reads(module.q_proj)
            writes(module.o_proj)
        if isinstance(module, HasKVProjections) and not (isinstance(module, CrossAttention) and module.shared_kv):
            reads(module.k_proj, module.v_proj)
    return axes
