"""An hour without the remote storage, in virtual time: what is local goes on, and all is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest

from streamlog.codec.batch import scan
from streamlog.codec.records import iterate
from streamlog.errors import Corrupt, StoreUnavailable, StreamlogError, UnsupportedVersion
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.log_factory import TopicIdentity
from streamlog.model.partition import TopicPartition
from streamlog.runtime.rand import SeededRandom
from streamlog.server.kafka.sessions.answer import fetch_code
from streamlog.testing.logs.log_conformance import append, encoded, refused
from streamlog.testing.simulation.world.loop import run as run_virtually
from streamlog.testing.torn_folder import TornTree
from tests.tiered.harness import (
    TieredLogUnderTest,
    VirtualClock,
    filled_and_moved,
    tiered_log,
    values,
)

MINUTES = 60
LOCAL_BYTES = 2_000
FETCH_VERSION = 13


async def produced(t: TieredLogUnderTest, count: int) -> dict[int, bytes]:
    """Records of 100 bytes, about five a segment."""
    made: dict[int, bytes] = {}
    for _ in range(count):
        value = b"%06d" % t.log.log_end_offset * 16
        info = await append(t.log, encoded([value], at_ms=t.clock.now_ms()))
        made[info.base_offset] = value
    return made


async def minute(t: TieredLogUnderTest) -> None:
    """A minute of the node's own work."""
    await asyncio.sleep(60)
    await t.retain()


async def newest_value(t: TieredLogUnderTest) -> bytes:
    fetched = await t.log.fetch(t.log.log_end_offset - 1, 1000)
    (batch,) = scan(b"".join(fetched.parts))
    ((_, _, _, value, _),) = iterate(batch.view)
    return bytes(value or b"")


async def remote_failure(t: TieredLogUnderTest) -> StoreUnavailable | None:
    """What a reader of the remote part is told; None: nothing, and it is told to come again."""
    try:
        fetched = await t.log.fetch(0, 1000)
    except StoreUnavailable as error:
        return error
    assert (fetched.size_bytes, fetched.is_paced) == (0, True)
    return None


async def made_topic(t: TieredLogUnderTest, number: int) -> int:
    """Creates a tiered topic and writes to it; the records that it has."""
    topic = TopicIdentity(f"new{number}", UUID(int=number + 1), f"attempt{number}")
    (handle,) = await t.factory.create(topic, [0], t.topic_config)
    partition = TopicPartition(topic.name, 0)

    def failed(_log: AbstractLog, error: Exception) -> None:
        raise AssertionError(error)

    log = await t.factory.open(partition, handle, t.topic_config, failed)
    await append(log, encoded([b"new"]))
    end = log.high_watermark
    await log.close()
    return end


def not_copied_bytes(t: TieredLogUnderTest) -> int:
    closed = [one for one in t.log.segments if not one.is_active]
    return sum(one.size_bytes for one in closed if one.base_offset >= t.log.copied_end_offset)


def lag_bytes(t: TieredLogUnderTest) -> float:
    value = t.registry.get_sample_value("streamlog_remote_copy_lag_bytes", {"topic": "t"})
    assert value is not None
    return value


def refuses(_: str) -> None:
    raise ConnectionError("the store is away")


async def hangs(_: str) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("fault", "told_after"), [(refuses, 0), (hangs, 11)], ids=["refuses", "hangs"]
)
def test_an_hour_without_the_store_holds_up_nothing_that_is_local(
    fault: Callable[[str], object], told_after: int
) -> None:
    """`told_after`: minutes until the first call is given up."""

    async def outage(t: TieredLogUnderTest, wanted: dict[int, bytes]) -> None:
        calls = 0

        def strike(call: str) -> object:
            nonlocal calls
            calls += 1
            return fault(call)

        t.storage.strike = strike
        away_since = t.clock.monotonic()
        copied = t.log.copied_end_offset
        known = len(await t.metadata.list_remote_log_segments(t.partition))
        for passed in range(MINUTES):
            wanted |= await produced(t, 3)
            assert await newest_value(t) == wanted[max(wanted)]
            if passed % 10 == 0:
                assert await made_topic(t, passed) == 1
            began = t.clock.monotonic()
            failure = await remote_failure(t)
            if failure is None:
                assert passed <= told_after
            else:
                assert "the remote storage has failed for" in str(failure)
                assert fetch_code(failure, FETCH_VERSION) is KafkaError.KAFKA_STORAGE_ERROR
            assert t.clock.monotonic() - began <= 1, "a reader is told in its time"
            await minute(t)
            # Local retention waits for the copies: no record is in no tier.
            assert t.log.copied_end_offset == copied
            assert t.log.local_log_start_offset <= copied
            listed = await t.metadata.list_remote_log_segments(t.partition)
            assert len(listed) <= known + 1, "tries leave nothing in the metadata"
        assert calls < 15 * MINUTES, "tries are few"
        assert not_copied_bytes(t) > 10 * LOCAL_BYTES, "the disk grows"
        assert lag_bytes(t) == not_copied_bytes(t)
        assert await values(t.log, copied) == {
            offset: value for offset, value in wanted.items() if offset >= copied
        }
        (alarm,) = t.manager.alarms()
        since_s = float(alarm.split(" for ")[1].split(" s;")[0])
        away_s = t.clock.monotonic() - away_since
        assert away_s >= MINUTES * 60
        assert away_s - (told_after + 2) * 60 < since_s <= away_s
        assert "local disks grow" in alarm

    async def body() -> None:
        configs = {"local.retention.bytes": str(LOCAL_BYTES)}
        tree = TornTree(SeededRandom(3))
        async with tiered_log(tree, configs, None, None, VirtualClock()) as t:
            wanted = await produced(t, 30)
            await minute(t)
            await minute(t)
            assert 0 < t.log.local_log_start_offset < t.log.copied_end_offset
            assert t.manager.alarms() == []
            await outage(t, wanted)
            t.storage.strike = lambda _: None
            for _ in range(told_after + 2):
                await minute(t)
            assert t.manager.alarms() == []
            assert lag_bytes(t) == 0
            assert sum(one.size_bytes for one in t.log.segments) < LOCAL_BYTES + 1_000
            assert await values(t.log) == wanted

    run_virtually(body)


@pytest.mark.parametrize("call", ["index", "fetch"])
@pytest.mark.parametrize(
    "error",
    [
        UnsupportedVersion("written by a newer version of streamlog"),
        Corrupt("the file has another CRC", object_key="segment", start=0, end=1),
    ],
    ids=["newer", "damaged"],
)
def test_what_is_wrong_with_one_segment_is_no_outage_of_the_store(
    call: str, error: StreamlogError
) -> None:
    async def body() -> None:
        async with tiered_log(TornTree(SeededRandom(3)), clock=VirtualClock()) as t:
            await filled_and_moved(t, 60)
            calls = 0

            def wrong(made: str) -> None:
                nonlocal calls
                if made == call:
                    calls += 1
                    raise error

            t.storage.strike = wrong
            await refused(type(error), t.log.fetch(3, 1))
            assert calls <= 2, "once more at most, with an index that is fetched anew"
            await refused(type(error), t.log.fetch(3, 1))
            assert t.manager.alarms() == []
            t.storage.strike = lambda _: None
            assert (await t.log.fetch(3, 1)).size_bytes

    run_virtually(body)
