"""Objects were lost by accident, and no checkpoint is left: meta streams tell what is missing."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import cast

import pytest

from streamlog.errors import Corrupt
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.cleaning import CleanableLog
from streamlog.log.shared.state.recovery import StreamIds
from streamlog.repair.findings import Finding, FindingKind, Range, RepairReport, Severity
from streamlog.testing.logs.cleaning_conformance import COMPACT, filled
from tests.repair.cluster import Cluster, append, consume, partition, produce, recovered, run
from tests.repair.disk_cluster import DiskCluster
from tests.repair.remnants import (
    a_log,
    cleaned,
    damage_body,
    lose,
    lose_checkpoints,
    lose_objects_of,
    starts_of,
    together,
)
from tests.support.log_insides import streams_of

RECORDS = 9


def ids_of(log: AbstractLog) -> StreamIds:
    streams = streams_of(log)
    return StreamIds(
        streams.meta.stream.stream_id,
        streams.data.stream_id,
        streams.time.stream_id,
        streams.txn.stream_id,
    )


async def write(log: AbstractLog, first: int, end: int) -> None:
    """Records with these offsets, each in an object of its own, in a sealed segment."""
    for number in range(first, end):
        await produce(log, b"record %d" % number)
    await log.roll()


async def written(cluster: Cluster, *, deleted_to: int = 0) -> StreamIds:
    """Nine records of the topic `t` in three sealed segments, which begin at 0, 1 and 6."""
    async with cluster.node(crash=True) as engine:
        await engine.logs.create_topic("t", 1, {"index.interval.bytes": "10"})
        log = await partition(engine, "t")
        # The first append has meta records behind it, which share no object with later ones.
        await write(log, 0, 1)
        await write(log, 1, 6)
        await write(log, 6, RECORDS)
        await log.delete_oldest_segments(deleted_to, "test")
        assert log.log_start_offset == deleted_to
        ids = ids_of(log)
    await lose_checkpoints(cluster)
    return ids


async def written_beside_a_remnant(cluster: Cluster, gone: Collection[int]) -> StreamIds:
    """As `written`, trimmed to 3, with the record 0 in an object that others need."""
    async with a_log(cluster) as (log, kept):
        await together(kept, produce(log, b"trimmed"))
        await log.roll()
        await write(log, 1, 3)
        await write(log, 3, RECORDS)
        await log.delete_oldest_segments(3, "test")
        ids, starts = ids_of(log), starts_of(log)
    await lose_objects_of(cluster, ids.data, gone)
    await lose(cluster, starts)
    return ids


async def the_loss(cluster: Cluster) -> Finding:
    """The one error of a recovery, which writes nothing unless the loss is accepted."""
    cluster.lose_metadata()
    with pytest.raises(Corrupt, match="--accept-data-loss"):
        await recovered(cluster)
    report = await recovered(cluster, accept_data_loss=True)
    (error,) = errors_of(report)
    assert not (await cluster.fsck()).by_severity[Severity.ERROR]
    return error


def errors_of(report: RepairReport) -> list[Finding]:
    return [one for one in report.findings if one.severity is Severity.ERROR]


@pytest.mark.parametrize("deleted_to", [0, 6])
def test_data_of_which_all_is_lost_is_told(deleted_to: int) -> None:
    """The log ends where its trim did, and is written on."""

    async def scenario() -> None:
        cluster = Cluster()
        ids = await written(cluster, deleted_to=deleted_to)
        await lose_objects_of(cluster, ids.data, range(RECORDS))
        loss = await the_loss(cluster)
        assert loss.lost == (Range(ids.data, deleted_to, RECORDS),)
        assert "partition 0 of topic t: its data stream" in loss.detail
        async with cluster.node() as engine:
            log = await partition(engine, "t")
            assert (log.log_start_offset, log.high_watermark) == (deleted_to, deleted_to)
            assert await produce(log, b"new") == deleted_to
            await log.roll()
        async with cluster.node() as engine:
            assert b"new" in await consume(await partition(engine, "t"))

    run(scenario)


def test_data_is_told_to_be_lost_behind_remnants_of_what_was_trimmed() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        ids = await written_beside_a_remnant(cluster, range(3, RECORDS))
        assert (await the_loss(cluster)).lost == (Range(ids.data, 3, RECORDS),)
        async with cluster.node() as engine:
            assert await produce(await partition(engine, "t"), b"new") == 3

    run(scenario)


@pytest.mark.parametrize("gone", [{3, 4}, {0, 1}])
def test_a_beginning_that_nobody_trimmed_is_told_to_be_lost(gone: Collection[int]) -> None:
    """With records before what is missing, and without."""

    async def scenario() -> None:
        cluster = Cluster()
        ids = await written(cluster)
        await lose_objects_of(cluster, ids.data, gone)
        start = max(gone) + 1
        loss = await the_loss(cluster)
        assert loss.lost == (Range(ids.data, 0, start),)
        async with cluster.node() as engine:
            log = await partition(engine, "t")
            assert (log.log_start_offset, log.high_watermark) == (start, RECORDS)

    run(scenario)


def test_a_beginning_is_told_to_be_lost_where_a_checkpoint_is_damaged() -> None:
    """What was trimmed is no error, even so; it is told, too."""

    async def scenario() -> None:
        cluster = Cluster()
        ids = await written_beside_a_remnant(cluster, {4})
        await cluster.store.put("checkpoint/1", [b"garbage"])
        report = await recovered(cluster, dry_run=True)
        (loss,) = errors_of(report)
        assert loss.lost == (Range(ids.data, 3, 5),)
        (trimmed,) = (
            one for one in report.of_kind(FindingKind.TRIMMED) if one.stream_id == ids.data
        )
        assert (trimmed.severity, trimmed.lost) == (Severity.WARNING, (Range(ids.data, 0, 1),))

    run(scenario)


def test_an_index_of_which_all_is_lost_is_told_and_goes_on_behind_it() -> None:
    """Segments name offsets of it, which no later entry may have."""

    async def scenario() -> None:
        cluster = Cluster()
        ids = await written(cluster)
        await lose_objects_of(cluster, ids.time, range(RECORDS))
        loss = await the_loss(cluster)
        (lost,) = loss.lost
        assert (lost.stream_id, lost.start) == (ids.time, 0)
        assert "given out again" not in loss.detail
        async with cluster.node() as engine:
            log = await partition(engine, "t")
            assert log.high_watermark == RECORDS
            assert streams_of(log).time.start_offset == lost.end > 0
            assert await produce(log, b"new") == RECORDS

    run(scenario)


def test_entries_of_a_meta_stream_behind_a_gap_are_told_to_be_lost() -> None:
    """An entry is written when those before it are stored. What is left of them stands alone."""

    async def scenario() -> None:
        cluster = Cluster()
        ids = await written(cluster, deleted_to=6)
        await lose_objects_of(cluster, ids.meta, {2})
        cluster.lose_metadata()
        with pytest.raises(Corrupt, match="--accept-data-loss"):
            await recovered(cluster)
        report = await recovered(cluster, dry_run=True)
        (tail,) = report.of_kind(FindingKind.UNACKNOWLEDGED_TAIL)
        assert (tail.severity, tail.stream_id) == (Severity.ERROR, ids.meta)
        assert "an object is lost" in tail.detail

    run(scenario)


def test_a_partition_whose_meta_stream_is_unreadable_keeps_its_data() -> None:
    """A node takes streams for orphans whose tags name a partition that no topic has."""

    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("t", 1)
            log = await partition(engine, "t")
            await produce(log, b"record")
            await produce(log, b"another")
            ids, content = ids_of(log), await consume(log)
            await engine.metadata.checkpoint()
        key, whole = await damage_body(cluster, lambda runs: runs.get(ids.meta, (1, 1))[0] == 0)
        cluster.lose_metadata()
        report = await recovered(cluster, accept_data_loss=True)
        (nameless,) = (one for one in errors_of(report) if one.lost)
        assert nameless.lost == (Range(ids.data, 0, 2),)
        assert "partition 0 of topic t is left without a name" in nameless.detail
        async with cluster.node() as engine:
            assert await engine.logs.delete_orphans() == 0
            described = await engine.streams.describe_stream(ids.data)
            assert (described.start_offset, described.end_offset) == (0, 2)
        await cluster.store.put(key, [whole])
        cluster.lose_metadata()
        await recovered(cluster)
        async with cluster.node() as engine:
            assert await engine.logs.delete_orphans() == 0
            assert await consume(await partition(engine, "t")) == content

    run(scenario)


def test_a_partition_whose_first_meta_record_is_unreadable_is_told() -> None:
    """Without tags nothing else tells that this is a meta stream."""

    async def scenario() -> None:
        cluster = Cluster()
        ids = await written(cluster)
        await damage_body(cluster, lambda runs: runs.get(ids.meta, (1, 1))[0] == 0)
        cluster.lose_metadata()
        with pytest.raises(Corrupt, match=f"the first record of stream {ids.meta} cannot be read"):
            await recovered(cluster)

    run(scenario)


def test_a_meta_stream_with_a_gap_behind_a_checkpoint_is_told_to_be_cut() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("t", 1)
            log = await partition(engine, "t")
            await engine.metadata.checkpoint()
            for number in range(3):
                await produce(log, b"record %d" % number)
                await log.roll()
            meta = ids_of(log).meta
        await lose_objects_of(cluster, meta, {2})
        assert (await the_loss(cluster)).stream_id == meta

    run(scenario)


@pytest.mark.parametrize("gone", ["data", "meta"])
def test_a_life_of_a_topic_that_is_over_has_nothing_to_lose(gone: str) -> None:
    """A collector deleted most of its objects, before the checkpoint that told why was lost."""

    async def scenario() -> None:
        cluster = Cluster()
        old = await written(cluster)
        async with cluster.node(crash=True) as engine:
            await engine.logs.delete_topic("t")
            await engine.logs.create_topic("t", 1)
            log = await partition(engine, "t")
            await produce(log, b"new")
            content = await consume(log)
        await lose_checkpoints(cluster)
        if gone == "data":
            await lose_objects_of(cluster, old.data, range(1, RECORDS))
        else:
            await lose_objects_of(cluster, old.meta, {2})
        cluster.lose_metadata()
        report = await recovered(cluster)
        assert not errors_of(report)
        async with cluster.node() as engine:
            assert await consume(await partition(engine, "t")) == content

    run(scenario)


def test_a_write_ahead_log_replays_data_of_which_all_objects_are_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = DiskCluster(tmp_path)
        async with cluster.disk_node() as engine:
            await engine.logs.create_topic("t", 1)
            log = await partition(engine, "t")
            await engine.drain()
            await produce(log, b"first", b"second")
            content, data = await consume(log), ids_of(log).data
            shutil.copytree(tmp_path / "wal1", tmp_path / "disk")
            await engine.drain()
            await log.roll()
            await engine.drain()
        await lose_checkpoints(cluster)
        await lose_objects_of(cluster, data, {0})
        cluster.lose_metadata()
        (error,) = errors_of(await recovered(cluster, accept_data_loss=True))
        assert error.lost == (Range(data, 0, 2),)
        # The log forgets what it has released; the copy has it still.
        shutil.rmtree(tmp_path / "wal1")
        (tmp_path / "disk").rename(tmp_path / "wal1")
        async with cluster.disk_node() as engine:
            assert await consume(await partition(engine, "t")) == content

    run(scenario)


def test_streams_of_cleaned_segments_that_are_all_deleted_are_no_loss() -> None:
    """Remnants of them are left in several parts, and no segment tells which one is live."""

    async def scenario() -> None:
        cluster = Cluster()
        async with a_log(cluster, COMPACT) as (log, kept):
            compacted = cast(CleanableLog, log)
            for number in range(3):
                await filled(compacted, 20, 10 + number)
                cleaning = asyncio.ensure_future(cleaned(compacted))
                while number % 2 == 0 and not cleaning.done():
                    await asyncio.gather(*(append(stream, b"kept") for stream in kept))
                await cleaning
            await filled(compacted, 10, 5)
            await log.roll()
            await log.delete_oldest_segments(log.log_end_offset, "test")
            record = streams_of(log).meta.state.cleaned
            assert record is not None
            starts = starts_of(log)
            end = log.log_end_offset
        await lose(cluster, starts)
        report = await recovered(cluster)
        assert not errors_of(report)
        assert {*record.ids} & {one.stream_id for one in report.of_kind(FindingKind.TRIMMED)}
        async with cluster.node() as engine:
            log = await partition(engine, "t")
            assert (log.log_start_offset, log.high_watermark) == (end, end)

    run(scenario)
