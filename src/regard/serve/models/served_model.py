"""A model that is served: its pipeline, its engine, and the threads in which its requests are worked on."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from regard.decode import Engine
from regard.errors import UserError
from regard.model.heads import TokenClassificationHeadConfig
from regard.serve.limits import Limits
from regard.serve.models.batcher import Batcher
from regard.serve.models.engine_model import EngineBackend
from regard.serve.models.engine_thread import EnginePool, EngineThread
from regard.serve.models.languages import Languages, find_languages
from regard.serve.worker import Worker
from regard.task.auto import open_model
from regard.task.backend import Backend, Precision, threads_for
from regard.task.classification.pipeline import TextLabeler
from regard.task.image_classification.pipeline import ImageClassifier
from regard.task.language_modeling.pipeline import TextGenerator
from regard.task.masked_lm.pipeline import FillMask
from regard.task.parsing.pipeline import Parser
from regard.task.pipeline import Pipeline
from regard.task.translation.pipeline import Translator
from regard.task.word_vectors.pipeline import WordVectors

T = TypeVar("T")

_ENGINE_INPUTS = 1000
"""So many inputs that the kernels are compiled if they have not been before: a server runs for long."""
_CAPABILITIES: Mapping[type[Pipeline], tuple[str, ...]] = {
    Translator: ("translate", "score", "embed"),
    TextGenerator: ("generate", "score", "embed"),
    Parser: ("parse", "embed"),
    FillMask: ("fill", "embed"),
    ImageClassifier: ("classify-images",),
    WordVectors: ("embed",),
}
"""What a pipeline can be asked for."""


MAX_ROWS, MAX_ROWS_GPU = 640, 2048
"""How many rows fill a CPU or a GPU."""


@dataclass(frozen=True)
class LoadOptions:
    """How the models of a server are loaded."""

    device: torch.device | str = "cpu"
    dtype: Precision = "float32"
    fused: bool | None = None
    max_rows: int = MAX_ROWS
    """Rows that a model decodes together: outputs times their beams."""
    max_cache_bytes: int = 1 << 30
    """Bytes of KV cache of a model."""


class ServedModel:
    """A loaded model that many requests use at the same time."""

    def __init__(
        self,
        name: str,
        pipeline: Pipeline,
        limits: Limits,
        options: LoadOptions,
        log: Callable[[str], None],
        languages: Languages | None = None,
    ) -> None:
        self.name, self.limits, self.options = name, limits, options
        self.pipeline: Any = pipeline
        """A `Translator`, a `TextGenerator` …: what can be asked of it are its capabilities."""
        self.capabilities = capabilities(pipeline)
        self.languages = languages
        """The languages that a translator translates between, as far as they are known."""
        if languages is None and isinstance(pipeline, Translator):
            self.languages = find_languages(pipeline, name)
        self.created = int(time.time())
        self.backend: EngineBackend | None = None
        """Its decoder, if the model generates text or trees."""
        if isinstance(backend := getattr(pipeline, "backend", None), Backend):
            self.backend = EngineBackend(backend, _ENGINE_INPUTS, _engine_starter(name, limits, options, log))
            pipeline.backend = self.backend  # type: ignore[attr-defined]
        subject = f"the model {name}"
        self.requests = Worker(subject, threads=limits.threads, max_waiting=limits.waiting)
        """For requests that the engine decodes: their threads mostly wait for it."""
        self.passes = Worker(subject, threads=1, max_waiting=limits.waiting)
        """For what is computed in one forward pass: one request at a time, which has all cores."""
        self.batcher = Batcher(self.passes)
        """Merges requests that wait for the same pass."""

    def warm_up(self) -> None:
        """Decode one word, which compiles kernels that have never run here, so that no request waits for that."""
        match self.pipeline:
            case Translator():
                self.pipeline.translate("a")
            case TextGenerator():
                self.pipeline.generate("a", max_new_tokens=2)
            case Parser():
                self.pipeline.parse("a")

    def worker(self, capability: str) -> Worker:
        """The threads for a kind of request."""
        return self.requests if capability in ("translate", "generate", "parse") else self.passes

    def engines(self) -> list[EngineThread]:
        pools = [] if self.backend is None else list(self.backend.engines.values())
        return [engine for pool in pools for engine in pool.engines]

    @property
    def waiting(self) -> int:
        """Requests that wait for a thread."""
        return self.requests.waiting + self.passes.waiting

    @property
    def idle(self) -> bool:
        """Whether nothing is being computed."""
        return self.requests.unfinished == 0 and self.passes.unfinished == 0

    def close(self) -> None:
        """Stop what is being computed, and what waits for it."""
        for worker in (self.requests, self.passes):
            worker.close()
        for engine in self.engines():
            engine.close()


def _engine_starter(
    name: str, limits: Limits, options: LoadOptions, log: Callable[[str], None]
) -> Callable[[Any, int], EnginePool]:
    """What starts the engines of a model. It does not refer to the model, which ends when no request refers to it."""

    def start(decoder: Any, eos: int) -> EnginePool:
        count = threads_for(decoder, _ENGINE_INPUTS)
        return EnginePool(
            [
                EngineThread(
                    Engine(
                        decoder,
                        eos,
                        max_rows=max(options.max_rows // count, min(options.max_rows, limits.beam_size)),
                        max_cache_bytes=options.max_cache_bytes // count,
                        max_length=limits.new_tokens,
                    ),
                    lambda message: log(f"{name}: {message}"),
                    cores=1 if count > 1 else None,
                )
                for _ in range(count)
            ]
        )

    return start


def capabilities(pipeline: Pipeline) -> tuple[str, ...]:
    """What a pipeline can be asked for: `translate`, `generate`, `parse` …"""
    if isinstance(pipeline, TextLabeler):
        return (
            "tag" if isinstance(pipeline.encoder.config.head, TokenClassificationHeadConfig) else "classify",
            "embed",
        )
    return next((found for kind, found in _CAPABILITIES.items() if isinstance(pipeline, kind)), ())


def load_served_model(
    name: str,
    path: str,
    limits: Limits,
    options: LoadOptions,
    log: Callable[[str], None],
    languages: Languages | None = None,
) -> ServedModel:
    """Load a run folder, one of its checkpoints or a pretrained model, to be served as `name`."""
    pipeline = open_model(path, options.device)
    if not capabilities(pipeline):
        raise UserError(f"{path} cannot be served: it is not a model of a task, or has no tokenizer.")
    if isinstance(backend := getattr(pipeline, "backend", None), Backend):
        backend.configure(options.dtype, options.fused)
    model = ServedModel(name, pipeline, limits, options, log, languages)
    model.warm_up()
    return model
