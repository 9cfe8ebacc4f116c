"""The decoder of a served model: what its pipeline searches goes to an engine that it shares with all requests.

The pipelines stay as they are. `EngineBackend` takes the place of their `Backend`, and gives them one decoder, the
`EngineModel`, which hands their requests to the engine and waits. So a server's answers are made by the same code as
those of the command line.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any

from regard.decode import BatchDecoderModel, DecodeFuture, Hypothesis, Request
from regard.decode.coverage import rank_by_coverage
from regard.serve.models.cancellation import Cancellation, current_cancellation
from regard.serve.models.engine_thread import EnginePool
from regard.serve.models.output_streams import MAX_IN_FLIGHT, OutputStreams
from regard.task.backend import Backend, Precision


class EngineModel:
    """A decoder model whose searches are done by an engine, together with those of other requests."""

    def __init__(self, model: BatchDecoderModel[Any], engine_for: Callable[[int], EnginePool]) -> None:
        self.decoder, self._engine_for = model, engine_for

    def __getattr__(self, name: str) -> Any:
        """Everything else is what the decoder itself does, such as forced scoring."""
        return getattr(self.decoder, name)

    @property
    def model(self) -> Any:
        """The PyTorch module, which a fused decoder has been made from."""
        return getattr(self.decoder, "model", self.decoder)

    def search_requests(
        self, requests: Sequence[Request], eos: int, progress: Callable[[int], None] | None = None
    ) -> list[list[Hypothesis]]:
        """The hypotheses found for each request, best first."""
        engine, cancellation = self._engine_for(eos), current_cancellation()
        pending: deque[DecodeFuture] = deque()
        found: list[list[Hypothesis]] = []
        try:
            for request in requests:
                if len(pending) == MAX_IN_FLIGHT:
                    found.append(_result(pending.popleft(), cancellation, progress, len(found) + 1))
                pending.append(_submit(engine, _per_request(request), cancellation))
            while pending:
                found.append(_result(pending.popleft(), cancellation, progress, len(found) + 1))
        finally:
            for future in pending:
                future.cancel()
        return [self._ranked(*pair, eos) for pair in zip(requests, found, strict=True)]

    def stream(self, request: Request, eos: int) -> Generator[tuple[int, ...], None, None]:
        """The tokens of an output while it is decoded: all so far after each step, and those of the result at last."""
        with closing(iter(self.stream_all([request], eos))) as outputs:
            for output in outputs:
                yield output.hypothesis.tokens

    def stream_all(self, requests: Sequence[Request], eos: int, *, logprobs: bool = False) -> OutputStreams:
        """Several outputs while they are decoded, each with its log-probabilities if they are asked for."""
        return OutputStreams(self._engine_for(eos), requests, logprobs=logprobs)

    def _ranked(self, request: Request, found: list[Hypothesis], eos: int) -> list[Hypothesis]:
        if not request.config.coverage_penalty:
            return found
        return rank_by_coverage(self.decoder, [request], [found], eos)[0]


class EngineBackend(Backend[Any]):
    """The backend of a pipeline on a server. All inputs have one decoder, however many arrive together."""

    def __init__(self, backend: Backend[Any], inputs: int, start_engine: Callable[[Any, int], EnginePool]) -> None:
        """`inputs` is how many outputs the engine decodes together, which selects the kernels."""
        super().__init__(backend.model)
        self.fused, self.precision = backend.fused, backend.precision
        decoder = backend.decoder_model(inputs)
        self.engines: dict[int, EnginePool] = {}
        """By end token. A pipeline has one."""

        def engine_for(eos: int) -> EnginePool:
            if eos not in self.engines:
                self.engines[eos] = start_engine(decoder, eos)
            return self.engines[eos]

        self.engine_model = EngineModel(decoder, engine_for)

    def decoder_model(self, inputs: int) -> Any:
        return self.engine_model

    def stream(self, request: Request, eos: int) -> Generator[tuple[int, ...], None, None]:
        return self.engine_model.stream(request, eos)

    def configure(self, precision: Precision, fused: bool | None = None) -> None:
        raise AssertionError("a served model has been configured when it was loaded")

    def reset(self) -> None:
        raise AssertionError("a served model stays on its device")


def _submit(engine: EnginePool, request: Request, cancellation: Cancellation) -> DecodeFuture:
    future = engine.submit(request)
    cancellation.add(future)
    return future


def _result(
    future: DecodeFuture,
    cancellation: Cancellation,
    progress: Callable[[int], None] | None = None,
    done: int = 0,
) -> list[Hypothesis]:
    try:
        hypotheses = future.result()
    finally:
        cancellation.remove(future)
    cancellation.check()  # a canceled output has no hypotheses
    if progress is not None:
        progress(done)
    return hypotheses


def _per_request(request: Request) -> Request:
    """Without the coverage penalty, which ranks the hypotheses afterwards."""
    if not request.config.coverage_penalty:
        return request
    config = request.config.model_copy(update={"coverage_penalty": 0.0, "nbest": None})
    return Request(request.source, request.max_length, config, request.constraints, request.alternatives)
