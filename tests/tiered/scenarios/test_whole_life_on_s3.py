"""The whole life of a tiered topic whose remote tier is a real S3 server.

What the bucket has is asked of the server, past the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from confluent_kafka import IsolationLevel
from confluent_kafka.admin import OffsetSpec

from streamlog.client.aio import Consumer
from tests.support.s3 import BUCKET, S3Tests
from tests.tiered.scenarios.kafka_clients import value_of
from tests.tiered.scenarios.tiered_node import SEGMENT, TIERED, TieredNode, tiered_node

ABORTED, COMMITTED, LATE = range(16, 22), range(22, 30), range(30, 44)
RECORDS = (
    [(number, value_of(number)) for number in range(22)]
    # A marker ends each transaction.
    + [(number + 1, value_of(number)) for number in COMMITTED]
    + [(number + 2, value_of(number)) for number in LATE]
)
END = RECORDS[-1][0] + 1
WITHIN_THE_ABORTED = ABORTED[3]
FILES_OF_SEGMENT = {"segment", "offset", "timestamp", "producer_snapshot", "leader_epoch"}


class Bucket:
    """What one store URL has on the server."""

    def __init__(self, s3: S3Tests) -> None:
        self.url = s3.new_url()
        self._server = s3.server
        self._prefix = urlsplit(self.url).path.strip("/") + "/remote/"

    def keys(self) -> set[str]:
        return set(self._server.keys(BUCKET, self._prefix))

    def uploads(self) -> list[str]:
        return self._server.uploads(BUCKET, self._prefix)

    def segments(self) -> dict[int, set[str]]:
        """Kinds of files by base offset; every file is of some segment."""
        found: dict[int, set[str]] = {}
        for key in self.keys():
            base, _, kind = key.rpartition("/")[2].split(".")
            found.setdefault(int(base), set()).add(kind)
        return found


def lives(bucket: Bucket, data: Path, *bodies: Callable[[TieredNode], Awaitable[None]]) -> None:
    """Each is given the node of the one before, started again."""

    async def main() -> None:
        for body in bodies:
            async with tiered_node(data, store=bucket.url) as node:
                await body(node)

    asyncio.run(main())


async def batches(node: TieredNode) -> list[tuple[int, bytes]]:
    """All batches, markers too, as they are stored."""
    async with Consumer(node.grpc) as consumer:
        await consumer.assign([("a", 0)])
        await consumer.seek("a", 0, 0)
        found: list[tuple[int, bytes]] = []
        async with asyncio.timeout(60):
            while not found or await consumer.position("a", 0) < END:
                found += [
                    (one.base_offset, bytes(one.data)) for one in await consumer.poll_batches()
                ]
        return found


async def check_read(node: TieredNode, first: int) -> None:
    """All records from the offset on, whatever tier they are in, for both isolations."""
    assert (await node.kafka.offset_of("a", OffsetSpec.earliest())).offset == first
    every = [one for one in RECORDS if one[0] >= first]
    committed = [one for one in every if one[0] not in ABORTED]
    for isolation, wanted in (
        (IsolationLevel.READ_UNCOMMITTED, every),
        (IsolationLevel.READ_COMMITTED, committed),
    ):
        found = await node.kafka.consume("a", len(wanted), first=first, isolation=isolation)
        assert found == wanted


def test_a_tiered_topic_lives_on_a_real_s3_server_and_leaves_nothing_there(
    s3: S3Tests, tmp_path: Path
) -> None:
    bucket = Bucket(s3)
    stored: list[tuple[int, bytes]] = []

    async def fill_and_copy(node: TieredNode) -> None:
        await node.kafka.create("a", TIERED)
        await node.kafka.produce("a", range(ABORTED[0]))
        await node.kafka.transaction("a", ABORTED, name="aborted", is_aborted=True)
        await node.kafka.transaction("a", COMMITTED, name="committed")
        await node.kafka.produce("a", LATE)
        stored.extend(await batches(node))
        assert bucket.keys() == set(), "all of it is local"
        await node.settle()
        segments = bucket.segments()
        assert min(segments) == 0
        (local,) = node.local_segments("a")
        assert local > max(segments) > COMMITTED[-1], "both transactions are in the bucket alone"
        assert await node.special_offsets("a") == (0, local, local - 1)
        for kinds in segments.values():
            assert kinds - {"transaction"} == FILES_OF_SEGMENT
        of_aborted = max(base for base in segments if base <= ABORTED[0])
        assert "transaction" in segments[of_aborted]
        assert await batches(node) == stored
        await check_read(node, 0)

    async def expire(node: TieredNode) -> None:
        assert await batches(node) == stored
        await check_read(node, 0)
        before = bucket.keys()
        # The excess above it has room for two segments.
        await node.kafka.alter("a", retention_bytes=str(3_000_000))
        await node.settle()
        gone = {key for key in before if int(key.rpartition("/")[2].split(".")[0]) < 2 * SEGMENT}
        assert len(gone) == 2 * len(FILES_OF_SEGMENT)
        assert bucket.keys() == before - gone
        await check_read(node, 2 * SEGMENT)

    async def delete_records(node: TieredNode) -> None:
        await check_read(node, 2 * SEGMENT)
        before = bucket.segments()
        first, second, *_ = sorted(before)
        assert first <= ABORTED[0] < WITHIN_THE_ABORTED < ABORTED[-1] < second
        start = await node.kafka.delete_records("a", WITHIN_THE_ABORTED)
        assert start == WITHIN_THE_ABORTED
        await node.settle()
        assert bucket.segments() == before, "the segment has records that stay"
        await check_read(node, WITHIN_THE_ABORTED)
        assert await node.kafka.delete_records("a", second + 2) == second + 2
        await node.settle()
        assert sorted(bucket.segments()) == sorted(before)[1:]
        await check_read(node, second + 2)

    async def delete_topic(node: TieredNode) -> None:
        start = (await node.kafka.offset_of("a", OffsetSpec.earliest())).offset
        assert start > ABORTED[-1]
        await check_read(node, start)
        assert bucket.keys()
        await node.kafka.delete("a")
        await node.deletions_done()
        assert bucket.keys() == set()
        assert bucket.uploads() == []
        assert node.local_segments("a") == []

    async def stay_away(node: TieredNode) -> None:
        await node.settle()
        assert bucket.keys() == set()

    lives(bucket, tmp_path / "data", fill_and_copy, expire, delete_records, delete_topic, stay_away)
