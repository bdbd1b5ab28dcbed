"""A batch that no format can hold is refused before it gets an offset; other appends go on.

The engine and its files are the real ones: what passes must be stored, compacted and read back.
"""

from __future__ import annotations

import asyncio
import dataclasses
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import streamlog
from streamlog.errors import Invalid, MessageTooLarge, OffsetOutOfRange, StreamlogError
from streamlog.model.batch import (
    AppendContext,
    CreateStreamOptions,
    OpenStreamOptions,
    RecordBatch,
)
from tests.engine.harness import World, batch, error_of, payloads, run

I64, U32 = 1 << 63, 1 << 32
GOOD = RecordBatch(1, 1000, (b"good",))

IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "no record": ({"record_count": 0}, "record_count is 0"),
    "negative count": ({"record_count": -1}, "record_count is -1"),
    "count 2^32": ({"record_count": U32}, "record_count is 4294967296; it must be 1 to 4294967295"),
    "count 2^63": ({"record_count": I64}, "record_count"),
    "count no int": ({"record_count": 1.5}, "record_count is a whole number, not 1.5"),
    "time 2^63": ({"base_timestamp_ms": I64}, "base_timestamp_ms is 9223372036854775808"),
    "time -2^63-1": ({"base_timestamp_ms": -I64 - 1}, "base_timestamp_ms"),
    "time no int": ({"base_timestamp_ms": None}, "base_timestamp_ms is a whole number, not None"),
    "crc 2^32": ({"payload_crc32c": U32}, "payload_crc32c is 4294967296"),
    "crc negative": ({"payload_crc32c": -1}, "payload_crc32c is -1; it must be 0 to"),
    "crc of other bytes": ({"payload_crc32c": 12345}, "payload_crc32c is 12345; that of the batch"),
    "attributes": ({"attributes": bytes(65)}, "attributes have 65 bytes"),
    "attributes no bytes": ({"attributes": "text"}, "attributes are bytes, not str"),
    "text": ({"parts": ("text",)}, "a part of a batch is bytes"),
    "wide view": ({"parts": (memoryview(array("I", [1, 2])),)}, "cast"),
    "view with gaps": ({"parts": (memoryview(b"abcd")[::2],)}, "plain run of bytes"),
}
EDGES = (
    RecordBatch(U32 - 1, I64 - 1, (b"most",), bytes(64)),
    RecordBatch(U32 - 1, -I64, (b"again",)),
    RecordBatch(1, -1, (), b"no payload"),
)


def impossible(name: str) -> tuple[RecordBatch, str]:
    changes, reason = IMPOSSIBLE[name]
    return GOOD._replace(**changes), reason


def opened(wal: Any, tmp_path: Path) -> Any:
    where: dict[str, Any] = {"wal_dir": tmp_path / "wal"} if wal == "disk" else {}
    return streamlog.open("memory://", meta="memory://", wal=wal, **where)


