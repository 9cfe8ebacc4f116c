"""The table of docs/guides/ablation.md: every variation of `regard ablate`."""

from collections.abc import Iterator

from doc_figures.markers import table
from doc_figures.results import Row
from regard.lab.ablate.settings import Settings
from regard.lab.ablate.variations import VARIATIONS
from regard.task.recipe_io import read_recipe

_RECIPE = "multi30k-en-de"
_SHORT_WORDS = 13
"""The median length of its training pairs, which short training needs; the table does not depend on it."""


@table(f"group | variation | family | setting in `{_RECIPE}` | setting in Table 3 | claim")
def ablation_variations() -> Iterator[Row]:
    settings = Settings(read_recipe(_RECIPE).resolved(), _SHORT_WORDS)
    for one in VARIATIONS:
        paper = "–" if one.paper is None else one.paper.setting
        yield one.group, f"`{one.name}`", f"`{one.family}`", one.change(settings).setting, paper, one.claim
