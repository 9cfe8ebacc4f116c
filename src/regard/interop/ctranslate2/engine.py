"""CTranslate2 as the inference engine of a run folder, which is exported to the cache once and loaded from there.

The folder in the cache is named after a hash of the run folder's files, so that a retrained model is exported again.
Callers pass ids; CTranslate2 works on tokens as strings, and this module converts between them.
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
from regard.errors import UserError, how_to_install
from regard.files import file_sha256
from regard.interop.ctranslate2.export import POSITIONS, export_ctranslate2
from regard.kernels.cpu.threads import check_threads
from regard.run import model_files, pin_checkpoint

_VERSION = "1"
"""To be changed whenever the exporter's output for the same model changes."""
_INTRA_THREADS = 4
"""More threads than this hardly speed up one batch, so additional ones compute other batches."""


@dataclass(frozen=True)
class Output:
    """A hypothesis. `logprob` is its log-probability, without CTranslate2's length penalty."""

    tokens: tuple[int, ...]
    ended: bool
    logprob: float


def cached_export(folder: Path | str) -> Path:
    """The CTranslate2 export of a run folder: from the cache, or written there."""
    model = pin_checkpoint(folder)
    exported = cache_folder() / "ctranslate2" / _fingerprint(model)
    if not exported.exists():
        try:
            export_ctranslate2(model, exported)
        except UserError:
            if not exported.exists():  # otherwise another process has exported it in the meantime
                raise
    return exported


class _Engine:
    """The base of both engines: a loaded model, and the number of batches that run in parallel."""

    def __init__(self, class_name: str, folder: Path | str, device: torch.device | str, threads: int | None) -> None:
        library = _library()
        device = torch.device(device)
        if device.type not in ("cpu", "cuda"):
            raise UserError(
                f"CTranslate2 runs on cpu or cuda, not on {device.type}; choose one of those, or use --engine regard."
            )
        self.model_folder = cached_export(folder)
        threads = check_threads(torch.get_num_threads() if threads is None else threads)
        self.workers = max(1, threads // _INTRA_THREADS) if device.type == "cpu" else 1
        try:
            self.model = getattr(library, class_name)(
                str(self.model_folder),
                device=device.type,
                device_index=device.index or 0,
                inter_threads=self.workers,
                intra_threads=min(threads, _INTRA_THREADS),
            )
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"{self.model_folder} cannot be opened by CTranslate2 ({str(error).splitlines()[0]}); if it is "
                "damaged, remove it: it will be exported again."
            ) from None

    def results(self, batches: Iterable[list[Any]]) -> Iterator[list[Any]]:
        """The results of asynchronous batches in order. A few batches are started ahead to keep every thread busy."""
        started: list[list[Any]] = []
        for batch in batches:
            started.append(batch)
            if len(started) > 2 * self.workers:
                yield _wait(started.pop(0))
        for batch in started:
            yield _wait(batch)


class TranslationEngine(_Engine):
    """CTranslate2's translator for a run folder, on ids."""

    def __init__(self, folder: Path | str, device: torch.device | str = "cpu", *, threads: int | None = None) -> None:
        super().__init__("Translator", folder, device, threads)
        self.source_tokens = _vocabulary(self.model_folder, "source")
        self.target_tokens = _vocabulary(self.model_folder, "target")
        self._target_ids = {token: token_id for token_id, token in enumerate(self.target_tokens)}
        self._eos_token = json.loads((self.model_folder / "config.json").read_text(encoding="utf-8"))["eos_token"]

    def search(
        self,
        batches: Iterable[tuple[Sequence[Sequence[int]], int]],
        *,
        beam_size: int,
        length_penalty: float,
        prefix: Sequence[int] = (),
        forbidden: Sequence[Sequence[int]] = (),
        min_length: int = 0,
        **settings: float,
    ) -> Iterator[list[list[Output]]]:
        """For each batch of sources and its maximum output length: `beam_size` hypotheses per source, best first.

        `settings` are options of CTranslate2 by its own names.
        """
        options = {
            "beam_size": beam_size,
            "num_hypotheses": beam_size,
            "length_penalty": length_penalty,
            "suppress_sequences": [self._to_target_tokens(sequence) for sequence in forbidden] or None,
            "return_scores": True,
            "return_end_token": True,
            "min_decoding_length": min_length,
            "max_input_length": 0,  # never truncate silently
            **settings,
        }
        started = (
            self.model.translate_batch(
                [self._to_source_tokens(ids) for ids in sources],
                [self._to_target_tokens(prefix)] * len(sources) if prefix else None,
                max_decoding_length=max_length,
                asynchronous=True,
                **options,
            )
            for sources, max_length in batches
        )
        for results in self.results(started):
            yield [
                [self._output(*each, length_penalty) for each in zip(result.hypotheses, result.scores, strict=True)]
                for result in results
            ]

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        """Forced scoring: the log-probability of each token of the targets, EOS included."""
        results = self.model.score_batch(
            [self._to_source_tokens(ids) for ids in sources],
            [self._to_target_tokens(ids) for ids in targets],
            max_input_length=0,
        )
        return [tuple(result.log_probs) for result in results]

    def _output(self, tokens: list[str], score: float, length_penalty: float) -> Output:
        ended = bool(tokens) and tokens[-1] == self._eos_token
        ids = tuple(self._target_ids[token] for token in tokens[: len(tokens) - ended])
        return Output(ids, ended, score * max(len(tokens), 1) ** length_penalty)

    def _to_source_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.source_tokens[token_id] for token_id in ids]

    def _to_target_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.target_tokens[token_id] for token_id in ids]


