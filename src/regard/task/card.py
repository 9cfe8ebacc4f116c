"""A model's card: what it is, what it was made from, how good it is, and what it cost. Written for people."""

from typing import Any

from regard.data.registry import sets
from regard.task.recipe import Recipe


def model_card(recipe: Recipe, origin: dict[str, Any]) -> str:
    """The card of a finished run, in Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    lines = [
        f"# {origin['recipe'] or 'A translator'}",
        "",
        recipe.description,
        "",
        "Trained with regard. Translate with it: `regard translate THIS-FOLDER \"Some text.\"`",
        "",
        "## How good it is",
        "",
        "| test set | sentences | BLEU | chrF |",
        "|---|---|---|---|",
        *(
            f"| {name} | {score['sentences']:,} | {score['bleu']:.2f} | {score['chrf']:.2f} |"
            for name, score in origin["scores"].items()
        ),
        "",
        f"Searched with {_search(origin['decode'])}.",
        *_signatures(origin["scores"]),
        "",
        "## What it was made from",
        "",
        *_data(recipe, origin["data"]),
        "",
        "## What it took",
        "",
        f"- {origin['parameters']:,} parameters, {origin['non_embedding']:,} without word vectors",
        f"- {origin['steps']:,} steps, {origin['words']:,} target words, seed {origin['seed']}; {origin['weights']}",
        f"- {origin['seconds'] / 60:.1f} minutes on {origin['device']}, about {origin['flops']:.2e} FLOP",
        f"- {versions}; finished {origin['finished']}",
        "",
        "The whole recipe is in recipe.toml, beside this file.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _search(decode: dict[str, Any]) -> str:
    if decode["beams"] == 1:
        return "greedy search"
    return f"beam search, {decode['beams']} beams, length penalty {decode['penalty']} {decode['strength']}"


def _signatures(scores: dict[str, Any]) -> list[str]:
    first = next(iter(scores.values()), None)
    if first is None:
        return []
    return [f"Signatures: `{first['bleu_signature']}` and `{first['chrf_signature']}`."]


def _data(recipe: Recipe, fingerprints: dict[str, str]) -> list[str]:
    """Each part of the data with its checksum, and the licence of the named sets among them."""
    parts = {"train": recipe.data.train, **{name: (part,) for name, part in recipe.data.test.items()}}
    if recipe.data.valid is not None:
        parts["valid"] = (recipe.data.valid,)
    lines = [
        f"- {name}: {', '.join(part.place for part in corpora)}, SHA-256 of what is read {fingerprints[name]}"
        for name, corpora in parts.items()
    ]
    used = {part.set for corpora in parts.values() for part in corpora if part.set is not None}
    known = [one for one in sets() if one.name in used]
    return [*lines, *(f"- {one.name}: {one.description} Licence: {one.licence}." for one in known)]