@pytest.mark.parametrize("wal", ["disk", "object"])
def test_an_impossible_append_is_refused_alone(wal: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(wal, tmp_path) as log:
            streams = log.streams
            bad, good = await streams.create_and_open_streams([CreateStreamOptions()] * 2)
            for name in IMPOSSIBLE:
                wrong, reason = impossible(name)
                with pytest.raises(Invalid) as raised:
                    await bad.append(wrong)
                assert reason in raised.value.message, name
                room = await bad.reserve(10)
                assert type(await error_of(bad.append(wrong, AppendContext(reservation=room)))) is (
                    Invalid
                ), name
            await refused(bad.append(GOOD, AppendContext(deadline=float("nan"))), "deadline")
            await refused(bad.reserve(-1), "size_bytes is -1")
            assert (bad.next_offset, bad.confirm_offset) == (0, 0)
            assert (await good.append(GOOD)).base_offset == 0
            assert (await bad.append(GOOD)).base_offset == 0

    asyncio.run(asyncio.wait_for(main(), 60))


async def refused(call: Any, reason: str, kind: type[StreamlogError] = Invalid) -> None:
    with pytest.raises(kind) as raised:
        await call
    assert reason in raised.value.message


@pytest.mark.parametrize("wal", ["disk", "object"])
def test_batches_at_the_limits_are_stored_and_read_back(wal: str, tmp_path: Path) -> None:
    """One object gets more records of one stream than a range of the metadata has."""

    async def main() -> None:
        async with opened(wal, tmp_path) as log:
            stream, other = await log.streams.create_and_open_streams([CreateStreamOptions()] * 2)
            ends = [
                (await append).end_offset for append in [stream.append(edge) for edge in EDGES * 2]
            ]
            assert ends[-1] == 2 * (2 * (U32 - 1) + 1)
            await log.engine.drain()
            await log.metadata.checkpoint()
            again = await log.streams.open_stream(stream.stream_id)
            batches = [
                stored
                for start in [0, *ends[:-1]]
                for stored in (await again.fetch(start, start + 1, 1)).batches
            ]
            assert payloads(batches) == [b"".join(edge.parts) for edge in EDGES * 2]
            assert [stored.base_timestamp_ms for stored in batches] == [
                edge.base_timestamp_ms for edge in EDGES * 2
            ]
            await again.trim(ends[2])
            assert again.start_offset == ends[2]
            assert (await other.append(GOOD)).base_offset == 0

    asyncio.run(asyncio.wait_for(main(), 60))


def test_other_batches_that_no_format_holds_are_refused(tmp_path: Path) -> None:
    """First batches, tags, trims, epochs and staged batches."""

    def first(wrong: RecordBatch) -> Callable[[Sequence[int]], list[tuple[int, RecordBatch]]]:
        return lambda ids: [(ids[0], wrong)]

    async def main() -> None:
        async with opened("object", tmp_path) as log:
            streams = log.streams
            stream = await streams.create_and_open_stream()
            await stream.append(GOOD)
            for name in IMPOSSIBLE:
                wrong, reason = impossible(name)
                create = streams.create_and_open_streams([CreateStreamOptions()], first(wrong))
                await refused(create, reason)
                await refused(log.staging.stage("w", "1", {stream.stream_id: [wrong]}), reason)
            large = RecordBatch(1, 0, (bytes(33 << 20),))
            create = streams.create_and_open_streams([CreateStreamOptions()], first(large))
            await refused(create, "batch_bytes_max", MessageTooLarge)
            both = [EDGES[0], EDGES[1]]
            await refused(log.staging.stage("w", "1", {stream.stream_id: both}), "4294967295")
            for tags in ({"a": "\ud800"}, {"\udfff": "a"}, {"a": 1}, {"a": "x" * 1024}):
                options = CreateStreamOptions(tags)  # type: ignore[arg-type]
                await refused(streams.create_and_open_stream(options), "tag")
            await refused(stream.trim(1 << 62), "cannot trim", OffsetOutOfRange)
            await refused(stream.trim(I64), "cannot trim", OffsetOutOfRange)
            await refused(stream.trim(1 << 70), "new_start_offset")
            await refused(stream.trim(0.5), "new_start_offset is a whole number, not 0.5")
            for epoch in (-1, U32, 1.5):
                options = OpenStreamOptions(epoch=epoch)  # type: ignore[arg-type, assignment]
                await refused(streams.open_stream(stream.stream_id, options), "epoch")
            await refused(log.staging.attach("w", I64, []), "epoch")
            await refused(log.staging.attach("w", 1, [], leader_epochs={1: U32}), "leader epoch")
            await refused(log.staging.stage("\ud800", "1", {}), "UTF-8")
            await refused(log.staging.stage("w", "1", {}, expires_ms=I64), "expires_ms")
            assert (await stream.append(GOOD)).base_offset == 1

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("mode", ["disk", "object"])
def test_a_stream_ends_before_offset_2_to_the_63(mode: Any) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine(crash=True) as (client, engine):
            created = await client.create_and_open_stream()
            row = world.metadata.rows[created.stream_id]
            end = I64 - 1 - (U32 + 1)
            world.metadata.rows[created.stream_id] = dataclasses.replace(row, start=end, end=end)
            stream = await client.open_stream(created.stream_id, OpenStreamOptions(epoch=7))
            other = await client.create_and_open_stream()
            assert (await stream.append(RecordBatch(U32 - 1, 0, (b"a",)))).base_offset == end
            await refused(stream.append(RecordBatch(3, 0, (b"b",))), "9223372036854775807")
            assert (await stream.append(RecordBatch(2, 0, (b"c",)))).end_offset == I64 - 1
            await refused(stream.append(batch(b"d")), "append to a new stream")
            await other.append(batch(b"e"))
            await engine.drain()
            assert payloads((await stream.fetch(I64 - 2, I64 - 1, 1)).batches) == [b"c"]

    run(scenario)
