"""What is particular to SharedLog: bounded recovery, records behind data, fencing, lost data."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamlog.codec.batch import HEADER_BYTES, pack_header, parse_header, resealed
from streamlog.errors import (
    Closed,
    Corrupt,
    Fenced,
    InvalidRecord,
    OutcomeUnknown,
    OutOfOrderSequence,
    Overloaded,
    StreamFenced,
    StreamlogError,
)
from streamlog.log.api.abstract_log import MAX_TIMESTAMP, Isolation, ProduceContext
from streamlog.log.api.log_factory import TopicIdentity
from streamlog.log.api.topic_config import TopicConfig, parse
from streamlog.log.shared.meta.log import MetaLog
from streamlog.log.shared.shared_logs import SharedLogFactory
from streamlog.model.batch import OpenStreamOptions
from streamlog.runtime.offload import Lane
from streamlog.testing.logs.log_conformance import append, encoded, read, refused
from streamlog.testing.memory_streams import MemoryMedium
from tests.log.harness import shared_log
from tests.log.memory_log import row, run, spied, turns
from tests.support.log_insides import streams_of
from tests.support.replacing import replace_method

UNCOMMITTED = Isolation.READ_UNCOMMITTED


def test_opening_after_a_crash_reads_no_data_and_a_bounded_number_of_attributes():
    async def test(t):
        for i in range(95):
            await append(t.log, encoded([b"x"] * 2, producer=(1, 0, 2 * i)))
        await t.client.kill()
        await t.log.kill()
        t.client = t.medium.client(t.clock)
        calls = spied(t, "data")
        await t.open()
        assert calls["fetched"] == 0
        assert 0 < calls["attributes"] <= 2 * 20
        assert (await append(t.log, encoded([b"x"] * 2, producer=(1, 0, 188)))).is_duplicate

    run(test, checkpoint_interval_batches=20)


def test_the_meta_stream_stays_short():
    async def test(t):
        sizes = []
        for i in range(400):
            await append(t.log, encoded([b"x"], producer=(i % 5, 0, i // 5)))
            await t.log.roll()
            await t.log.delete_oldest_segments(max(i - 5, 0), "test")
            sizes.append(sum(len(b.parts[0]) for b in row(t, "meta").batches))
        assert max(sizes) < 40_000
        assert len(row(t, "meta").batches) < 100
        await t.crashed()
        assert len(t.log.segments) == len([s for s in t.log.segments if s.base_offset >= 394])
        for i in range(5):
            again = await append(t.log, encoded([b"x"], producer=(i, 0, 79)))
            assert again.is_duplicate

    run(test, meta_compaction_bytes=10_000)


def test_a_large_snapshot_is_written_again_only_after_as_many_bytes():
    async def test(t):
        for i in range(100):
            await append(t.log, encoded([b"x"], producer=(i, 0, 0)))
        await t.log.roll()
        before = row(t, "meta").end
        for i in range(100):
            await t.log.configure(parse({"retention.ms": str(1000 + i)}))
            await t.log.delete_records(0)
            await turns()
        assert row(t, "meta").end - before <= 100 + 4

    run(test, meta_compaction_bytes=1000)


def test_meta_records_wait_for_the_data_that_they_describe():
    async def test(t):
        await append(t.log, encoded([b"a"]))
        await turns()
        entries = len(row(t, "meta").batches)
        t.client.hold(t.log.stream_ids.data)
        wait = asyncio.ensure_future(await t.log.append(encoded([b"b"])))
        roll = asyncio.ensure_future(t.log.roll())
        await turns()
        assert len(t.log.segments) == 2
        assert len(row(t, "meta").batches) == entries
        assert not roll.done()
        await t.crashed()
        for task in (wait, roll):
            with pytest.raises(StreamlogError):
                await task
        assert t.log.log_end_offset == 1
        assert len(t.log.segments) == 1

    run(test)


def test_deletions_are_in_the_meta_stream_before_data_is_trimmed():
    async def test(t):
        for i in range(6):
            await append(t.log, encoded([b"%d" % i]))
            await t.log.roll()
        await t.log.delete_records(2)
        await t.log.delete_oldest_segments(4, "test")
        state = (await MetaLog.replay(streams_of(t.log).meta.stream, t.clock, 1)).state
        assert state.log_start_offset == 4
        assert [segment.base_offset for segment in state.sealed] == [4, 5]
        assert row(t, "data").start == 4

    run(test)


def test_a_deletion_up_to_what_is_no_offset_is_refused_and_the_log_goes_on():
    async def test(t):
        await append(t.log, encoded([b"a"]))
        for offset in (0.5, "1", None):
            with pytest.raises(TypeError):
                await t.log.delete_records(offset)
            with pytest.raises(TypeError):
                await t.log.delete_oldest_segments(offset, "test")
        assert t.failures == []
        await append(t.log, encoded([b"b"]))

    run(test)


def test_a_deletion_whose_caller_gives_up_is_carried_out_once():
    async def test(t):
        for i in range(6):
            await append(t.log, encoded([b"%d" % i]))
            await t.log.roll()
        t.client.hold(t.log.stream_ids.meta)
        for bound in (2, 3):
            deletion = asyncio.ensure_future(t.log.delete_oldest_segments(bound, "test"))
            await turns()
            deletion.cancel()
            with pytest.raises(asyncio.CancelledError):
                await deletion
        t.client.release()
        assert await t.log.delete_oldest_segments(4, "test") == 1
        assert t.log.log_start_offset == 4
        await t.crashed()
        assert t.log.log_start_offset == 4
        deletion = asyncio.ensure_future(t.log.delete_records(5))
        t.client.hold(t.log.stream_ids.meta)
        await turns()
        await t.log.kill()
        with pytest.raises(Closed):
            await deletion
        t.client.release()

    run(test)


def test_a_crash_between_data_and_meta_records_loses_nothing():
    async def test(t):
        for i in range(10):
            await append(t.log, encoded([b"x" * 50], at_ms=1000 + i, producer=(1, 0, i)))
        t.client.hold(t.log.stream_ids.meta)
        roll = asyncio.ensure_future(t.log.roll())
        await append(t.log, encoded([b"y"], at_ms=2000, producer=(1, 0, 10)))
        await turns()
        assert len(t.log.segments) == 2
        assert row(t, "time").end > 0
        for _ in range(2):
            await t.crashed()
        with pytest.raises(StreamlogError):
            await roll
        assert [(s.base_offset, s.end_offset) for s in t.log.segments] == [(0, 11)]
        for i in range(10):
            record = await t.log.offset_for_timestamp(1000 + i, UNCOMMITTED)
            assert (record.offset, record.timestamp_ms) == (i, 1000 + i)
        assert (await t.log.offset_for_timestamp(MAX_TIMESTAMP, UNCOMMITTED)).offset == 10
        assert (await append(t.log, encoded([b"y"], at_ms=2000, producer=(1, 0, 10)))).is_duplicate

    run(test, {"index.interval.bytes": "100"})


@pytest.mark.parametrize("durable_pieces", [1, 2, 5])
def test_a_crash_between_the_pieces_of_a_checkpoint_loses_nothing(durable_pieces):
    """What a checkpoint of many producers has written is void without its end."""
    count = 150

    async def test(t):
        for i in range(count):
            await append(t.log, encoded([b"x"], producer=(i, 0, 0)))
        for _ in range(2):
            meta = streams_of(t.log).meta.stream
            real = meta.append
            written: list[Any] = []

            async def cut_short(batch, real=real, meta=meta, written=written):
                if len(written) == durable_pieces:
                    t.client.hold(meta.stream_id)
                written.append(batch)
                return await real(batch)

            replace_method(meta, "append", cut_short)
            roll = asyncio.ensure_future(t.log.roll())
            await turns(100)
            assert len(written) == durable_pieces + 1
            await t.crashed()
            with pytest.raises(StreamlogError):
                await roll
            assert len(t.log.segments) == 1
            for i in range(count):
                assert (await append(t.log, encoded([b"x"], producer=(i, 0, 0)))).is_duplicate
        await t.log.roll()
        await t.crashed()
        assert len(t.log.segments) == 2
        for i in range(count):
            again = await append(t.log, encoded([b"x"], producer=(i, 0, 0)))
            assert (again.is_duplicate, again.base_offset) == (True, i)

    run(test, message_bytes_max=1024)


def test_segments_that_roll_faster_than_the_meta_stream_takes_appends_do_not_queue_up():
    """Each roll's records waited for those of the roll before: a stop took minutes."""
    count = 120

    async def test(t):
        meta, time = t.log.stream_ids.meta, t.log.stream_ids.time
        for slow in (time, meta):
            t.client.hold(slow)
            before = row(t, "meta").end, len(row(t, "time").batches)
            for i in range(count):
                end = t.log.log_end_offset
                producer = (i % 40, 0, end // 40)
                await append(t.log, encoded([b"x" * 100], at_ms=1000 + end, producer=producer))
            assert len(t.log.segments) == end + 1
            t.client.release()
            await t.log.roll()
            # Pieces of 4 KiB; a checkpoint of each roll alone would be 90 of them.
            assert row(t, "meta").end - before[0] < 30
            assert len(row(t, "time").batches) - before[1] < 8
        await t.crashed()
        assert len(t.log.segments) == 2 * count + 1
        for offset in range(2 * count):
            record = await t.log.offset_for_timestamp(1000 + offset, UNCOMMITTED)
            assert (record.offset, record.timestamp_ms) == (offset, 1000 + offset)
        for i in range(40):
            last = 2 * count // 40 - 1
            again = await append(t.log, encoded([b"x" * 100], producer=(i, 0, last)))
            assert (again.is_duplicate, again.base_offset) == (True, 40 * last + i)
        await t.log.delete_oldest_segments(count, "test")
        for offset in range(count, 2 * count):
            assert (await t.log.offset_for_timestamp(1000 + offset, UNCOMMITTED)).offset == offset

    settings = {"internal.segment.bytes": "200", "index.interval.bytes": "0"}
    run(test, settings, message_bytes_max=4096)


def test_the_time_stream_is_indexed_through_reopens():
    async def test(t):
        for i in range(200):
            await append(t.log, encoded([b"x" * 50], at_ms=1000 + i))
            if i % 40 == 39:
                await t.reopened()
        await t.log.roll()
        assert 60 <= row(t, "time").end <= 120
        for segment in t.log.segments:
            assert segment.time_index.unstored == []
        assert t.log.segments[-2].time.end_offset == row(t, "time").end

    run(test, {"index.interval.bytes": "150", "internal.segment.bytes": "6000"})


def test_lost_data_is_recovered_from_and_the_log_goes_on():
    """As after a node's disk is given up for lost: the data stream ends before its meta records."""

    async def test(t):
        for i in range(30):
            await append(t.log, encoded([b"%d" % i], at_ms=1000 + i, producer=(1, 0, i)))
        await t.reopened()
        await t.log.close()
        data = row(t, "data")
        del data.batches[12:]
        data.end = 12
        await t.open()
        assert (t.log.log_end_offset, t.log.high_watermark) == (12, 12)
        assert [r[3] for r in await read(t.log)] == [b"%d" % i for i in range(12)]
        assert (await append(t.log, encoded([b"11"], at_ms=1011, producer=(1, 0, 11)))).is_duplicate
        for i in range(12, 40):
            await append(t.log, encoded([b"n%d" % i], at_ms=1000 + i, producer=(1, 0, i)))
        await t.crashed()
        for i in range(40):
            record = await t.log.offset_for_timestamp(1000 + i, UNCOMMITTED)
            assert record.offset == i
        for left, right in zip(t.log.segments, t.log.segments[1:], strict=False):
            assert left.end_offset == right.base_offset

    run(test, {"internal.segment.bytes": "500", "index.interval.bytes": "100"})


def test_a_fenced_log_fails():
    async def test(t):
        await append(t.log, encoded([b"a"]))
        old = t.log
        polls = [asyncio.ensure_future(old.wait_for(1, UNCOMMITTED)) for _ in range(3)]
        await asyncio.sleep(0)
        t.client.hold()
        wait = asyncio.ensure_future(await old.append(encoded([b"b"])))
        await t.client.open_stream(old.stream_ids.data, OpenStreamOptions())
        t.client.release()
        with pytest.raises(Fenced):
            await wait
        await asyncio.gather(*polls)
        assert [type(error) for error in t.failures] == [StreamFenced]
        await refused(StreamFenced, old.append(encoded([b"c"])))
        await refused(StreamFenced, old.fetch(0, 10))
        await old.close()
        await t.open()
        assert (await append(t.log, encoded([b"b"]))).base_offset == 1

    run(test)


@pytest.mark.parametrize("use", ["append", "fetch", "look up"])
def test_a_log_whose_data_stream_is_taken_over_while_it_is_idle_fails_at_its_next_use(use):
    async def test(t):
        await append(t.log, encoded([b"a"]))
        await t.client.open_stream(t.log.stream_ids.data, OpenStreamOptions())
        calls = {
            "append": lambda: t.log.append(encoded([b"b"])),
            "fetch": lambda: t.log.fetch(0, 100),
            "look up": lambda: t.log.offset_for_timestamp(0, UNCOMMITTED),
        }
        if use != "append":
            # This medium serves reads of an old epoch, the engine refuses them.
            async def fenced(*_):
                raise StreamFenced("opened elsewhere", stream_id=t.log.stream_ids.data, epoch=9)

            replace_method(streams_of(t.log).data, "fetch", fenced)
        await refused(StreamFenced, calls[use]())
        assert [type(error) for error in t.failures] == [StreamFenced]
        await t.log.close()
        await t.open()
        assert (await append(t.log, encoded([b"b"]))).base_offset == 1

    run(test)


@pytest.mark.parametrize("has_append_under_way", [False, True])
def test_a_commit_gets_an_error_of_a_log_that_ended_meanwhile(has_append_under_way):
    async def test(t):
        if has_append_under_way:
            t.client.hold(t.log.stream_ids.data)
            await t.log.append(encoded([b"a"]))
        async with t.log.attaching() as attaching:
            await t.log.kill()
            await refused(Closed, asyncio.wait_for(attaching.ready(), 10))
        t.client.release()

    run(test)


def test_an_end_that_is_cancelled_answers_the_appends_under_way():
    async def test(t):
        t.client.hold(t.log.stream_ids.data)
        under_way = await t.log.append(encoded([b"a"]))
        await turns()
        ending = asyncio.ensure_future(t.log.kill())
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        await refused(OutcomeUnknown, asyncio.wait_for(under_way, 10))
        t.client.release()

    run(test)


def test_a_log_whose_meta_stream_is_taken_over_fails():
    async def test(t):
        await append(t.log, encoded([b"a"]))
        await t.client.open_stream(t.log.stream_ids.meta, OpenStreamOptions())
        await refused(StreamFenced, t.log.roll())
        assert [type(error) for error in t.failures] == [StreamFenced]
        await t.log.close()
        await t.open()

    run(test)


def test_appends_without_room_are_sequenced_in_the_order_of_calls():
    async def test(t):
        t.hold()
        size = len(encoded([b"x" * 300]))
        sent = [
            asyncio.ensure_future(t.log.append(encoded([b"x" * 300], producer=(1, 0, i))))
            for i in range(12)
        ]
        for _ in range(5):
            await asyncio.sleep(0)
        assert t.log.log_end_offset == 1000 // size
        late = t.log.append(encoded([b"late"]), ProduceContext(deadline=t.clock.monotonic() + 0.01))
        await refused(Overloaded, late)
        t.release()
        infos = await asyncio.gather(*await asyncio.gather(*sent))
        assert [info.base_offset for info in infos] == list(range(12))

    run(test, budget_bytes=1000)


def test_a_cancelled_call_that_waits_for_room_stores_nothing():
    async def test(t):
        t.hold()
        first = await t.log.append(encoded([b"x" * 900]))
        calls = [asyncio.ensure_future(t.log.append(encoded([b"y" * 900]))) for _ in range(3)]
        await asyncio.sleep(0)
        for call in calls[:2]:
            call.cancel()
        await asyncio.gather(*calls[:2], return_exceptions=True)
        t.release()
        await first
        assert (await (await calls[2])).base_offset == 1
        assert t.log.log_end_offset == 2
        assert t.client.budget.used_bytes == 0

    run(test, budget_bytes=1000)


def test_thousands_of_long_polls_leave_nothing_behind():
    async def test(t):
        polls = [asyncio.ensure_future(t.log.wait_for(0, UNCOMMITTED)) for _ in range(2000)]
        await asyncio.sleep(0)
        assert len(t.log._visibility.waiters) == 2000
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        assert len(t.log._visibility.waiters) == 0

    run(test)


def test_large_batches_are_decoded_off_the_loop():
    class Counting:
        calls = 0

        async def run(self, lane, fn, *args):
            assert lane is Lane.CPU
            self.calls += 1
            return fn(*args)

        async def close(self):
            pass

    async def test(t):
        stamps = list(range(1000, 3000))
        await append(t.log, encoded([b"x" * 20] * 2000, stamps=stamps))
        record = await t.log.offset_for_timestamp(2500, UNCOMMITTED)
        assert record.offset == 1500
        assert offload.calls == 1

    offload = Counting()
    medium = MemoryMedium()

    async def client_of(clock):
        return medium.client(clock)

    async def body():
        async with shared_log(client_of) as t:
            await t.log.close()
            environment = t.environment
            t.environment = lambda: type(environment())(  # type: ignore[method-assign]
                t.clock,
                t.random,
                t.config,
                environment().metrics,
                offload,  # type: ignore[arg-type]
            )
            await t.open()
            await test(t)

    asyncio.run(body())


@pytest.mark.parametrize("codec", [0, 4])
def test_records_that_cannot_be_there_use_up_no_offsets(codec):
    async def test(t):
        batch = bytearray(encoded([b"x"] * 3))
        header = parse_header(batch)._replace(
            attributes=codec, record_count=(1 << 31) - 1, last_offset_delta=(1 << 31) - 2
        )
        batch[:HEADER_BYTES] = pack_header(header)
        await refused(InvalidRecord, t.log.append(bytes(resealed(batch))))
        assert t.log.log_end_offset == 0
        await append(t.log, encoded([b""] * 1000))
        assert t.log.log_end_offset == 1000

    run(test)


def test_producers_expire():
    async def test(t):
        await append(t.log, encoded([b"a"], producer=(1, 5, 0)))
        t.clock.advance(999)
        assert (await append(t.log, encoded([b"a"], producer=(1, 5, 0)))).is_duplicate
        t.clock.advance(1)
        assert not (await append(t.log, encoded([b"a"], producer=(1, 0, 7)))).is_duplicate
        t.clock.advance(5000)
        await append(t.log, encoded([b"b"], producer=(2, 0, 0)))
        await t.reopened()
        checkpoint = streams_of(t.log).meta.state.checkpoint
        assert checkpoint is not None
        assert [entry.producer_id for entry in checkpoint.producers] == [2]

    run(test, producer_id_expiration_ms=1000)


def test_an_expired_producer_that_begins_anew_has_no_duplicates_among_its_old_batches():
    async def test(t):
        for i in range(4):
            await append(t.log, encoded([b"old"], producer=(1, 0, i)))
        t.clock.advance(1000)
        await append(t.log, encoded([b"new"], producer=(1, 0, 0)))
        with pytest.raises(OutOfOrderSequence):
            await append(t.log, encoded([b"new"], producer=(1, 0, 3)))
        for i in range(1, 3):
            info = await append(t.log, encoded([b"new"], producer=(1, 0, i)))
            assert (info.is_duplicate, info.base_offset) == (False, 4 + i)
        assert (await append(t.log, encoded([b"new"], producer=(1, 0, 1)))).base_offset == 5
        await t.crashed()
        assert (await append(t.log, encoded([b"new"], producer=(1, 0, 1)))).base_offset == 5
        assert t.log.log_end_offset == 7

    run(test, producer_id_expiration_ms=1000)


def test_a_stream_without_meta_records_is_corrupt():
    async def test(t):
        await t.log.close()
        meta = t.medium.rows[t.handle]
        whole = meta.batches[0].parts[0]
        meta.batches[0] = type(meta.batches[0])(0, 1, 0, (whole[:-1] + b"\x55",))
        await refused(Corrupt, t.open())
        meta.batches[0] = type(meta.batches[0])(0, 1, 0, (whole,))
        await t.open()

    run(test)


@asynccontextmanager
async def factory_of(t):
    yield SharedLogFactory(t.client, t.environment())


def test_orphan_deletion_looks_at_registrations_again_after_fencing():
    """A creation that is registered between the first look and the fence is spared."""

    async def test(t):
        async with factory_of(t) as factory:
            topic = TopicIdentity("u", t.random.uuid(), "try")
            (handle,) = await factory.create(topic, [0], TopicConfig())
            answers = [{t.handle}, {t.handle, handle}]

            async def registered():
                return answers.pop(0)

            assert await factory.delete_orphans(set, registered) == 0
            assert answers == []
            assert len(t.medium.rows) == 8
            answers = [{t.handle}]
            assert await factory.delete_orphans(lambda: {"try"}, registered) == 0
            answers = [{t.handle}, {t.handle}]
            assert await factory.delete_orphans(set, registered) == 1
            assert sorted(t.medium.rows) == [1, 2, 3, 4]

    run(test)


def test_settings_are_described_in_the_meta_stream():
    async def test(t):
        await t.log.configure(parse({"retention.ms": "5"}))
        await t.log.roll()
        await append(t.log, encoded([b"a"]))
        await t.reopened()
        t.configs = {"retention.ms": "5"}
        await t.crashed()
        assert streams_of(t.log).meta.description.configs == {"retention.ms": "5"}

    run(test)
