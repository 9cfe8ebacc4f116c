"""A stack of Transformer layers: attention takes n²·d operations, everything else n·d².

All pairs of queries and keys count, as in the reference implementation and in the paper. Widths that are not those of
the paper, such as fewer KV heads or another head_dim, are fractions of d.
"""

from collections.abc import Mapping
from fractions import Fraction

from regard.attention import Full, LatentAttentionConfig, MultiHeadConfig, read_pattern
from regard.cost.expression import Expression
from regard.cost.formulas.parts import HALF, attention, d, f, linear, linear_parameters
from regard.model.feed_forward import NoFeedForwardConfig, is_gated
from regard.model.mixture_of_experts import MixtureOfExpertsConfig
from regard.model.stack import AnyFeedForward, NormConfig, StackConfig


class StackFormula:
    """A stack of multi-head attention and feed-forwards."""

    def __init__(self, config: StackConfig, heads: MultiHeadConfig, sizes: Mapping[str, int]) -> None:
        self.config, self.heads, self.sizes = config, heads, sizes
        width = sizes["d"]
        each = heads.sizes(width)
        self.bias = heads.bias
        self.queries = self._part(each.heads * each.head_dim)
        self.values = self._part(each.heads * each.value_head_dim)
        self.kv = self._part(heads.kv_features(width))
        self.norm = norm_parameters(config.norm)

    @classmethod
    def of(cls, config: StackConfig, sizes: Mapping[str, int]) -> "StackFormula | None":
        heads = config.attention
        if isinstance(heads, LatentAttentionConfig) or read_pattern(heads.pattern) != Full():
            return None
        return cls(config, heads, sizes)

    def flops(self, tokens: Expression) -> Expression:
        """Self-attention and feed-forward of all layers."""
        total = self._self_attention(tokens) * self.config.layers
        return sum((self._feed_forward(each, tokens) for each in self.config.feed_forwards), total)

    def layer(self, tokens: Expression) -> Expression:
        """The last layer."""
        return self._self_attention(tokens) + self._feed_forward(self.config.feed_forward, tokens)

    def attend(self, queries: Expression, keys: Expression) -> Expression:
        """QKᵀ and weights × V."""
        return (attention(queries, keys, self.queries) + attention(queries, keys, self.values)) * HALF

    def output(self, tokens: Expression) -> Expression:
        return linear(tokens, self.values, d) if self.heads.output_projection else Expression()

    def parameters(self) -> Expression:
        """All layers and the final norm of a stack that does not normalize the residual sum."""
        total = (self.attention_parameters(kv=True) + self.norm) * self.config.layers
        for each in self.config.feed_forwards:
            if not isinstance(each, NoFeedForwardConfig):
                total += self._feed_forward_parameters(each) + self.norm
        return total if self.config.norm_position == "post" else total + self.norm

    def attention_parameters(self, *, kv: bool) -> Expression:
        """Query and output projection, and those of keys and values if the layer has its own."""
        total = linear_parameters(d, self.queries, bias=self.bias)
        if self.heads.output_projection:
            total += linear_parameters(self.values, d, bias=self.bias)
        if self.heads.similarity == "cosine":  # a scale for each head
            total += self.heads.heads
        return total + linear_parameters(d, self.kv, bias=self.bias) if kv else total

    def _self_attention(self, tokens: Expression) -> Expression:
        return linear(tokens, d, self.queries + self.kv) + self.attend(tokens, tokens) + self.output(tokens)

    def _feed_forward(self, config: AnyFeedForward, tokens: Expression) -> Expression:
        if isinstance(config, NoFeedForwardConfig):
            return Expression()
        each = linear(tokens, d, self._hidden(config)) * (3 if is_gated(config.activation) else 2)
        if not isinstance(config, MixtureOfExpertsConfig):
            return each
        # The router, the experts, and the sum of their outputs weighted by the gates.
        routed = each * (config.top_k + config.shared_experts) + linear(tokens, d, config.top_k)
        return routed + linear(tokens, d, config.experts)

    def _feed_forward_parameters(self, config: AnyFeedForward) -> Expression:
        hidden, ups = self._hidden(config), 2 if is_gated(config.activation) else 1
        each = linear_parameters(d, hidden * ups, bias=config.bias)
        if not isinstance(config, MixtureOfExpertsConfig):
            return each + linear_parameters(hidden, d, bias=config.bias)
        each = (each + linear_parameters(hidden, d, bias=config.bias)) * config.experts + d * config.experts
        if not config.shared_experts:
            return each
        hidden = hidden * config.shared_experts  # one feed-forward, that many times as wide
        shared = linear_parameters(d, hidden * ups, bias=config.bias) + linear_parameters(hidden, d, bias=config.bias)
        return each + shared

    def _hidden(self, config: AnyFeedForward) -> Expression:
        """f; where not all layers have the same width, the largest is f."""
        return f * Fraction(config.hidden, self.sizes["f"])

    def _part(self, width: int) -> Expression:
        """A width as a fraction of d."""
        return d * Fraction(width, self.sizes["d"])


def norm_parameters(config: NormConfig) -> Expression:
    return d * (2 if config.kind == "layer" and config.bias else 1)
