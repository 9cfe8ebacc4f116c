"""Sums of products of symbols, such as 8·n·d² + 2·n·d·|T|: what a cost is as a function of sizes.

A formula that is written as code, 2 * n * d * T, is computed with numbers and printed with symbols. Coefficients are
exact: integers, or fractions where one width is a part of another. There are no quotients of symbols, so that the terms
that dominate the others when sizes grow can be read off.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Union

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
Number = int | Fraction
Product = tuple[tuple[str, int], ...]
"""Symbols with their exponents, in alphabetical order."""


@dataclass(frozen=True)
class Expression:
    """A polynomial in symbols: each product of symbols with its coefficient."""

    terms: tuple[tuple[Product, Number], ...] = ()

    @classmethod
    def of(cls, value: "Expression | Number") -> "Expression":
        return value if isinstance(value, Expression) else expression({(): value})

    def __add__(self, other: "Expression | Number") -> "Expression":
        terms = dict(self.terms)
        for product, coefficient in Expression.of(other).terms:
            terms[product] = terms.get(product, 0) + coefficient
        return expression(terms)

    def __mul__(self, other: "Expression | Number") -> "Expression":
        terms: dict[Product, Number] = {}
        for mine, a in self.terms:
            for theirs, b in Expression.of(other).terms:
                product = _times(mine, theirs)
                terms[product] = terms.get(product, 0) + a * b
        return expression(terms)

    __radd__ = __add__
    __rmul__ = __mul__

    def __call__(self, values: Mapping[str, int]) -> int:
        """Its value for sizes by symbol."""
        return round(
            sum(
                coefficient * math.prod(int(values[symbol] ** exponent) for symbol, exponent in product)
                for product, coefficient in self.terms
            )
        )

    def renamed(self, names: Mapping[str, str]) -> "Expression":
        """The same with other symbols, several of which may become one."""
        total = Expression()
        for product, coefficient in self.terms:
            term = Expression.of(coefficient)
            for name, exponent in product:
                term *= Expression((((((names.get(name, name), exponent),)), 1),))
            total += term
        return total

    def degree(self, symbol: str) -> int:
        """The largest exponent of a symbol."""
        return max((dict(product).get(symbol, 0) for product, _ in self.terms), default=0)

    @property
    def order(self) -> str:
        """Its order of growth: the products that are no factor of another, without coefficients."""
        products = [dict(product) for product, _ in self.terms]
        leading = [
            product
            for product in products
            if not any(
                other != product and all(other.get(symbol, 0) >= exponent for symbol, exponent in product.items())
                for other in products
            )
        ]
        return f"O({' + '.join(_format(tuple(product.items()), 1) for product in leading) or '1'})"

    def __str__(self) -> str:
        return " + ".join(_format(product, coefficient) for product, coefficient in self.terms) or "0"


Size = Union[Expression, Number]  # noqa: UP007 (a class and a name that is defined later)


def symbol(name: str) -> Expression:
    return Expression(((((name, 1),), 1),))


def expression(terms: Mapping[Product, Number]) -> Expression:
    """The sum of these products with their coefficients. Terms of higher degree come first."""
    kept = [(product, coefficient) for product, coefficient in terms.items() if coefficient]
    kept.sort(key=lambda term: (-sum(exponent for _, exponent in term[0]), _format(term[0], 1)))
    return Expression(tuple(kept))


def _times(a: Product, b: Product) -> Product:
    exponents = dict(a)
    for name, exponent in b:
        exponents[name] = exponents.get(name, 0) + exponent
    return tuple(sorted(exponents.items()))


_READING_ORDER = {name: index for index, name in enumerate(("k", "m", "c", "p", "n", "L", "d", "h", "f", "|S|", "|T|"))}


def _format(product: Product, coefficient: Number) -> str:
    """Lengths come before widths, and these before the vocabulary, as in n²·d."""
    ordered = sorted(product, key=lambda part: (_READING_ORDER.get(part[0], len(_READING_ORDER)), part[0]))
    parts = [name + ("" if exponent == 1 else str(exponent).translate(_SUPERSCRIPTS)) for name, exponent in ordered]
    number = f"{int(coefficient):,}" if coefficient == int(coefficient) else str(coefficient)
    return "·".join([number] * (coefficient != 1 or not parts) + parts)
