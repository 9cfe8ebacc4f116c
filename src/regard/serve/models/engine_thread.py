"""Threads that step engines as long as there is something to decode."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from regard.decode import DecodeFuture, Engine, Request
from regard.decode.batch import StepCallback, TokenCallback


class EngineThread:
    """Decodes the requests of all other threads together. A step that fails ends its requests, never the thread."""

    def __init__(self, engine: Engine[Any], log: Callable[[str], None], *, cores: int | None = None) -> None:
        """`cores` are those that a step computes on; by default all that PyTorch uses."""
        self.engine, self.log, self._cores = engine, log, cores
        self.steps = 0
        """Steps taken so far."""
        self.outputs = 0
        """Outputs decoded in all steps so far: divided by `steps`, how full the batch is on average."""
        self._wake = threading.Condition()
        self._closed = False
        self._cache_bytes = 0
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="regard-engine", daemon=True)
        threads = torch.get_num_threads()
        self._thread.start()
        self._started.wait()
        torch.set_num_threads(threads)  # threads that start later compute on as many as PyTorch was told last

    def submit(
        self, request: Request, on_tokens: TokenCallback | None = None, on_step: StepCallback | None = None
    ) -> DecodeFuture:
        """Queue a request; once the thread was closed, its future has an error."""
        future = self.engine.submit(request, on_tokens, on_step)
        with self._wake:
            self._wake.notify()
            closed = self._closed
        if closed and not future.done:
            future.set_exception(RuntimeError("The engine was closed."))
        return future

    @property
    def load(self) -> int:
        """Outputs that are being decoded, and those that wait."""
        return self.active + len(self.engine.waiting)

    @property
    def active(self) -> int:
        """Outputs that are being decoded."""
        return sum(len(group.active) for group in list(self.engine.groups.values()))

    @property
    def cache_bytes(self) -> int:
        """Bytes of KV cache after the last step."""
        return self._cache_bytes

    def close(self) -> None:
        """End the thread after its current step, and what is still being decoded with an error."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()
        self.engine.fail(RuntimeError("The engine was closed."))

    def _run(self) -> None:
        if self._cores is not None:
            torch.set_num_threads(self._cores)
        self._started.set()
        while self._wait():
            try:
                self.engine.step()
            except Exception as error:  # a defect of the engine itself: those of the model are handled by it
                self.log(f"The engine failed and starts again ({type(error).__name__}: {error}).")
                self.engine.fail(error)
            self.steps += 1
            self.outputs += self.engine.outputs
            self._cache_bytes = self.engine.cache_bytes()

    def _wait(self) -> bool:
        """Wait until there is something to decode. False once the thread was closed."""
        with self._wake:
            while not self._closed and not self.engine.busy:
                self._wake.wait()
        return not self._closed


class EnginePool:
    """Engines that decode on one core each, without waiting for each other after every step."""

    def __init__(self, engines: Sequence[EngineThread]) -> None:
        self.engines = list(engines)

    def submit(
        self, request: Request, on_tokens: TokenCallback | None = None, on_step: StepCallback | None = None
    ) -> DecodeFuture:
        """Queue a request where the fewest outputs are."""
        engine = min(self.engines, key=lambda engine: engine.load) if len(self.engines) > 1 else self.engines[0]
        return engine.submit(request, on_tokens, on_step)
