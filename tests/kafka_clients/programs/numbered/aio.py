"""aiokafka, whose producers are idempotent only where they are told to be.

It has one batch of a partition under way, so small ones would fill its buffer while the broker is
away, and `send` would fail.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer

from tests.kafka_clients.programs.numbered.protocol import (
    BACKOFF_MS,
    FLUSH_S,
    LINGER_MS,
    PAUSE_S,
    Numbering,
    await_start,
)


class Writer:
    def __init__(self) -> None:
        self._numbers = Numbering()

    async def run(self) -> None:
        stopping = await_start()
        async with AIOKafkaProducer(
            bootstrap_servers=self._numbers.bootstrap,
            enable_idempotence=True,
            linger_ms=LINGER_MS,
            retry_backoff_ms=BACKOFF_MS,
            request_timeout_ms=10_000,
        ) as producer:
            while not stopping.is_set():
                if self._numbers.has_room:
                    await self._send_burst(producer)
                sys.stdout.flush()
                await asyncio.sleep(PAUSE_S)
            async with asyncio.timeout(FLUSH_S):
                await producer.flush()

    async def _send_burst(self, producer: AIOKafkaProducer) -> None:
        for number, partition in self._numbers.burst():
            value = b"aiokafka %d" % number
            future = await producer.send(self._numbers.topic, value, partition=partition)
            future.add_done_callback(partial(self._done, partition, number))

    def _done(self, partition: int, number: int, done: asyncio.Future[Any]) -> None:
        error = done.exception()
        if error is not None:
            self._numbers.failed(partition, number, repr(error))
        else:
            self._numbers.acked(done.result().partition, number, done.result().offset)


asyncio.run(Writer().run())
