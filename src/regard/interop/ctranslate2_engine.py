"""CTranslate2 at work on a run folder: it is exported once, into the cache, and opened from there.

The folder in the cache is named after what is in the run folder, so that a model trained anew is exported anew. All
that is said to CTranslate2 is said in ids; it knows tokens by their names, and the two change places here.
"""

import hashlib
import importlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.attention import RotaryConfig
from regard.data.registry import cache_folder
from regard.errors import UserError
from regard.files import file_sha256
from regard.interop.ctranslate2 import POSITIONS, export_ctranslate2
from regard.run import find

_VERSION = "1"
"""Grows when the exporter writes something else for the same model."""
_FILES = ("model.safetensors", "run.json", "tokenizer.json", "target_tokenizer.json")
_THREADS_EACH = 4
"""More threads than this hardly speed one batch up; further ones work on further batches."""


@dataclass(frozen=True)
class Output:
    """What was found for a source. `total` is the log-probability that CTranslate2 ranked it by, before its penalty."""

    tokens: tuple[int, ...]
    ended: bool
    total: float


def exported_once(folder: Path | str) -> Path:
    """The CTranslate2 folder made of a run folder: found in the cache, or put there."""
    place = find(folder)
    kept = cache_folder() / "ctranslate2" / _fingerprint(place)
    if not kept.exists():
        try:
            export_ctranslate2(place, kept)
        except UserError:
            if not kept.exists():  # else another process was quicker
                raise
    return kept


class _Engine:
    """What both engines share: the opened model, and how many batches it works on at a time."""

    def __init__(self, kind: str, folder: Path | str, device: torch.device | str, threads: int | None) -> None:
        library = _library()
        device = torch.device(device)
        if device.type not in ("cpu", "cuda"):
            raise UserError(
                f"CTranslate2 computes on cpu or cuda, not on {device.type}; give one of those, or use --engine regard."
            )
        self.place = exported_once(folder)
        threads = threads or torch.get_num_threads()
        self.workers = max(1, threads // _THREADS_EACH) if device.type == "cpu" else 1
        try:
            self.model = getattr(library, kind)(
                str(self.place),
                device=device.type,
                device_index=device.index or 0,
                inter_threads=self.workers,
                intra_threads=min(threads, _THREADS_EACH),
            )
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"{self.place} cannot be opened by CTranslate2 ({str(error).splitlines()[0]}); if it is broken, "
                "remove it: it will be made again."
            ) from None

    def under_way(self, batches: Iterable[list[Any]]) -> Iterator[list[Any]]:
        """The results of batches that were begun, in order; a few are begun ahead, so that every thread has work."""
        begun: list[list[Any]] = []
        for batch in batches:
            begun.append(batch)
            if len(begun) > 2 * self.workers:
                yield _results(begun.pop(0))
        for batch in begun:
            yield _results(batch)


class TranslationEngine(_Engine):
    """CTranslate2's translator for a run folder, over ids."""

    def __init__(self, folder: Path | str, device: torch.device | str = "cpu", *, threads: int | None = None) -> None:
        super().__init__("Translator", folder, device, threads)
        self.sources = _vocabulary(self.place, "source")
        self.targets = _vocabulary(self.place, "target")
        self._ids = {name: number for number, name in enumerate(self.targets)}
        self._end = json.loads((self.place / "config.json").read_text(encoding="utf-8"))["eos_token"]

    def search(
        self,
        batches: Iterable[tuple[Sequence[Sequence[int]], int]],
        *,
        beams: int,
        penalty: float,
        prefix: Sequence[int] = (),
        forbidden: Sequence[Sequence[int]] = (),
        **sampling: float,
    ) -> Iterator[list[list[Output]]]:
        """For each batch of sources, with the most tokens to write, its outputs: `beams` a source, best first."""
        options = {
            "beam_size": beams,
            "num_hypotheses": beams,
            "length_penalty": penalty,
            "suppress_sequences": [self._target(sequence) for sequence in forbidden] or None,
            "return_scores": True,
            "return_end_token": True,
            "min_decoding_length": 0,  # an empty output is an output
            "max_input_length": 0,  # nothing is cut without a word
            **sampling,
        }
        begun = (
            self.model.translate_batch(
                [self._source(ids) for ids in sources],
                [self._target(prefix)] * len(sources) if prefix else None,
                max_decoding_length=limit,
                asynchronous=True,
                **options,
            )
            for sources, limit in batches
        )
        for results in self.under_way(begun):
            yield [
                [self._output(*both, penalty) for both in zip(one.hypotheses, one.scores, strict=True)]
                for one in results
            ]

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        """The log-probability of each token of given outputs, and of the end behind them."""
        found = self.model.score_batch(
            [self._source(ids) for ids in sources], [self._target(ids) for ids in targets], max_input_length=0
        )
        return [tuple(one.log_probs) for one in found]

    def _output(self, names: list[str], score: float, penalty: float) -> Output:
        ended = bool(names) and names[-1] == self._end
        tokens = tuple(self._ids[name] for name in names[: len(names) - ended])
        return Output(tokens, ended, score * max(len(names), 1) ** penalty)

    def _source(self, ids: Sequence[int]) -> list[str]:
        return [self.sources[number] for number in ids]

    def _target(self, ids: Sequence[int]) -> list[str]:
        return [self.targets[number] for number in ids]


