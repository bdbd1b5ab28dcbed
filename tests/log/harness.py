"""A shared log over a medium in memory or in a folder, with crashes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from streamlog.errors import StreamlogError
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.config import LogConfig
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.log_factory import TopicIdentity
from streamlog.log.api.metrics import LogMetrics
from streamlog.log.api.topic_config import parse
from streamlog.log.shared.shared_log import SharedLog
from streamlog.log.shared.shared_logs import SharedLogFactory
from streamlog.model.partition import TopicPartition
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.basic_streams import BasicStreamClient
from streamlog.testing.clocks import ManualClock

PARTITION = TopicPartition("t", 0)
DEFAULTS = LogConfig()


ClientOf = Callable[[ManualClock], Awaitable[BasicStreamClient]]


class SharedLogUnderTest:
    """`client_of` makes the next process's client, after the last one is gone.

    `handle` is the partition's meta stream.
    """

    log: SharedLog
    client: BasicStreamClient

    def __init__(
        self,
        client_of: ClientOf,
        configs: Mapping[str, str],
        config: LogConfig = DEFAULTS,
    ) -> None:
        self.clock = ManualClock()
        self.random = SeededRandom(1)
        self.config = config
        self.configs = dict(configs)
        self.failures: list[StreamlogError] = []
        self._client_of = client_of
        self.handle = 0

    async def start(self) -> None:
        self.client = await self._client_of(self.clock)
        topic = TopicIdentity("t", self.random.uuid(), "attempt")
        factory = SharedLogFactory(self.client, self.environment())
        (self.handle,) = await factory.create(topic, [0], parse(self.configs))
        await self.open()

    def environment(self) -> LogEnvironment:
        metrics = LogMetrics(CollectorRegistry())
        return LogEnvironment(self.clock, self.random, self.config, metrics)

    async def open(self) -> None:
        self.log = await SharedLog.open(
            self.client,
            PARTITION,
            self.handle,
            parse(self.configs),
            self.environment(),
            on_failure=self._failed,
        )

    def _failed(self, _log: AbstractLog, error: StreamlogError) -> None:
        self.failures.append(error)

    async def reopened(self) -> None:
        await self.log.close()
        await self.open()

    async def crashed(self) -> None:
        await self.client.kill()
        await self.log.kill()
        self.client = await self._client_of(self.clock)
        await self.open()

    def hold(self) -> None:
        self.client.hold()

    def release(self) -> None:
        self.client.release()

    async def stop(self) -> None:
        self.release()
        await self.log.close()
        await self.client.stop()


@asynccontextmanager
async def shared_log(
    client_of: ClientOf,
    configs: Mapping[str, str] | None = None,
    config: LogConfig = DEFAULTS,
) -> AsyncIterator[SharedLogUnderTest]:
    under_test = SharedLogUnderTest(client_of, configs or {}, config)
    await under_test.start()
    try:
        yield under_test
    finally:
        await under_test.stop()
