"""The generated tables and figures of the documentation.

`markers` fills the markers of a page, `results`, `ladders`, `before`, `vectors_in_context` and `word_vectors` format
measured results, `serving` the limits of a server and what its protocols were measured at, `scaling` what `regard.cost`
computes and `formulas` its closed forms, and `ablation` lists the variations of a recipe. Importing this package
registers all tables and figures.
"""

from doc_figures import (
    ablation,
    before,
    formulas,
    ladders,
    results,
    scaling,
    serving,
    vectors_in_context,
    word_vectors,
)
from doc_figures.markers import ROOT, render

__all__ = [
    "ROOT",
    "ablation",
    "before",
    "formulas",
    "ladders",
    "render",
    "results",
    "scaling",
    "serving",
    "vectors_in_context",
    "word_vectors",
]
