"""Tables of docs/guides/scaling.md about formulas: what every kind of model costs, and measured exponents."""

from collections.abc import Iterator
from typing import Any

from doc_figures.markers import cases, figure, table
from doc_figures.results import Row, percent
from doc_figures.scaling import power
from regard.cost import Formula, formula_of
from regard.cost.format import si_prefixed
from regard.cost.formulas import full_table
from regard.lab.compare.complexity import complexity_of, operations_per_layer
from regard.model import MODELS, STATIC_VECTORS
from regard.model.before.ngram.model import NgramConfig

VOCAB_SIZE = 2_000


def _models() -> Iterator[tuple[str, Any, Formula]]:
    """Every kind of model with its default settings."""
    for kind, config in MODELS.items():
        if kind in STATIC_VECTORS:  # which have no layers and no lengths
            continue
        model: Any = config.read({} if kind == "vision" else {"vocab_size": VOCAB_SIZE})
        formula = formula_of(model)
        assert formula is not None
        yield kind, model, formula


def _escaped(text: object) -> str:
    """Bars would end a cell."""
    return str(text).replace("|", "\\|")


@table("kind | operations of a layer | decoding state, bytes | sequential steps | path length | receptive field")
def complexity_of_every_kind() -> Iterator[Row]:
    for kind, model, formula in _models():
        counts = complexity_of(model)
        assert counts is not None
        state = "–" if kind in ("encoder", "vision") else _escaped(formula.state)
        texts = (each.text for each in (counts.sequential_steps, counts.path_length, counts.receptive_field))
        yield f"`{kind}`", operations_per_layer(model), state, *texts


@table("kind | operations of a forward pass | parameters")
def formula_of_every_kind() -> Iterator[Row]:
    for kind, model, formula in _models():
        parameters = f"a table of {full_table(model)}" if isinstance(model, NgramConfig) else formula.parameters
        yield f"`{kind}`", _escaped(formula.source + formula.target), _escaped(parameters)


@table("order t + 1 | full table | probabilities | n-grams in the text | memory")
def full_tables() -> Iterator[Row]:
    for order, one in enumerate((each for each in cases("cost-exponents-cpu") if "full_table" in each), start=1):
        full = f"{one['full_table']:,}" if one["full_table"] < 1e9 else power(one["full_table"])
        yield order, _escaped(one["formula"]), full, f"{one['entries']:,}", f"{si_prefixed(one['bytes'])}B"


@figure
def ngram_text() -> str:
    one = next(each for each in cases("cost-exponents-cpu") if "full_table" in each)
    return f"{one['words']:,} words of {one['vocabulary']:,} kinds"


@table("layer | operations | sizes | largest term | its exponent | exponent of the operations | measured")
def cost_exponents() -> Iterator[Row]:
    for one in cases("cost-exponents-cpu"):
        if "measured_exponent" not in one:
            continue
        fixed = ", ".join(f"{name} = {size:,}" for name, size in one["fixed"].items())
        sizes = f"{one['varies']} from {one['sizes'][0]:,} to {one['sizes'][-1]:,}, {fixed}"
        yield (
            one["layer"],
            one["formula"],
            sizes,
            one["term"] + (f" (at least {percent(one['dominant'])})" if one["dominant"] < 1 else ""),
            f"{one['varies']}: {one['expected_exponent']}",
            f"{one['flops_exponent']:.2f}",
            f"{one['measured_exponent']:.2f}",
        )
