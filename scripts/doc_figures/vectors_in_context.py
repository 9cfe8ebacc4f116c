"""Tables of vectors in context: the senses of *bank* by layer, and classification with frozen vectors."""

import statistics
from collections.abc import Iterator
from typing import Any

from doc_figures.markers import cases, table

Row = tuple[object, ...]
_KINDS = {"static": "static vectors (PPMI)", "bilstm": "bidirectional LSTM", "encoder": "encoder"}


@table("model | layer | river and river | money and money | river and money | verb and noun")
def banks_by_layer() -> Iterator[Row]:
    found = cases("banks")
    for kind, label in _KINDS.items():
        runs = [one["layers"] for one in found if one["kind"] == kind]
        for number, layers in enumerate(zip(*runs, strict=True)):
            name = "–" if kind == "static" else "embeddings" if number == 0 else number
            yield label, name, *(_mean(layers, key) for key in ("river", "money", "across", "verb_and_noun"))


@table("representation | accuracy | width")
def frozen_vectors() -> Iterator[Row]:
    for one in cases("frozen-vectors"):
        if "std" in one:
            yield one["case"], f"{one['accuracy']} ± {one['std']}", one["width"]
        else:
            yield one["case"], one["accuracy"], "–"


def _mean(layers: tuple[dict[str, Any], ...], key: str) -> str:
    return f"{statistics.mean(layer[key] for layer in layers):.2f}"
