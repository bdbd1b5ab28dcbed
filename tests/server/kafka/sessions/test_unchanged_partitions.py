"""A poll of a session costs what has changed, however many partitions the session has."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, ClassVar

from streamlog.model.partition import TopicPartition
from tests.server.kafka.fetch_world import answered, offsets, wanted, world_over
from tests.support.server_fakes import FakeLogs, ListLog

PARTITIONS = 5000
SOON_S = 30.0


class WatchedLog(ListLog):
    """Counts every look at it."""

    looks: ClassVar[Counter[int]] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            partition = super().__getattribute__("_partition")
            WatchedLog.looks[partition.partition] += 1
        return super().__getattribute__(name)


class WatchedLogs(FakeLogs):
    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def open_log(self, partition: TopicPartition) -> ListLog | None:
        self.asked += 1
        return super().open_log(partition)


def test_a_poll_over_5000_unchanged_partitions_visits_none_of_them_and_makes_no_task() -> None:
    async def main() -> None:
        logs = WatchedLogs()
        await logs.create_topic("t", PARTITIONS)
        for number in range(PARTITIONS):
            key = TopicPartition("t", number)
            logs.open[key] = WatchedLog(key)
        world = world_over(logs)
        parts = [wanted(number) for number in range(PARTITIONS)]
        session = (await world.fetch(parts=parts, session=(0, 0))).session_id

        tasks = 0

        def factory(
            loop: asyncio.AbstractEventLoop, work: Any, **kwargs: Any
        ) -> asyncio.Future[Any]:
            nonlocal tasks
            tasks += 1
            return asyncio.Task(work, loop=loop, **kwargs)

        WatchedLog.looks.clear()
        logs.asked = 0
        asyncio.get_running_loop().set_task_factory(factory)
        for epoch in (1, 2):
            response = await world.fetch(session=(session, epoch), wait_ms=5)
            assert (response.error_code, response.responses) == (0, [])
        assert (WatchedLog.looks, logs.asked, tasks) == (Counter(), 0, 0)

        # The poll's own task is the only one, and the partition that changes the only one visited.
        poll = asyncio.create_task(world.fetch(session=(session, 3), wait_ms=60_000))
        await world.waits()
        await world.append(b"a", partition=1234)
        async with asyncio.timeout(SOON_S):
            found = answered(await poll)
        assert {number: offsets(part) for number, part in found.items()} == {1234: [0]}
        assert (set(WatchedLog.looks), logs.asked, tasks) == ({1234}, 1, 1)

    asyncio.run(main())
