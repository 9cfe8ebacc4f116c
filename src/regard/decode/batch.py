"""Decoding a list of requests in the fastest order; results come in the order of the requests.

Requests are sorted by length, so that a batch needs little padding, and put into batches of a bounded number of tokens.
The longest come first, so that running out of memory shows at once.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from regard.cost import is_out_of_memory
from regard.decode.config import Constraints, DecodeConfig, make_strategy
from regard.decode.coverage import rank_by_coverage
from regard.decode.cuda_graphs import graph_batch_size
from regard.decode.observer import Observer
from regard.decode.search import DecoderModel, DecoderState, score_forced, search
from regard.decode.strategy import Hypothesis
from regard.errors import UserError
from regard.kernels.cpu.threads import check_threads

Item = TypeVar("Item")
Result = TypeVar("Result")


class BatchDecoderState(DecoderState, Protocol):
    """A state whose rows can be replaced while others are being decoded. Rows form groups, one per source."""

    def scatter_rows(self, sources: Tensor, other: Self) -> None:
        """Replace these groups of rows by those of another state; groups past the last are added."""
        ...

    def clear_rows(self, sources: Tensor) -> None:
        """Set the length of these groups of rows to 0."""
        ...

    def is_full(self) -> bool:
        """Whether one more token needs more capacity."""
        ...

    def grow(self) -> None:
        """Double the capacity."""
        ...

    def nbytes(self) -> int:
        """Bytes allocated, unused capacity included."""
        ...


State = TypeVar("State", bound=BatchDecoderState)


class BatchDecoderModel(DecoderModel[State], Protocol[State]):
    """A model that can prefill a batch of sources, and whose state accepts new rows at any time."""

    @property
    def device(self) -> torch.device: ...

    def prefill(self, sources: Sequence[Sequence[int]], capacity: int) -> tuple[State, Tensor]:
        """Process sources or prompts; returns the state, with room for `capacity` tokens, and the start tokens.

        One row per source.  # (rows,)
        """
        ...

    def kv_bytes_per_token(self) -> int:
        """Bytes of state for one token of one row."""
        ...


@runtime_checkable
class RequestSearch(Protocol):
    """A decoder model that is shared with others and batches all their requests itself, such as that of a server."""

    def search_requests(
        self, requests: Sequence["Request"], eos: int, progress: Callable[[int], None] | None
    ) -> list[list[Hypothesis]]: ...


_UNCONSTRAINED = Constraints()
MAX_ALTERNATIVES = 1000
"""The most alternatives that can be reported for a token."""


@dataclass(frozen=True)
class Request:
    """A source or prompt to decode, the maximum number of output tokens (EOS included), and how to decode it."""

    source: tuple[int, ...]
    max_length: int
    config: DecodeConfig
    constraints: Constraints = _UNCONSTRAINED
    alternatives: int = 0
    """The number of alternatives to report for each token."""

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise UserError(f"The maximum length is {self.max_length}; it must be at least 1, for EOS.")
        if not 0 <= self.alternatives <= MAX_ALTERNATIVES:
            raise UserError(f"alternatives: found {self.alternatives}; expected 0 to {MAX_ALTERNATIVES} per token.")

    @cached_property
    def batch_key(self) -> tuple[Any, ...]:
        """Requests with the same key can be decoded in one batch."""
        config = self.config.model_copy(update={"seed": 0})
        return config.model_dump_json(), *self.constraints.batch_key, self.alternatives


TokenCallback = Callable[[tuple[int, ...]], bool | None]
"""Called with the tokens so far after every step; returning true stops the output there."""
StepCallback = Callable[[Hypothesis], None]
"""Called with the output so far after every step, log-probabilities included."""


@dataclass(eq=False)
class DecodeFuture:
    """A submitted request. `cancel` and `result` may be called from any thread."""

    request: Request
    on_tokens: TokenCallback | None = None
    on_step: StepCallback | None = None
    canceled: bool = False
    _hypotheses: list[Hypothesis] = field(default_factory=list)
    _error: Exception | None = None
    _done: threading.Event = field(default_factory=threading.Event)
    _on_done: Callable[[], None] | None = None

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call a function once the result is there, in the thread that sets it; at once if it is there already."""
        self._on_done = callback
        if self.done:
            self._call_back()

    def cancel(self) -> None:
        self.canceled = True

    def result(self, timeout: float | None = None) -> list[Hypothesis]:
        """Wait for the hypotheses, best first; none if the request was canceled."""
        if not self._done.wait(timeout):
            raise TimeoutError("The output is not ready yet.")
        if self._error is not None:
            raise self._error
        return self._hypotheses

    def set_result(self, hypotheses: list[Hypothesis]) -> None:
        self._hypotheses = hypotheses
        self._done.set()
        self._call_back()

    def set_exception(self, error: Exception) -> None:
        self._error = error
        self._done.set()
        self._call_back()

    def _call_back(self) -> None:
        callback, self._on_done = self._on_done, None  # whichever thread takes it calls it
        if callback is not None:
            callback()


def search_all(
    model: BatchDecoderModel[State],
    requests: Sequence[Request],
    eos: int,
    *,
    batch_tokens: int,
    threads: int = 1,
    progress: Callable[[int], None] | None = None,
    search: Callable[[BatchDecoderModel[State], Sequence[Request], int], list[list[Hypothesis]]] | None = None,
) -> list[list[Hypothesis]]:
    """The hypotheses found for each request, best first, by `search_batch` or another such function.

    `progress` is called with the number of finished requests. Several `threads` work on one batch each. A model that
    batches requests itself (`RequestSearch`) gets them all.
    """
    if isinstance(model, RequestSearch):
        return model.search_requests(requests, eos, progress)
    found: list[list[Hypothesis]] = [[] for _ in requests]
    done = 0

    def decode(batch: list[int]) -> tuple[list[int], list[list[Hypothesis]]]:
        return batch, (search or search_batch)(model, [requests[index] for index in batch], eos)

    batches = list(_batches(requests, batch_tokens, threads))
    for batch, results in _unordered_map(decode, batches, min(threads, len(batches))):
        for index, hypotheses in zip(batch, results, strict=True):
            found[index] = hypotheses
        done += len(batch)
        if progress is not None:
            progress(done)
    return found


