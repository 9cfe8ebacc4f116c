"""The generated tables and figures of the documentation.

`markers` fills the markers of a page, `results` formats measured results, `scaling` formats what `regard.cost`
computes, `formulas` its closed forms, `before` compares older models with their peers, and `ablation` lists the
variations of a recipe. Importing this package registers all tables and figures.
"""

from doc_figures import ablation, before, formulas, results, scaling
from doc_figures.markers import ROOT, render

__all__ = ["ROOT", "ablation", "before", "formulas", "render", "results", "scaling"]