class GenerationEngine(_Engine):
    """CTranslate2's generator for a run folder with a language model, over ids."""

    def __init__(self, folder: Path | str, device: torch.device | str = "cpu", *, threads: int | None = None) -> None:
        super().__init__("Generator", folder, device, threads)
        self.names = _vocabulary(self.place, "target")
        self._end = self.names.index(json.loads((self.place / "config.json").read_text(encoding="utf-8"))["eos_token"])

    def search(
        self,
        batches: Iterable[Sequence[Sequence[int]]],
        limit: int,
        *,
        beams: int,
        penalty: float,
        forbidden: Sequence[Sequence[int]] = (),
        **sampling: float,
    ) -> Iterator[list[list[Output]]]:
        """For each batch of prompts, all equally long, its continuations: `beams` a prompt, best first."""
        begun = (
            self.model.generate_batch(
                [self._named(ids) for ids in prompts],
                beam_size=beams,
                num_hypotheses=beams,
                length_penalty=penalty,
                suppress_sequences=[self._named(sequence) for sequence in forbidden] or None,
                max_length=limit,
                include_prompt_in_result=False,
                return_scores=True,
                return_end_token=True,
                asynchronous=True,
                **sampling,
            )
            for prompts in batches
        )
        for results in self.under_way(begun):
            yield [
                [self._output(*both, penalty) for both in zip(one.sequences_ids, one.scores, strict=True)]
                for one in results
            ]

    def stream(self, prompt: Sequence[int], limit: int, **sampling: float) -> Iterator[int]:
        """One continuation, token by token, without its end."""
        for step in self.model.generate_tokens(self._named(prompt), max_length=limit, **sampling):
            if step.token_id != self._end:
                yield step.token_id

    def score(self, prompts: Sequence[Sequence[int]], outputs: Sequence[Output]) -> list[tuple[float, ...]]:
        """The log-probability of each token of continuations, and of the end where they came to it."""
        rows = [
            [*prompt, *output.tokens, *([self._end] if output.ended else [])]
            for prompt, output in zip(prompts, outputs, strict=True)
        ]
        found = self.model.score_batch([self._named(ids) for ids in rows], max_input_length=0)
        return [tuple(one.log_probs[len(prompt) - 1 :]) for one, prompt in zip(found, prompts, strict=True)]

    def _output(self, ids: list[int], score: float, penalty: float) -> Output:
        ended = bool(ids) and ids[-1] == self._end
        return Output(tuple(ids[: len(ids) - ended]), ended, score * max(len(ids), 1) ** penalty)

    def _named(self, ids: Sequence[int]) -> list[str]:
        return [self.names[number] for number in ids]


def longest_text(config: Any) -> int:
    """The most tokens that the exported table of positions has room for, the end included."""
    if isinstance(config.position, RotaryConfig):
        return sys.maxsize
    limit: int | None = getattr(config.position, "limit", None)
    return POSITIONS if limit is None else limit


def _results(batch: list[Any]) -> list[Any]:
    """Waits for what was begun."""
    try:
        return [waiting.result() for waiting in batch]
    except (RuntimeError, ValueError) as error:  # no memory left, mostly
        raise UserError(f"CTranslate2 could not go on ({str(error).splitlines()[0]}); use --engine regard.") from None


def _fingerprint(place: Path) -> str:
    """What the files of a run folder are, in hexadecimal digits."""
    there = [f"{name} {file_sha256(place / name)}" for name in _FILES if (place / name).is_file()]
    return hashlib.sha256("\n".join([_VERSION, *there]).encode()).hexdigest()


def _vocabulary(place: Path, side: str) -> list[str]:
    """The names of all tokens by their ids."""
    own, shared = place / f"{side}_vocabulary.json", place / "shared_vocabulary.json"
    path = next(path for path in (own, shared, place / "vocabulary.json") if path.is_file())
    names: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return names


def _library() -> Any:
    """Their package, which has no types and need not be there."""
    try:
        return importlib.import_module("ctranslate2")
    except ImportError:
        raise UserError(
            "CTranslate2 is not installed; install it with pip install 'regard[interop]', or use --engine regard."
        ) from None
