"""The tables of docs/guides/ablation.md: every variation of `regard ablate`, and what they did to a small recipe."""

import math
from collections.abc import Iterator

from doc_figures.markers import cases, figure, table
from doc_figures.results import Row
from regard.lab.ablate.analysis import MEASURES
from regard.lab.ablate.settings import Settings
from regard.lab.ablate.variations import VARIATIONS
from regard.lab.charts import number
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


@table("variation | setting | PPL | BLEU | parameters | the claimed direction")
def ablation_quick() -> Iterator[Row]:
    *rows, _ = cases("ablation-quick")
    for row in rows:
        ppl, bleu = (row["measures"].get(name, [math.nan])[0] for name in ("ppl", "bleu"))
        names = {name: measure.name for name, measure in MEASURES.items()}
        verdicts = "; ".join(
            f"{names[one['measure']]}: {one['verdict']} ({one['difference']})" for one in row["findings"]
        )
        shown = f"{ppl:,.2f}" if ppl < 1e6 else "> 1,000,000"
        yield (
            f"`{row['case']}`",
            row["setting"] or "–",
            shown,
            f"{bleu:.1f}",
            number(row["parameters"]),
            verdicts or "–",
        )


@figure
def ablation_quick_setup() -> str:
    (summary,) = [each for each in cases("ablation-quick") if each["case"] == "summary"]
    runs, tokens = len(cases("ablation-quick")) - 1, summary["batch_tokens"]
    length = f"{runs} runs of {summary['steps']} steps with {tokens:,} target tokens, one seed"
    return f"{length}, {summary['minutes']:.0f} minutes on {summary['hardware']}"
