"""How the cost of a model grows: its closed form, the values at some sizes, and a table by length.

FLOPs are those of a forward pass over one row, with a source as long as the target. The closed form counts all pairs of
queries and keys; the estimate of a training step (`estimate.py`) leaves out those that kernels skip. A model without a
closed form is counted at each length.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from regard.cost.estimate import estimate
from regard.cost.format import si_prefixed
from regard.cost.formulas import Formula, entries, entry_bytes, formula_of, full_table, full_table_power
from regard.cost.setup import TrainingSetup
from regard.cost.workload import Workload
from regard.model import (
    AnyModelConfig,
    EncoderDecoderConfig,
    GenerativeConfig,
    Seq2SeqConfig,
    VisionTransformerConfig,
    build_meta,
)
from regard.model.before.ngram.model import NgramConfig

LENGTHS = (10, 100, 1000, 10_000)
_NO_FORMULA = (
    "no closed form, as attention sees part of the keys or is latent, or the model is your own; counted at each length"
)
_NAMES = {
    "n": "target tokens",
    "m": "source tokens",
    "c": "columns",
    "p": "patches",
    "k": "window",
    "d": "width",
    "h": "hidden width",
    "e": "encoder width",
    "a": "attention width",
    "f": "feed-forward width",
    "L": "most positions",
    "|T|": "vocabulary",
    "|S|": "source vocabulary",
}


class AtLength(NamedTuple):
    """The cost of one row of some length."""

    length: int
    flops: int
    state_bytes: int | None
    """In float32; None for a model that does not generate."""

    def to_dict(self) -> dict[str, Any]:
        return self._asdict() | {"flops_per_token": self.flops / self.length}


@dataclass(frozen=True)
class Growth:
    """How a model's cost grows, and what it is for texts of these lengths."""

    config: AnyModelConfig
    source_length: int
    target_length: int

    @property
    def formula(self) -> Formula | None:
        return formula_of(self.config)

    def by_length(self) -> list[AtLength]:
        """For each length that the model can take; none for images, whose number of patches is part of the model."""
        if isinstance(self.config, VisionTransformerConfig):
            return []
        model = build_meta(self.config)
        names = ("max_positions", "max_source_positions")
        limits = [limit for limit in (getattr(model, name, None) for name in names) if limit is not None]
        longest = min(limits, default=LENGTHS[-1])
        return [self._at(length) for length in LENGTHS if length <= longest]

    def to_dict(self) -> dict[str, Any]:
        """`formulas` is None for a model without a closed form; `ngram_table` for one that is no table."""
        return {
            "formulas": None if self.formula is None else self._formulas(self.formula),
            "by_length": [each.to_dict() for each in self.by_length()],
            "ngram_table": _ngram_table(self.config) if isinstance(self.config, NgramConfig) else None,
        }

    def describe(self) -> str:
        """Formulas with their values, and a table by length."""
        lines = self._formula_lines()
        width = max((len(name) for name, _ in lines), default=0)
        blocks = ["\n".join(f"{name:<{width}}  {value}" for name, value in lines)]
        rows = self.by_length()
        if rows and not isinstance(self.config, NgramConfig):
            header = ["tokens", "forward, per row", "per token", *["decoding state"] * self._generates]
            cells = [
                [
                    f"{each.length:,}",
                    f"{si_prefixed(each.flops)}FLOP",
                    f"{si_prefixed(each.flops / each.length)}FLOP",
                    *[f"{si_prefixed(each.state_bytes or 0)}B"] * self._generates,
                ]
                for each in rows
            ]
            widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
            table = ["  ".join(map(str.rjust, row, widths)) for row in [header, *cells]]
            blocks.append("\n".join(table))
        return "\n\n".join(blocks)

    @property
    def _generates(self) -> bool:
        return isinstance(self.config, GenerativeConfig)

    @property
    def _has_source(self) -> bool:
        return isinstance(self.config, EncoderDecoderConfig | Seq2SeqConfig)

    def _at(self, length: int) -> AtLength:
        source = length if self._has_source else 0
        if self.formula is not None:
            state = self.formula.state_bytes(source, length) if self._generates else None
            return AtLength(length, sum(self.formula.flops(source, length)), state)
        cost = estimate(self.config, Workload(1, length, source), TrainingSetup("float32"))
        return AtLength(
            length, cost.forward_flops_per_step, cost.kv_cache_bytes(length, source) if self._generates else None
        )

    def _formulas(self, formula: Formula) -> dict[str, Any]:
        source, target = formula.flops(self.source_length, self.target_length)
        return {
            "sizes": formula.values(self.source_length, self.target_length),
            "layer_order": formula.order,
            "forward_source": {"formula": str(formula.source), "flops": source},
            "forward_target": {"formula": str(formula.target), "flops": target},
            "parameters": {"formula": str(formula.parameters), "count": formula.parameter_count()},
            "state": {
                "formula": str(formula.state),
                "bytes": formula.state_bytes(self.source_length, self.target_length),
            }
            if self._generates
            else None,
        }

    def _formula_lines(self) -> list[tuple[str, str]]:
        if isinstance(self.config, NgramConfig):
            return _ngram_lines(self.config)
        if self.formula is None:
            return [("formula", _NO_FORMULA)]
        formula, source, target = self.formula, self.source_length, self.target_length
        used = formula.values(source, target)
        texts = [formula.source, formula.target, formula.parameters, formula.state]
        symbols = [name for name in _NAMES if name in used and any(each.degree(name) for each in texts)]
        names = _NAMES if self._has_source else _NAMES | {"n": "tokens"}
        sizes = [f"{name} = {used[name]:,} ({names[name]})" for name in symbols]
        if formula.columns is not None:
            sizes = [each.replace("c =", f"c = {formula.columns.text} =") for each in sizes]
        forward = list(zip(("source", "target"), texts[:2], formula.flops(source, target), strict=True))
        if not self._has_source:
            forward = [("row", *forward[1][1:])]
        lines = [
            ("sizes", ", ".join(sizes)),
            *((f"forward, {side}", f"{text} = {si_prefixed(value)}FLOP") for side, text, value in forward),
            ("  order of a layer", formula.order),
            ("parameters", f"{formula.parameters} = {formula.parameter_count():,}"),
        ]
        if self._generates:
            state = formula.state_bytes(source, target)
            lines.append(("decoding state, float32", f"{formula.state} = {si_prefixed(state)}B per row"))
        return lines


