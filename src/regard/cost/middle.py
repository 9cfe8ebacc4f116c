"""What a feed-forward does and keeps for backward: a dense one, or experts of which each token meets a few.

A dense one keeps what enters and leaves its bend, gated ones both widened copies, the bent one and the product.

Experts (model/experts.py) keep for each of a token's experts what a dense one does, what enters it and what leaves it,
and where tokens went. Counted are the experts that a token goes to, the shared ones, the router, and the sum over the
gates. Two things are left out: a GPU without a grouped product for the precision lets every expert compute every token
while a pass is recorded (`Experts.waits`), and padding, which goes to nobody, counts like any other token.
"""

from regard.cost.effort import Effort
from regard.model.dense import FeedForwardConfig, is_gated
from regard.model.experts import ExpertsConfig


def feed_forward_of(config: FeedForwardConfig, width: int, tokens: int) -> Effort:
    """Of either kind: experts have the settings of a dense one, and more."""
    return _experts(config, width, tokens) if isinstance(config, ExpertsConfig) else _dense(config, width, tokens)


def middle_width(config: FeedForwardConfig) -> int:
    """Of how many numbers of a token the way back through the middle takes room for gradients.

    Shared experts go first, and when the others begin what those kept is gone.
    """
    if isinstance(config, ExpertsConfig):
        return config.hidden * max(config.active - config.shared, config.shared)
    return config.hidden


def _dense(config: FeedForwardConfig, width: int, tokens: int, wide: int = 1) -> Effort:
    """`wide`: how many times as wide as the settings say."""
    hidden = tokens * config.hidden * wide
    if is_gated(config.activation):  # both widened copies, the bent one, and their product
        maps, kept = 3, 4
    else:  # before and after the bend; ReLU's gradient needs only what comes after, if dropout leaves it alone
        maps, kept = 2, 1 if config.activation == "relu" and config.dropout == 0 else 2
    return Effort(flops=2 * width * hidden * maps, kept=hidden * kept, masks=hidden * (config.dropout > 0))


def _experts(config: ExpertsConfig, width: int, tokens: int) -> Effort:
    places = tokens * config.active
    scored = Effort(flops=2 * tokens * width * config.experts, sums=tokens * config.experts, copies=tokens * width)
    mixed = Effort(flops=2 * places * width, kept=2 * places * width + places)  # what enters, what leaves, the gates
    found = scored + mixed + _dense(config, width, places)
    # The expert and the place of each, where from, and whose bias; then gates and sums by which they are divided.
    found += Effort(sums=2 * places * (4 if config.bias else 3))
    if config.normalise:
        found += Effort(sums=places + 2 * tokens)
    if config.strength:
        found += Effort(sums=tokens)
    return found + _dense(config, width, tokens, config.shared) if config.shared else found
