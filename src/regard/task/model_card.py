"""The model card: what a model is, its scores, its training data, and the cost of training."""

from pathlib import Path
from typing import Any

from regard.data.registry import list_datasets
from regard.task.base import Recipe
from regard.task.expect import METRICS


def model_card(recipe: Recipe, origin: dict[str, Any]) -> str:
    """The model card of a finished run, in Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    lines = [
        f"# {origin['recipe'] or f'A model for {recipe.task}'}",
        "",
        recipe.description,
        "",
        f"Trained with regard. {recipe.usage_example}",
        "",
        *(["## Limitations", "", recipe.limitations, ""] if recipe.limitations else []),
        *(_scores_section(origin) if origin["scores"] else []),
        "## Training data",
        "",
        *_data(recipe, origin["data"]),
        "",
        "## Training",
        "",
        f"- {_size(origin['parameters'], origin['non_embedding'])}",
        *([] if recipe.init_from is None else [f"- started from the weights of {Path(recipe.init_from).name}"]),
        f"- {_amount(recipe, origin)}; {_weights(origin['final_weights'])}",
        f"- {origin['seconds'] / 60:.1f} minutes on {origin['device']}"
        + ("" if origin["flops"] is None else f", about {origin['flops']:.2e} FLOP"),
        f"- {versions}; finished {origin['finished']}",
        "",
        "The complete recipe is in recipe.toml, beside this file.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _scores_section(origin: dict[str, Any]) -> list[str]:
    scores = origin["scores"]
    return ["## Scores", "", *_scores(scores), *_search(origin.get("decode")), *_signatures(scores), ""]


def _scores(scores: dict[str, dict[str, Any]]) -> list[str]:
    """A table of all numbers."""
    first = next(iter(scores.values()), {})
    columns = [key for key, value in first.items() if isinstance(value, int | float)]
    names = [METRICS[key][0] if key in METRICS else key.replace("_", " ") for key in columns]
    rows = [[name, *(_number(key, score[key]) for key in columns)] for name, score in scores.items()]
    return [f"| {' | '.join(row)} |" for row in (["test set", *names], ["---"] * (len(columns) + 1), *rows)]


def _size(parameters: int, non_embedding: int) -> str:
    return f"{parameters:,} parameters" + (
        f", {non_embedding:,} without embeddings" if non_embedding < parameters else ""
    )


def _amount(recipe: Recipe, origin: dict[str, Any]) -> str:
    """How much was trained on, in words."""
    if origin["final_weights"]["kind"] == "estimated":
        return f"counted in one pass over {origin['tokens']:,} {recipe.counted_unit}"
    return f"{origin['steps']:,} steps, {origin['tokens']:,} {recipe.counted_unit}, seed {origin['seed']}"


def _weights(final: dict[str, Any]) -> str:
    """Which weights the model has, in words."""
    match final["kind"]:
        case "estimated":
            return "estimated without gradients"
        case "average":
            return f"the average of the last {final['checkpoints']} checkpoints"
        case "ema":
            return f"the exponential moving average of the weights (decay {final['ema_decay']})"
        case "best":
            return f"the weights of step {final['step']:,}, which did best on the validation set"
        case _:
            return "the weights of the last step"


def _number(metric: str, value: float) -> str:
    decimals = 1 + METRICS[metric][1] if metric in METRICS else 4
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{decimals}f}"


def _search(decode: dict[str, Any] | None) -> list[str]:
    if decode is None:
        return []
    if decode["beam_size"] == 1:
        return ["", "Decoded with greedy search."]
    penalty = decode["length_penalty"]
    amount = "" if penalty["kind"] == "none" else f" (alpha {penalty['alpha']})"
    return ["", f"Decoded with beam search, beam size {decode['beam_size']}, length penalty {penalty['kind']}{amount}."]


def _signatures(scores: dict[str, Any]) -> list[str]:
    """The sacreBLEU signatures, which make scores comparable."""
    first: dict[str, Any] = next(iter(scores.values()), {})
    found = [f"`{value}`" for key, value in first.items() if key.endswith("signature")]
    return [f"Signatures: {' and '.join(found)}."] if found else []


def _data(recipe: Recipe, fingerprints: dict[str, str]) -> list[str]:
    """Each data source with its checksum, and the licenses of the named datasets."""
    sources = recipe.data_sources()
    lines = [
        f"- {name}: {', '.join(source.location for source in part)}, SHA-256 of its contents {fingerprints[name]}"
        for name, part in sources.items()
    ]
    used = {source.dataset for part in sources.values() for source in part if source.dataset is not None}
    datasets = [dataset for dataset in list_datasets() if dataset.name in used]
    licenses = [f"- {dataset.name}: {dataset.description} License: {dataset.license}." for dataset in datasets]
    return [*lines, *licenses]
