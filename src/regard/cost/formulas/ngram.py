"""n-grams: nothing is multiplied, and everything is in the table.

A table with a probability for every token after every context of t = order − 1 tokens has |T|ᵗ⁺¹ entries. An estimated
model has an entry for each n-gram that occurs in its text, of every order: far fewer, and known after counting.
"""

import math

from regard.cost.expression import Expression
from regard.cost.formulas.parts import INTEGER, Formula, T
from regard.model.before.ngram.model import NgramConfig

ENTRY_BYTES = 16
"""A key in int64, a log-probability and a back-off weight in float32. The highest order has no back-off weight."""


def ngram(config: NgramConfig) -> Formula:
    state = Expression.of(INTEGER * (config.order - 1))  # where each context is in the table of its order
    return Formula(Expression(), Expression(), state, sizes={"|T|": config.vocab_size})


def full_table(config: NgramConfig) -> Expression:
    """|T|ᵗ⁺¹: the probabilities of all tokens after all contexts of t tokens."""
    table = Expression.of(1)
    for _ in range(config.order):
        table *= T
    return table


def full_table_power(config: NgramConfig) -> float:
    """The logarithm of the size of the full table to base 10, as the number itself may have thousands of digits."""
    return config.order * math.log10(config.vocab_size)


def entries(config: NgramConfig) -> int | None:
    """The n-grams of all orders in an estimated model, every single token among them; None before counting."""
    if config.order > 1 and not config.entries:
        return None
    return config.vocab_size + sum(config.entries)


def entry_bytes(config: NgramConfig) -> int | None:
    """The bytes of the tables: single tokens have no key, and the highest order has no back-off weights."""
    count = entries(config)
    if count is None:
        return None
    longest = config.entries[-1] if config.order > 1 else config.vocab_size
    return count * ENTRY_BYTES - config.vocab_size * 8 - longest * 4
