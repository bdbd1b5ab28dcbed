"""The blocking and the asyncio producer behind one face, so that each test runs with both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from streamlog.client import Producer, aio

WAIT_S = 30
T = TypeVar("T")
FAST: dict[str, Any] = dict(retry_backoff_ms=5, retry_backoff_max_ms=20, linger_ms=0)


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_S)
        self.loop.close()


class AioDelivery:
    def __init__(self, loop: LoopThread, delivery: Any) -> None:
        self._loop = loop
        self._delivery = delivery

    def result(self, timeout: float = WAIT_S) -> Any:
        return self._loop.run(self._delivery.result())

    def exception(self, timeout: float = WAIT_S) -> Any:
        return self._loop.run(self._delivery.exception())


class AioProducer:
    """`aio.Producer`, whose calls block."""

    def __init__(self, server: str, **settings: Any) -> None:
        self._loop = LoopThread()

        async def make() -> aio.Producer:
            return aio.Producer(server, **settings)

        self._producer = self._loop.run(make())

    def send(self, *arguments: Any, **options: Any) -> AioDelivery:
        return AioDelivery(self._loop, self._loop.run(self._producer.send(*arguments, **options)))

    def send_many(self, *arguments: Any, **options: Any) -> AioDelivery:
        sent = self._loop.run(self._producer.send_many(*arguments, **options))
        return AioDelivery(self._loop, sent)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._producer, name)

        def call(*arguments: Any, **options: Any) -> Any:
            async def run() -> Any:
                return await method(*arguments, **options)

            return self._loop.run(run())

        return call

    def metrics(self) -> dict[str, float]:
        async def read() -> dict[str, float]:
            return self._producer.metrics()

        return self._loop.run(read())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        block = self._producer.transaction()
        self._loop.run(block.__aenter__())
        try:
            yield
        except BaseException as error:
            self._loop.run(block.__aexit__(type(error), error, None))
            raise
        else:
            self._loop.run(block.__aexit__(None, None, None))

    def close(self, timeout: float | None = None) -> None:
        self._loop.run(self._producer.close(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._loop.close()


KINDS: dict[str, Callable[..., Any]] = {"threads": Producer, "asyncio": AioProducer}
