"""A model's card: what it is, what it was made from, how good it is, and what it cost. Written for people."""

from typing import Any

from regard.data.registry import sets
from regard.task.recipe import MEASURES, Recipe


def model_card(recipe: Recipe, origin: dict[str, Any]) -> str:
    """The card of a finished run, in Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    lines = [
        f"# {origin['recipe'] or f'A model for {recipe.task}'}",
        "",
        recipe.description,
        "",
        f"Trained with regard. {recipe.usage}",
        "",
        "## How good it is",
        "",
        *_scores(origin["scores"]),
        *_search(origin.get("decode")),
        *_signatures(origin["scores"]),
        "",
        "## What it was made from",
        "",
        *_data(recipe, origin["data"]),
        "",
        "## What it took",
        "",
        f"- {_size(origin['parameters'], origin['non_embedding'])}",
        f"- {origin['steps']:,} steps, {origin['words']:,} {recipe.counted}, seed {origin['seed']}; "
        f"{origin['weights']}",
        f"- {origin['seconds'] / 60:.1f} minutes on {origin['device']}"
        + ("" if origin["flops"] is None else f", about {origin['flops']:.2e} FLOP"),
        f"- {versions}; finished {origin['finished']}",
        "",
        "The whole recipe is in recipe.toml, beside this file.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _scores(scores: dict[str, dict[str, Any]]) -> list[str]:
    """A table of all that is a number."""
    first = next(iter(scores.values()), {})
    columns = [key for key, value in first.items() if isinstance(value, int | float)]
    names = [MEASURES[key][0] if key in MEASURES else key.replace("_", " ") for key in columns]
    rows = [[name, *(_number(key, score[key]) for key in columns)] for name, score in scores.items()]
    return [f"| {' | '.join(row)} |" for row in (["test set", *names], ["---"] * (len(columns) + 1), *rows)]


def _size(parameters: int, others: int) -> str:
    return f"{parameters:,} parameters" + (f", {others:,} without word vectors" if others < parameters else "")


def _number(measure: str, value: float) -> str:
    decimals = 1 + MEASURES[measure][1] if measure in MEASURES else 4
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{decimals}f}"


def _search(decode: dict[str, Any] | None) -> list[str]:
    if decode is None:
        return []
    beams = f"beam search, {decode['beams']} beams, length penalty {decode['penalty']} {decode['strength']}"
    return ["", f"Searched with {'greedy search' if decode['beams'] == 1 else beams}."]


def _signatures(scores: dict[str, Any]) -> list[str]:
    """What makes the numbers comparable."""
    first: dict[str, Any] = next(iter(scores.values()), {})
    found = [f"`{value}`" for key, value in first.items() if key.endswith("signature")]
    return [f"Signatures: {' and '.join(found)}."] if found else []


def _data(recipe: Recipe, fingerprints: dict[str, str]) -> list[str]:
    """Each part of the data with its checksum, and the licence of the named sets among them."""
    parts = recipe.places()
    lines = [
        f"- {name}: {', '.join(part.place for part in corpora)}, SHA-256 of what is read {fingerprints[name]}"
        for name, corpora in parts.items()
    ]
    used = {part.set for corpora in parts.values() for part in corpora if part.set is not None}
    known = [one for one in sets() if one.name in used]
    return [*lines, *(f"- {one.name}: {one.description} Licence: {one.licence}." for one in known)]
