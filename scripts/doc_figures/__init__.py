"""The generated tables and figures of the documentation.

`markers` fills the markers of a page, `results` and `ladders` format measured results, and `scaling` formats what
`regard.cost` computes. Importing this package registers all tables and figures.
"""

from doc_figures import ladders, results, scaling
from doc_figures.markers import ROOT, render

__all__ = ["ROOT", "ladders", "render", "results", "scaling"]
