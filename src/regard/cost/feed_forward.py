"""The cost of a feed-forward: dense, or a mixture of experts.

A dense one saves the input and output of its activation; a gated one (SwiGLU, GEGLU) saves the gate, the up projection,
the activated gate and their product.

A mixture of experts (model/mixture_of_experts.py) saves, for each expert of a token, what a dense one saves, plus its
input and output and the routing indices. Counted are the routed top-k experts, the shared experts, the router and the
weighted sum. Two things are left out: on a GPU without a grouped GEMM for the precision, every expert computes every
token while a CUDA graph is captured (`MixtureOfExperts.waits`); and padding, which is routed nowhere, counts like any
other token.
"""

from regard.cost.op_cost import OpCost
from regard.model.feed_forward import is_gated
from regard.model.mixture_of_experts import MixtureOfExpertsConfig
from regard.model.stack import AnyFeedForward


def feed_forward_cost(config: AnyFeedForward, width: int, tokens: int) -> OpCost:
    if isinstance(config, MixtureOfExpertsConfig):
        return _mixture_of_experts(config, width, tokens)
    return _dense(config, width, tokens)


def hidden_grad_width(config: AnyFeedForward) -> int:
    """Hidden features per token whose gradients exist when backward enters the feed-forward.

    Backward goes through the shared experts first; what they saved is free when the routed ones begin.
    """
    if isinstance(config, MixtureOfExpertsConfig):
        return config.hidden * max(config.top_k - config.shared_experts, config.shared_experts)
    return config.hidden


def _dense(config: AnyFeedForward, width: int, tokens: int, width_factor: int = 1) -> OpCost:
    """A dense feed-forward that is `width_factor` times as wide as `config.hidden`."""
    hidden = tokens * config.hidden * width_factor
    if is_gated(config.activation):  # gate, up projection, activated gate, their product
        matmuls, saved = 3, 4
    else:  # before and after the activation; ReLU's gradient needs only its output, unless dropout changes that
        matmuls, saved = 2, 1 if config.activation == "relu" and config.dropout == 0 else 2
    return OpCost(flops=2 * width * hidden * matmuls, saved=hidden * saved, dropout_masks=hidden * (config.dropout > 0))


def _mixture_of_experts(config: MixtureOfExpertsConfig, width: int, tokens: int) -> OpCost:
    routed = tokens * config.top_k
    router = OpCost(
        flops=2 * tokens * width * config.experts,
        float32_values=tokens * config.experts,
        float32_copies=tokens * width,
    )
    combine = OpCost(flops=2 * routed * width, saved=2 * routed * width + routed)  # inputs, outputs, gate weights
    cost = router + combine + _dense(config, width, routed)
    # Indices of each routed token: its expert, its slot, its source row, and the expert whose bias it takes.
    cost += OpCost(float32_values=2 * routed * (4 if config.bias else 3))
    if config.normalize:  # the gate weights and the sums they are divided by
        cost += OpCost(float32_values=routed + 2 * tokens)
    if config.aux_loss_weight:
        cost += OpCost(float32_values=tokens)
    return cost + _dense(config, width, tokens, config.shared_experts) if config.shared_experts else cost