def score_all(
    model: BatchDecoderModel[State],
    sources: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    eos: int | None,
    *,
    batch_tokens: int,
    progress: Callable[[int], None] | None = None,
) -> list[tuple[float, ...]]:
    """Forced scores: the log-probability of each token of a given output, and of EOS after it if there is one.

    Sources or prompts and outputs are given in pairs. `progress` is called with the number of finished pairs.
    """
    lengths = [max(len(source), len(output)) + 1 for source, output in zip(sources, outputs, strict=True)]
    found: list[tuple[float, ...]] = [()] * len(lengths)
    done = 0
    for batch in _length_batches(range(len(lengths)), lengths, batch_tokens):
        scored = _score_batch(model, [sources[index] for index in batch], [outputs[index] for index in batch], eos)
        for index, logprobs in zip(batch, scored, strict=True):
            found[index] = logprobs
        done += len(batch)
        if progress is not None:
            progress(done)
    return found


@torch.inference_mode()
def search_batch(
    model: BatchDecoderModel[State], requests: Sequence[Request], eos: int, observer: Observer | None = None
) -> list[list[Hypothesis]]:
    """The hypotheses found for requests with the same batch key, decoded together."""
    has_graphs = getattr(model, "supports_cuda_graphs", False)
    padded = pad_requests(requests, graph_batch_size(model, len(requests)) if has_graphs else len(requests))
    max_lengths = [request.max_length for request in padded]
    try:
        state, start_tokens = model.prefill([request.source for request in padded], max(max_lengths))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"Out of memory for a KV cache of {len(padded):,} × {max(max_lengths):,} tokens; lower the maximum length "
            "(max_new_tokens, or decode.max_length_ratio and decode.max_length_offset)."
        ) from None
    config = padded[0].config
    strategy = make_strategy(
        config.model_copy(update={"nbest": None}) if config.coverage_penalty else config,
        max_lengths,
        eos,
        constraints=[request.constraints for request in padded],
        alternatives=padded[0].alternatives,
        device=start_tokens.device,
    )
    found = search(model, state, start_tokens, strategy, observer)[: len(requests)]
    return rank_by_coverage(model, requests, found, eos) if config.coverage_penalty else found


def _score_batch(
    model: BatchDecoderModel[State], sources: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], eos: int | None
) -> list[tuple[float, ...]]:
    """The forced scores of a batch; row by row if the padding of a long output goes beyond the model's positions."""
    longest = max(map(len, outputs)) + 1
    state, start_tokens = model.prefill(sources, longest)
    has_room = getattr(model, "has_room", None)
    if len(outputs) > 1 and has_room is not None and not has_room(state, longest):
        pairs = zip(sources, outputs, strict=True)
        return [_score_batch(model, [source], [output], eos)[0] for source, output in pairs]
    return score_forced(model, state, start_tokens, outputs, eos=eos)


def pad_requests(requests: Sequence[Request], slots: int) -> list[Request]:
    """The requests, followed by copies of the last one that end after one token, `slots` in all."""
    last = requests[-1]
    shared = Constraints(forbidden=last.constraints.forbidden, forbidden_text=last.constraints.forbidden_text)
    filler = replace(last, max_length=1, constraints=shared)
    return [*requests, *[filler] * (slots - len(requests))]


@lru_cache(maxsize=4)
def thread_pool(threads: int) -> ThreadPoolExecutor:
    """A pool that is reused, because kernel libraries initialize themselves in every thread that calls them."""
    return ThreadPoolExecutor(check_threads(threads), "regard-search", initializer=torch.set_num_threads, initargs=(1,))


def _unordered_map(function: Callable[[Item], Result], items: Sequence[Item], threads: int) -> Iterator[Result]:
    """The results in order of completion."""
    if threads <= 1:
        yield from map(function, items)
        return
    pool = thread_pool(threads)
    pending = [pool.submit(function, item) for item in items]
    try:
        for future in as_completed(pending):
            yield future.result()
    finally:
        for future in pending:
            future.cancel()


def _batches(requests: Sequence[Request], batch_tokens: int, threads: int) -> Iterator[list[int]]:
    """Indices of requests with the same batch key and similar lengths, at least one batch per thread."""
    by_key: dict[object, list[int]] = {}
    for index, request in enumerate(requests):
        by_key.setdefault(request.batch_key, []).append(index)
    for indices in by_key.values():
        lengths = {index: len(requests[index].source) + 1 for index in indices}
        yield from _length_batches(indices, lengths, min(batch_tokens, -(-sum(lengths.values()) // threads)))


def _length_batches(
    indices: Iterable[int], lengths: Mapping[int, int] | Sequence[int], limit: int
) -> Iterator[list[int]]:
    """The indices in batches of at most `limit` tokens, padding included, the longest first."""
    batch: list[int] = []
    longest = 0
    for index in sorted(indices, key=lambda index: -lengths[index]):
        if batch and longest * (len(batch) + 1) > limit:
            yield batch
            batch = []
        if not batch:
            longest = lengths[index]
        batch.append(index)
    if batch:
        yield batch