def _ngram_table(config: NgramConfig) -> dict[str, Any]:
    return {
        "full": str(full_table(config)),
        "full_log10": full_table_power(config),
        "entries": entries(config),
        "bytes": entry_bytes(config),
    }


def _ngram_lines(config: NgramConfig) -> list[tuple[str, str]]:
    found, nbytes = entries(config), entry_bytes(config)
    estimated = "one entry for each n-gram that occurs in the text: known after counting"
    if found is not None and nbytes is not None:
        estimated = f"{found:,} entries for the n-grams that occur in the text, {si_prefixed(nbytes)}B"
    context = f"{config.order - 1} token{'s' * (config.order != 2)}"
    return [
        ("forward", "0 FLOP: probabilities are looked up, and nothing is multiplied"),
        ("full table", f"{full_table(config)} = {_power(full_table_power(config))} probabilities, after {context}"),
        ("estimated table", estimated),
        ("decoding state", f"{8 * (config.order - 1)} B per row, whatever the length"),
    ]


def _power(logarithm: float) -> str:
    """9.9 → "7.94e9": numbers of any size by their logarithm to base 10."""
    exponent = math.floor(logarithm + 1e-9)
    if exponent < 6:
        return f"{round(10**logarithm):,}"
    return f"{10 ** (logarithm - exponent):.2f}e{exponent}"