class GenerationEngine(_Engine):
    """CTranslate2's generator for a run folder with a language model, on ids."""

    def __init__(self, folder: Path | str, device: torch.device | str = "cpu", *, threads: int | None = None) -> None:
        super().__init__("Generator", folder, device, threads)
        self.vocabulary = _vocabulary(self.model_folder, "target")
        config = json.loads((self.model_folder / "config.json").read_text(encoding="utf-8"))
        self._eos = self.vocabulary.index(config["eos_token"])

    def search(
        self,
        batches: Iterable[Sequence[Sequence[int]]],
        max_length: int,
        *,
        beam_size: int,
        length_penalty: float,
        forbidden: Sequence[Sequence[int]] = (),
        **settings: float,
    ) -> Iterator[list[list[Output]]]:
        """For each batch of prompts of equal length: `beam_size` continuations per prompt, best first.

        `settings` are options of CTranslate2 by its own names.
        """
        started = (
            self.model.generate_batch(
                [self._to_tokens(ids) for ids in prompts],
                beam_size=beam_size,
                num_hypotheses=beam_size,
                length_penalty=length_penalty,
                suppress_sequences=[self._to_tokens(sequence) for sequence in forbidden] or None,
                max_length=max_length,
                include_prompt_in_result=False,
                return_scores=True,
                return_end_token=True,
                asynchronous=True,
                **settings,
            )
            for prompts in batches
        )
        for results in self.results(started):
            yield [
                [self._output(*each, length_penalty) for each in zip(result.sequences_ids, result.scores, strict=True)]
                for result in results
            ]

    def stream(self, prompt: Sequence[int], max_length: int, **settings: float) -> Iterator[int]:
        """One continuation, token by token, without EOS."""
        for step in self.model.generate_tokens(self._to_tokens(prompt), max_length=max_length, **settings):
            if step.token_id != self._eos:
                yield step.token_id

    def score(self, prompts: Sequence[Sequence[int]], outputs: Sequence[Output]) -> list[tuple[float, ...]]:
        """The log-probability of each token of the continuations, including EOS for finished ones."""
        rows = [
            [*prompt, *output.tokens, *([self._eos] if output.ended else [])]
            for prompt, output in zip(prompts, outputs, strict=True)
        ]
        results = self.model.score_batch([self._to_tokens(ids) for ids in rows], max_input_length=0)
        return [tuple(result.log_probs[len(prompt) - 1 :]) for result, prompt in zip(results, prompts, strict=True)]

    def _output(self, ids: list[int], score: float, length_penalty: float) -> Output:
        ended = bool(ids) and ids[-1] == self._eos
        return Output(tuple(ids[: len(ids) - ended]), ended, score * max(len(ids), 1) ** length_penalty)

    def _to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.vocabulary[token_id] for token_id in ids]


def max_text_length(config: Any) -> int:
    """The maximum length of a text, EOS included: the rows of the exported table of positions."""
    if isinstance(config.position, RotaryConfig):
        return sys.maxsize
    max_length: int | None = getattr(config.position, "max_length", None)
    return POSITIONS if max_length is None else max_length


def _wait(batch: list[Any]) -> list[Any]:
    """Wait for the asynchronous results of a batch."""
    try:
        return [result.result() for result in batch]
    except (RuntimeError, ValueError) as error:  # usually out of memory
        raise UserError(f"CTranslate2 failed ({str(error).splitlines()[0]}); use --engine regard.") from None


def _fingerprint(model: str) -> str:
    """A hash of a model's files."""
    hashes = [f"{path.name} {file_sha256(path)}" for path in model_files(model)]
    return hashlib.sha256("\n".join([_VERSION, *hashes]).encode()).hexdigest()


def _vocabulary(model_folder: Path, side: str) -> list[str]:
    """All tokens, by id."""
    names = (f"{side}_vocabulary.json", "shared_vocabulary.json", "vocabulary.json")
    path = next(model_folder / name for name in names if (model_folder / name).is_file())
    tokens: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return tokens


def _library() -> Any:
    """The CTranslate2 package, which has no types and is optional."""
    try:
        return importlib.import_module("ctranslate2")
    except ImportError:
        raise UserError(f"CTranslate2 is not installed; {how_to_install('interop')}, or use --engine regard.") from None
