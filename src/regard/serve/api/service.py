"""What the routes share: the models, the limits, and answering a request in a thread of its model."""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from regard.serve.api.access import Access
from regard.serve.api.errors import ErrorShapes, RefusedError
from regard.serve.api.metrics import Metrics
from regard.serve.limits import Limits
from regard.serve.models.cancellation import Cancellation
from regard.serve.models.registry import ModelRegistry
from regard.serve.models.served_model import ServedModel

T = TypeVar("T")
PassFunction = Callable[[Any, Sequence[Any], Callable[[int], None]], Sequence[Any]]
"""Computes the results of items with a pipeline. The last argument takes the progress, and may stop it."""
_END = object()


class Service:
    """A server's models and settings."""

    def __init__(self, models: ModelRegistry, limits: Limits, access: Access) -> None:
        self.models, self.limits, self.access = models, limits, access
        self.error_shapes = ErrorShapes()
        self.draining = False
        """Whether the server shuts down: what has begun is finished, and new requests are refused."""
        self.in_progress = 0
        """Requests that are being answered."""
        self.metrics: Metrics | None = None
        """What is counted for `/metrics`, once the app has been made."""

    async def compute(self, request: Request, model: ServedModel, capability: str, function: Callable[[Any], T]) -> T:
        """Call a function of the model's pipeline in one of its threads. It stops if the client leaves, or too late."""
        cancellation = Cancellation()
        result = asyncio.wrap_future(
            model.worker(capability).submit(lambda: cancellation.run(lambda: function(model.pipeline)))
        )
        try:
            return await self._unless_left(request, result)
        finally:
            if not result.done():
                cancellation.cancel()
                result.cancel()

    async def compute_batched(
        self, request: Request, model: ServedModel, key: Hashable, items: Sequence[Any], function: PassFunction
    ) -> list[Any]:
        """What a function of the model's pipeline computes for some items, together with those of other requests.

        Equal keys mean that the function does the same.
        """
        result = asyncio.wrap_future(
            model.batcher.submit(key, items, lambda every, check: function(model.pipeline, every, check))
        )
        try:
            return await self._unless_left(request, result)
        finally:
            result.cancel()

    async def stream(
        self, request: Request, model: ServedModel, capability: str, function: Callable[[Any], Iterator[T]]
    ) -> AsyncIterator[T]:
        """What a function of the model's pipeline yields, as it does. It stops when the iteration is closed.

        Waits for the first item, so that a request that is refused has an error instead of a response.
        """
        loop, arrived = asyncio.get_running_loop(), asyncio.Queue[Any]()
        cancellation = Cancellation()

        def send(item: Any) -> None:
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(arrived.put_nowait, item)

        def run() -> None:
            try:
                for item in function(model.pipeline):
                    send(item)
                    cancellation.check()
            except BaseException as error:  # the iteration raises it
                send(error)

        future = model.worker(capability).submit(lambda: cancellation.run(run))
        future.add_done_callback(lambda _: send(_END))
        items = self._items(arrived, cancellation, future)
        try:
            first = await self._unless_left(request, asyncio.ensure_future(anext(items, _END)))
        except BaseException:
            cancellation.cancel()
            future.cancel()
            raise
        return _chain(first, items)

    async def _unless_left(self, request: Request, result: "asyncio.Future[T]") -> T:
        """Wait for a result, as long as the client does and the limit allows."""
        loop = asyncio.get_running_loop()
        changed: asyncio.Future[None] = loop.create_future()

        def wake(_: object = None) -> None:
            if not changed.done():
                changed.set_result(None)

        result.add_done_callback(wake)
        departure = asyncio.ensure_future(_departure(request))
        departure.add_done_callback(wake)
        deadline = loop.call_later(self.limits.seconds, wake)
        try:
            await changed  # not `asyncio.wait`, which takes several times as long
            if not result.done():
                raise ClientDisconnect if departure.done() else self._too_late()
            if result.cancelled():
                raise RefusedError(503, "The server is shutting down; send the request to another one.")
            return result.result()
        finally:
            deadline.cancel()
            departure.cancel()
            if not result.done():
                result.add_done_callback(_retrieve)

    async def _items(
        self, arrived: "asyncio.Queue[Any]", cancellation: Cancellation, future: Any
    ) -> AsyncIterator[Any]:
        try:
            async with asyncio.timeout(self.limits.seconds):
                while (item := await arrived.get()) is not _END:
                    if isinstance(item, BaseException):
                        raise item
                    yield item
        except TimeoutError:
            raise self._too_late() from None
        finally:
            cancellation.cancel()
            future.cancel()

    def _too_late(self) -> RefusedError:
        seconds = f"{self.limits.seconds:g}"
        return RefusedError(
            503, f"The request was not finished within {seconds} seconds; send less at a time, or later."
        )


async def _chain(first: Any, items: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The first item and those after it."""
    if first is _END:
        return
    try:
        yield first
        async for item in items:
            yield item
    finally:
        await items.aclose()  # type: ignore[attr-defined]


async def _departure(request: Request) -> None:
    """Wait until the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _retrieve(future: "asyncio.Future[Any]") -> None:
    """Take notice of the error of a result that nobody waits for, so that asyncio does not report it."""
    if not future.cancelled():
        future.exception()
