"""Measurements of a trained rung: scores by sentence length, decoding speed, memory, recall, samples.

All of them use the model as its run folder has it, through the pipeline of its task, so they say what a user would get.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.data.text.corpus import Corpus
from regard.data.text.documents import read_texts
from regard.errors import UserError
from regard.lab.compare.complexity import complexity_of, operations_per_layer
from regard.lab.compare.ladder import Ladder
from regard.lab.compare.parsing import measure_parsing
from regard.lab.compare.recall import copy_recall, translation_recall
from regard.model import read_any_config
from regard.run import read_metadata
from regard.score import score_translations
from regard.task.auto import open_model
from regard.task.base import Recipe
from regard.task.translation.unknown_words import learn_dictionary

LENGTHS = (5, 10, 15, 20, 30)
"""The upper limits of the buckets of sentence lengths, in words of the source; the last bucket has none."""
_FEWEST_SENTENCES = 10
"""A bucket with fewer sentences has no score of its own."""
_SAMPLES = 4
DECODED_TOKENS = 64
"""The tokens of the sequence on which the speed of decoding is measured."""
_PROMPT_TOKENS = 16
_TEXT_CHARACTERS = 60_000


def measure(recipe: Recipe, folder: Path, ladder: Ladder, device: torch.device) -> dict[str, Any]:
    """Everything that a report says about a finished run, as plain data."""
    metadata = read_metadata(folder)
    origin, settings = metadata["origin"], metadata["model"]
    found: dict[str, Any] = {
        name: origin.get(name)
        for name in ("scores", "steps", "tokens", "seconds", "flops", "parameters", "non_embedding", "device")
    }
    found |= {"kind": settings.get("kind"), "curve": read_curve(folder), "peak_memory": peak_memory(device)}
    found["tokens_per_second"] = _speed(folder)
    found["complexity"] = _complexity(settings)
    pipeline: Any = open_model(folder, device)
    if recipe.task == "parsing":
        found |= measure_parsing(recipe, pipeline, ladder)
    else:
        text = _of_translation if recipe.task == "translation" else _of_language
        found |= text(recipe, pipeline, ladder, device)
    prompt = found.pop("prompt", None) or [3] * _PROMPT_TOKENS
    found["decode"] = _decoding_state(pipeline.model.eval(), prompt[:_PROMPT_TOKENS])
    return found


def measure_decoding(recipe: Any, folders: Sequence[Path], ladder: Ladder, device: torch.device) -> dict[str, Any]:
    """The same for trained models that decode as `recipe` says, together if there are several."""
    pipelines: list[Any] = [open_model(folder, device) for folder in folders]
    first, *others = pipelines
    first.decode = recipe.decode
    if recipe.decode.replace_unk == "dictionary":
        first.dictionary = learn_dictionary(Corpus("train", recipe.data.train).read)
    pipeline = first.ensemble_with(others) if others else first
    found = _of_translation(recipe, pipeline, ladder, device)
    origins = [read_metadata(folder)["origin"] for folder in folders]
    found |= {name: sum(origin[name] for origin in origins) for name in ("seconds", "parameters", "tokens")}
    found |= {"steps": origins[0]["steps"], "device": origins[0]["device"], "curve": [], "tokens_per_second": None}
    found["peak_memory"] = peak_memory(device)
    del found["prompt"]
    return found


def read_curve(folder: Path) -> list[dict[str, float]]:
    """The validations of a run: the step, and each metric without its prefix."""
    curve = []
    for row in _metrics(folder):
        values = {name.removeprefix("valid/"): value for name, value in row.items() if name.startswith("valid/")}
        if values:
            curve.append({"step": row["step"], **{name: value for name, value in values.items() if value is not None}})
    return curve


def peak_memory(device: torch.device) -> int:
    """The most bytes that this process has used: of GPU memory, or of main memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
        import sys
    except ImportError:  # Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def scores_by_length(
    sources: Sequence[str], outputs: Sequence[str], references: Sequence[str], score: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """BLEU of the sentences of each length, in words of the source."""
    rows, low = [], 1
    for high in (*LENGTHS, None):
        chosen = [
            index
            for index, source in enumerate(sources)
            if low <= len(source.split()) and (high is None or len(source.split()) <= high)
        ]
        row: dict[str, Any] = {"from": low, "to": high, "sentences": len(chosen), "bleu": None}
        if len(chosen) >= _FEWEST_SENTENCES:
            found = score_translations([outputs[i] for i in chosen], [references[i] for i in chosen], **score)
            row["bleu"] = round(found.bleu, 2)
        rows.append(row)
        low = (high or low) + 1
    return [row for row in rows if row["sentences"]]


