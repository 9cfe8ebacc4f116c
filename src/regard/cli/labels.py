"""What `regard classify` does where a model labels texts."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from regard.cli.lines import work_through
from regard.cli.options import chosen_device


def labels_texts(model: str) -> bool:
    """Whether a model reads texts, as far as its folder says."""
    from regard.run import find, read_facts

    config = read_facts(find(model)).get("model")
    return isinstance(config, dict) and config.get("kind") == "encoder"


def label_lines(
    model: str,
    text: list[str] | None,
    output: Path | None,
    top: int,
    as_json: bool,
    device: str,
    threads: int | None,
) -> None:
    """For each text, typed or a line of standard input, its likeliest labels with their probabilities."""
    from regard.task.labeller import load_labeller

    labeller = load_labeller(model, chosen_device(device, threads))

    def work(lines: list[str], numbers: list[int], progress: Callable[[int], None]) -> Iterable[str]:
        found = iter(labeller.label([line for line in lines if line.strip()], top=top, progress=progress))
        labels = [next(found) if line.strip() else [] for line in lines]  # an empty line stays one
        show = _as_json if as_json else _as_text
        return [show(line, some) for line, some in zip(lines, labels, strict=True)]

    work_through(text, None, output, "texts", work)


def _as_text(line: str, labels: list[tuple[str, float]]) -> str:
    return "\t".join(f"{label}\t{chance:.4f}" for label, chance in labels)


def _as_json(line: str, labels: list[tuple[str, float]]) -> str:
    found = [{"label": label, "probability": round(chance, 6)} for label, chance in labels]
    return json.dumps({"text": line, "classes": found}, ensure_ascii=False)
