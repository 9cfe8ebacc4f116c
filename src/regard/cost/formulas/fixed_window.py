"""Feed-forward networks over a window or a sentence of fixed length: no operation depends on the tokens before.

DNN1's one-hot words select rows of its first matrix, which takes no multiplication; DNN2 multiplies each embedding by
the matrix of its position once, because the sums of later positions include those of earlier ones.
"""

from regard.cost.expression import Expression
from regard.cost.formulas.parts import (
    FLOAT,
    INTEGER,
    Formula,
    L,
    S,
    T,
    d,
    embedding_parameters,
    h,
    k,
    linear,
    linear_parameters,
    m,
    n,
    vocabularies,
)
from regard.model.before.fixed_window.context import ContextConfig
from regard.model.before.fixed_window.dnn1 import DNN1Config
from regard.model.before.fixed_window.dnn2 import DNN2Config
from regard.model.before.fixed_window.fixed_length import FixedLengthConfig
from regard.model.before.fixed_window.window import WindowLMConfig


def window(config: WindowLMConfig) -> Formula:
    sizes = {"k": config.window, "d": config.width, "h": config.hidden, **vocabularies(config)}
    direct = Expression() if not config.direct else k * d * T
    layer = linear(n, k * d, h)
    return Formula(
        layer + linear(n, h, T) + n * direct * 2,
        embedding_parameters(config, d, head=h) + linear_parameters(k * d, h) + direct,
        d * (FLOAT * (config.window - 1)),
        layer=layer,
        sizes=sizes,
    )


def dnn1(config: DNN1Config) -> Formula:
    layer = linear(n, h, h)
    first = L * h * (T if config.source_vocab_size is None else S) + L * h * T
    return Formula(
        layer * (config.layers - 1) + linear(n, h, T),
        first + h + linear_parameters(h, h) * (config.layers - 1) + linear_parameters(h, T),
        h * FLOAT + INTEGER,
        layer=layer,
        sizes=_sizes(config),
    )


def dnn2(config: DNN2Config) -> Formula:
    hidden = linear(n, h, h) * (config.layers - 1)
    parameters = L * d * h * 2 + h + linear_parameters(h, h) * (config.layers - 1) + linear_parameters(h, d)
    return Formula(
        linear(n, d, h) + hidden + linear(n, h, d) + linear(n, d, T),
        embedding_parameters(config, d) + parameters,
        h * FLOAT + INTEGER,
        linear(m, d, h),
        linear(n, d, h),
        _sizes(config) | {"d": config.width},
    )


def context(config: ContextConfig) -> Formula:
    """Every target word mixes all words of the source and of the target: scores are dot products of features."""
    features: Expression = {"mean": Expression(), "learned": Expression.of(1)}.get(config.mixing, d)
    mixing = linear(n, m + n, features) + linear(n, m + n, d)
    projections = {"learned": d, "query_key": d * d * 2}.get(config.mixing, Expression())
    keys = {"learned": d, "query_key": d * d}.get(config.mixing, Expression())  # of one word
    network = linear(n, d, h) + linear(n, h, h) * (config.layers - 1) + linear(n, h, d)
    parameters = linear_parameters(d, h) + linear_parameters(h, h) * (config.layers - 1) + linear_parameters(h, d)
    words = (d + features) * FLOAT
    return Formula(
        network + mixing + n * projections * 2 + linear(n, d, T),
        embedding_parameters(config, d) + L * d * 2 + projections + parameters,
        (L + 1 + m) * words + INTEGER,
        m * keys * 2,
        mixing + linear(n, d, h),
        _sizes(config) | {"d": config.width},
    )


def _sizes(config: FixedLengthConfig) -> dict[str, int]:
    return {"L": config.max_length, "h": config.hidden, **vocabularies(config)}