def _of_translation(recipe: Any, translator: Any, ladder: Ladder, device: torch.device) -> dict[str, Any]:
    pairs = [(pair.source, pair.target) for pair in Corpus(ladder.test, (recipe.test_sources()[ladder.test],)).read()]
    sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def translate(lines: list[str]) -> list[str]:
        return [best.text for best, *_ in translator.translate_sentences(lines, translator.decode.only_best())]

    outputs = translate(sources)
    score = score_translations(outputs, references, **recipe.score.plain())
    step = max(1, len(pairs) // _SAMPLES)
    training = (
        [(pair.source, pair.target) for pair in Corpus("train", recipe.data.train).read()] if ladder.recall else []
    )
    return {
        "scores": {ladder.test: score.rounded()},
        "by_length": scores_by_length(sources, outputs, references, recipe.score.plain()),
        "samples": [
            {"source": sources[i], "reference": references[i], "output": outputs[i]}
            for i in range(step // 2, len(pairs), step)
        ][:_SAMPLES],
        "recall": translation_recall(translate, training, pairs, ladder.recall),
        "prompt": translator.source_tokenizer.encode_batch([" ".join(sources[:3])])[0][:_PROMPT_TOKENS],
    }


def _of_language(recipe: Any, generator: Any, ladder: Ladder, device: torch.device) -> dict[str, Any]:
    model, tokenizer = generator.model, generator.tokenizer
    text, source = "", recipe.test_sources()[ladder.test]
    for passage in read_texts(source):
        text += passage
        if len(text) > _TEXT_CHARACTERS:
            break
    ids = tokenizer.encode_batch([text[:_TEXT_CHARACTERS]])[0]
    prompt = text[:60].rpartition(" ")[0]
    output = generator.generate(prompt, max_new_tokens=40, seed=1)
    return {
        "by_position": _loss_by_position(model, ids, recipe.data.context_length, device),
        "samples": [{"source": prompt, "reference": text[len(prompt) : len(prompt) + 120], "output": output}],
        "recall": copy_recall(model, ids, model.config.vocab_size, ladder.recall, model.max_positions, device),
        "prompt": ids[:_PROMPT_TOKENS],
    }


@torch.no_grad()
def _loss_by_position(model: Any, ids: Sequence[int], length: int, device: torch.device) -> list[dict[str, Any]]:
    """The loss of tokens with 1, 2–3, 4–7 … tokens before them: what a model makes of more context."""
    rows = len(ids) // (length + 1)
    if not rows:
        return []
    tokens = torch.tensor(ids[: rows * (length + 1)], device=device).view(rows, length + 1)
    total = torch.zeros(length, dtype=torch.float64)
    for chunk in tokens.split(16):
        logits = model(chunk[:, :-1]).float()  # (rows, tokens, vocabulary)
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), chunk[:, 1:], reduction="none")
        total += losses.sum(dim=0).double().cpu()
    means, low, found = total / rows, 1, []
    while low <= length:
        high = min(2 * low - 1, length)
        high = length if length - high < (high - low) // 2 else high  # no bucket of a few positions at the end
        found.append({"from": low, "to": high, "loss": round(float(means[low - 1 : high].mean()), 4)})
        low = high + 1
    return found


@torch.no_grad()
def measure_decoding_time(model: Any) -> float | None:
    """Milliseconds per token of one greedy sequence on the plain model; None for one that cannot read the prompt."""
    prompt, tokens = _decoded_lengths(model, [3] * _PROMPT_TOKENS)
    best = float("inf")
    for _ in range(3):
        try:
            state, last = model.prefill([prompt], tokens + 1)
            start = time.perf_counter()
            for _ in range(tokens):
                logits, state = model.step(last[:, None], state)
                last = logits[:, -1].argmax(dim=-1)  # (rows,)
            last.tolist()  # wait for the device
        except UserError:
            return None
        best = min(best, (time.perf_counter() - start) / tokens)
    return best * 1000


@torch.no_grad()
def _decoding_state(model: Any, prompt: Sequence[int]) -> dict[str, Any]:
    """The bytes of state that a sequence needs while it is decoded, and how they grow."""
    prompt, tokens = _decoded_lengths(model, prompt)
    try:
        large, small = (_state_bytes(model, prompt, room) for room in (tokens, 1))
    except UserError as error:
        return {"problem": str(error)}
    growth = None if large is None or small is None or tokens < 2 else round((large - small) / (tokens - 1))
    return {"state_bytes": large, "bytes_per_token": growth, "tokens": tokens}


def _decoded_lengths(model: Any, prompt: Sequence[int]) -> tuple[list[int], int]:
    """The prompt and the number of tokens that are decoded after it, within the positions that the model has."""
    limits = [each for each in (model.max_positions, getattr(model, "max_source_positions", None)) if each is not None]
    tokens = max(1, min(DECODED_TOKENS, *(limit // 2 for limit in limits))) if limits else DECODED_TOKENS
    return list(prompt)[: max(1, min((limit // 2 for limit in limits), default=len(prompt)) - 1)], tokens


def _state_bytes(model: Any, prompt: list[int], room: int) -> int | None:
    """The bytes that a sequence keeps between two steps, with room for so many tokens; a KV cache is allocated in the
    first of them."""
    state, last = model.prefill([prompt], room + 1)
    _, state = model.step(last[:, None], state)
    return int(state.nbytes()) if hasattr(state, "nbytes") else None


def _complexity(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    config = read_any_config(settings)
    row = complexity_of(config)
    if row is None:
        return None
    at = {str(length): row.at(length, config) for length in (10, 100, 1000)}
    return {"per_layer": operations_per_layer(config), "at": at}


def _speed(folder: Path) -> float | None:
    """The median speed of training, in target tokens per second."""
    speeds = sorted(row["tokens_per_second"] for row in _metrics(folder) if row.get("tokens_per_second"))
    return round(speeds[len(speeds) // 2], 1) if speeds else None


def _metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    lines: list[str] = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines if line]
