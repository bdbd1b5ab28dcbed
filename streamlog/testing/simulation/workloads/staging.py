"""A job that writes by staging: tasks, and a driver that repeats commits, restages and gives up.

1. Tasks stage batches for both partitions of a topic; some run twice, under two attempts.
2. The driver commits one attempt of each task under the next epoch. When the answer does not come,
   it commits the same objects again, or stages everything anew and commits under the same epoch.
3. An old driver commits an old epoch again, with other objects, or aborts committed objects.
4. A producer appends to the same partitions. One node at a time leads the topic, while it lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from streamlog.codec.records import decode, encode_values
from streamlog.errors import AlreadyExists, OffsetNotAvailable, StagedNotFound
from streamlog.log.api.abstract_log import AbstractLog, ProduceContext
from streamlog.log.staged_logs import ManifestEntry, StagedLogs
from streamlog.model.partition import TopicPartition
from streamlog.testing.simulation.checker import StagedModel, Violation
from streamlog.testing.simulation.workloads.logs import TRIED_AGAIN, batches_of, log_at_last
from streamlog.testing.simulation.workloads.streams import run_sessions, together
from streamlog.testing.simulation.world.node import SimulationNode
from streamlog.testing.simulation.world.world import World

TOPIC = "staged"
PARTITIONS = 2
WRITER = "job"
SETTINGS = {"internal.segment.bytes": "1500", "index.interval.bytes": "300"}
TIMESTAMP_MS = 1_700_000_000_000


class StagingWorkload:
    """Everything that happens to the topic of staged writes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.model = StagedModel(TOPIC, PARTITIONS)
        self._random = world.fork()
        self._tally = world.tally
        self._partitions = [TopicPartition(TOPIC, n) for n in range(PARTITIONS)]
        self._attempts = count()
        self._appends = count()
        self._pending: tuple[int, list[ManifestEntry]] | None = None
        """Epoch and manifest that the driver, which outlives nodes, is about to commit."""
        self._committed: list[list[ManifestEntry]] = []
        """The manifests of confirmed epochs, to be committed once more."""

    def sessions(self) -> Coroutine[Any, Any, None]:
        return run_sessions(self.world, self._random, self._session, TOPIC)

    async def _session(self, node: SimulationNode) -> None:
        """Works at this node until something fails there."""
        try:
            logs = await self._logs(node)
            staged = node.engine.logs.staged
            assert staged is not None
            works = [self._drive(node, staged), self._leave()]
            works += [self._append(node, log, n) for n, log in enumerate(logs)]
            works += [self._read(log, n) for n, log in enumerate(logs)]
            await together(works)
        except TRIED_AGAIN as error:
            self.world.trace.add("job-failed", node.name, type(error).__name__)
            await asyncio.sleep(0.2 + 0.4 * self._random.random())

    async def _logs(self, node: SimulationNode) -> list[AbstractLog]:
        logs = node.engine.logs
        if logs.topic(TOPIC) is None:
            with suppress(AlreadyExists):
                await logs.create_topic(TOPIC, PARTITIONS, SETTINGS)
        return [await logs.log(partition) for partition in self._partitions]

    async def _leave(self) -> None:
        await asyncio.sleep(2 + 8 * self._random.random())
        await self.world.until_ending()

    # the job

    async def _drive(self, node: SimulationNode, staged: StagedLogs) -> None:
        random = self._random.random
        while True:
            await asyncio.sleep(0.3 * random())
            epoch, manifest = self._pending or (-1, [])
            if epoch != self.model.next_epoch or random() < 0.3:
                with self.world.waiting(node, f"staging for epoch {self.model.next_epoch}"):
                    epoch, manifest = self.model.next_epoch, await self._stage_all(staged)
            self._pending = epoch, manifest
            if random() < 0.1:
                await asyncio.sleep(3 * random())
            while True:
                await self._commit(node, staged, epoch, manifest)
                if self.model.next_epoch > epoch or random() < 0.5:
                    break
            while random() < 0.2 and self._committed:
                epoch = int(random() * len(self._committed))
                self._tally.count("commit an old epoch")
                old = self._committed[epoch] if random() < 0.5 else manifest
                with self.world.waiting(node, f"second commit of epoch {epoch}"):
                    repeated = await staged.commit(WRITER, epoch, old)
                if not repeated.was_committed:
                    raise Violation(f"{TOPIC}: epoch {epoch} was committed a second time")
            if random() < 0.3:
                self._tally.count("abort")
                ids = [entry.object_id for entry in manifest]
                with self.world.waiting(node, f"abort of epoch {epoch}"):
                    await staged.abort(WRITER, ids)

    async def _stage_all(self, staged: StagedLogs) -> list[ManifestEntry]:
        """A manifest of one attempt of each task; other attempts stay behind."""
        random = self._random.random
        manifest: list[ManifestEntry] = []
        for _ in range(1 + int(random() * 3)):
            attempts = [await self._stage(staged) for _ in range(1 + (random() < 0.2))]
            manifest.append(attempts[int(random() * len(attempts))])
        return manifest

    async def _stage(self, staged: StagedLogs) -> ManifestEntry:
        random, number = self._random.random, next(self._attempts)
        first = 0 if random() < 0.8 else int(random() * PARTITIONS)
        partitions = self._partitions[first:]
        values: dict[int, list[bytes]] = {}
        batches: dict[TopicPartition, bytes] = {}
        for partition in partitions:
            own = values[partition.partition] = []
            data = b""
            for batch in range(1 + int(random() * 3)):
                made = [b"s%d/%d/%d" % (number, batch, n) for n in range(1 + int(random() * 3))]
                data += _encoded(made)
                own += made
            batches[partition] = data
        self._tally.count("stage")
        stored = await staged.stage(WRITER, f"a{number}", batches)
        if random() < 0.2:
            again = await staged.stage(WRITER, f"a{number}", batches)
            if again.staged != stored.staged:
                raise Violation(f"{TOPIC}: attempt {number} was stored twice")
        self.model.staged(stored.staged.object_id, values)
        return ManifestEntry(stored.staged.object_id, list(partitions))

    async def _commit(
        self,
        node: SimulationNode,
        staged: StagedLogs,
        epoch: int,
        manifest: Sequence[ManifestEntry],
    ) -> None:
        ids = [entry.object_id for entry in manifest]
        self.model.asked(epoch, ids)
        self._tally.count("commit")
        patience_s = 0.1 + 20 * self._random.random() ** 2
        try:
            # A time-out at the end of a history would hide a commit that is never answered.
            async with asyncio.timeout(None if self.world.is_ending else patience_s):
                with self.world.waiting(node, f"commit of epoch {epoch}"):
                    commit = await staged.commit(WRITER, epoch, manifest)
        except TimeoutError:
            return  # It may be there: the next commit has the same epoch.
        except StagedNotFound:
            self._pending = None
            return  # It took so long, with a pause, that the staged objects expired.
        self.world.trace.add("committed", node.name, epoch, commit.was_committed)
        if not commit.was_committed:
            self.model.told(epoch, ids)
        if self.model.next_epoch == epoch:
            self._committed.append(list(manifest))
        places = {part.partition.partition: part.start_offset for part in commit.parts}
        self.model.confirmed(epoch, places)

    # beside the job

    async def _append(self, node: SimulationNode, log: AbstractLog, number: int) -> None:
        random = self._random.random
        while True:
            await asyncio.sleep(0.3 * random())
            value = b"p%d" % next(self._appends)
            self.model.appended(number, value)
            context = ProduceContext(deadline=self.world.now + 20)
            self._tally.count("produce")
            with self.world.waiting(node, f"produce to {TOPIC}"):
                info = await (await log.append(_encoded([value]), context))
            self.model.acknowledged(number, info.base_offset, value)

    async def _read(self, log: AbstractLog, number: int) -> None:
        random = self._random.random
        while True:
            await asyncio.sleep(0.5 * random())
            start = int(random() * (log.high_watermark + 1))
            await self._fetch(log, number, start)

    async def _fetch(self, log: AbstractLog, number: int, start: int) -> int:
        self._tally.count("consume")
        try:
            fetched = await log.fetch(start, 4096)
        except OffsetNotAvailable:
            return start
        for batch in batches_of(fetched):
            for offset, _, _, value, _ in decode(batch.view):
                self.model.read(number, offset, bytes(value or b""))
        return fetched.next_offset

    async def check(self, node: SimulationNode) -> None:
        """After healing: reads everything and checks it against the model."""
        logs = [await log_at_last(node, lambda n, i=i: self._log(n, i)) for i in range(PARTITIONS)]
        for number, log in enumerate(logs):
            offset = 0
            while offset < log.high_watermark:
                offset = await self._fetch(log, number, offset)
            self.model.ends(number, log.high_watermark)
        self.model.finish()

    async def _log(self, node: SimulationNode, number: int) -> AbstractLog:
        return (await self._logs(node))[number]


def _encoded(values: Sequence[bytes]) -> bytes:
    return bytes(encode_values(values, timestamp_ms=TIMESTAMP_MS).data)
