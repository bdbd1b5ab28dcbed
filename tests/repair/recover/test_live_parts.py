"""Without any checkpoint, remnants of what was trimmed lie beside the live parts of streams.

An object that one stream still needs keeps what others have trimmed. What tells a remnant from the
live part is the partition's meta stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.shared.meta.codec import (
    Checkpoint,
    Description,
    LogStart,
    SegmentOpened,
    SegmentSealed,
)
from streamlog.log.shared.meta.state import MetaState
from streamlog.model.batch import StreamSlice
from streamlog.repair.findings import FindingKind, RepairReport, Severity
from streamlog.repair.recover.partition_streams import reached, trimmed_to
from streamlog.repair.recover.resolve import Piece, Row, resolve
from tests.repair.cluster import Cluster, consume, partition, produce, recovered, run
from tests.repair.remnants import a_log, lose, starts_of, together
from tests.support.log_insides import streams_of

REMNANTS = 12


async def check(cluster: Cluster, log: AbstractLog, content: bytes) -> RepairReport:
    """The log comes back as it was, and appends go on where they ended."""
    report = await recovered(cluster, accept_data_loss=True)
    assert not report.by_severity[Severity.ERROR], report.findings
    assert report.counts["partitions"] == 1
    await cluster.is_clean()
    async with cluster.node() as engine:
        again = await partition(engine, "t")
        assert again.log_start_offset == log.log_start_offset
        assert await consume(again) == content
        assert await produce(again, b"later") == log.log_end_offset
    return report


def test_the_last_snapshot_of_a_meta_stream_is_its_live_part() -> None:
    """Far fewer entries than what is left of those before it."""

    async def scenario() -> None:
        cluster = Cluster()
        async with a_log(cluster) as (log, kept):
            for number in range(REMNANTS):
                await produce(log, b"early %d" % number)
                await together(kept, log.delete_records(number))
            for number in range(REMNANTS, 2 * REMNANTS):
                await produce(log, b"more %d" % number)
                await log.delete_records(number)
            await streams_of(log).meta.compact()
            await produce(log, b"live")
            meta = streams_of(log).meta.stream
            assert meta.confirm_offset - meta.start_offset < REMNANTS
            content, starts = await consume(log), starts_of(log)
        await lose(cluster, starts)
        report = await check(cluster, log, content)
        assert report.by_kind[str(FindingKind.TRIMMED)] > 0

    run(scenario)


def test_a_meta_stream_tells_the_live_part_of_its_data() -> None:
    """Fewer records than what is left of those before the log's start."""

    async def scenario() -> None:
        cluster = Cluster()
        async with a_log(cluster) as (log, kept):
            for number in range(REMNANTS):
                await together(kept, produce(log, b"early %d" % number))
            for number in range(REMNANTS, 2 * REMNANTS):
                await produce(log, b"more %d" % number)
            await log.delete_records(2 * REMNANTS)
            await log.roll()
            await streams_of(log).meta.compact()
            await produce(log, b"live")
            content, starts = await consume(log), starts_of(log)
        await lose(cluster, starts)
        await check(cluster, log, content)

    run(scenario)


@pytest.mark.parametrize("is_in_parts", [False, True])
def test_a_log_of_which_all_was_deleted_ends_where_it_did(is_in_parts: bool) -> None:
    """One remnant, or several: no offset is given out again."""

    async def scenario() -> None:
        cluster = Cluster()
        async with a_log(cluster) as (log, kept):
            for number in range(REMNANTS):
                await together(kept, produce(log, b"early %d" % number))
                if is_in_parts and number == REMNANTS // 2:
                    await produce(log, b"in an object of its own")
            await produce(log, b"in an object of its own")
            await log.delete_records(log.log_end_offset)
            await log.roll()
            starts = starts_of(log)
            assert starts[streams_of(log).data.stream_id] == log.log_end_offset
        await lose(cluster, starts)
        await check(cluster, log, b"")

    run(scenario)


def parts(*runs: tuple[int, int]) -> Sequence[Row]:
    return [Row(1, start, end, number) for number, (start, end) in enumerate(runs, 1)]


def chosen(trimmed: int, come_to: int, *runs: tuple[int, int]) -> tuple[int, int]:
    resolved = resolve(None, parts(*runs), bool, lambda _: False, trims_are_lost=True)
    assert resolved.is_guess
    resolved.choose_by(trimmed, come_to)
    assert not resolved.is_guess
    every = [*resolved.before, *resolved.pieces, *resolved.tail]
    assert every == [Piece(start, end, number) for number, (start, end) in enumerate(runs, 1)]
    return resolved.start, resolved.end


def test_a_part_is_chosen_by_where_the_trims_went_and_how_far_the_stream_came() -> None:
    assert chosen(21, 24, (0, 12), (21, 27)) == (21, 27)
    assert chosen(0, 10, (0, 12), (15, 90)) == (0, 12), "no trim made this gap"
    assert chosen(0, 20, (0, 12), (15, 18), (19, 22)) == (19, 22), "it had come further"
    assert chosen(13, 14, (0, 12), (15, 18)) == (15, 18), "what is left of what it had come to"
    assert chosen(20, 20, (0, 12), (15, 18)) == (20, 20), "all was trimmed"
    assert chosen(20, 30, (0, 12), (15, 18)) == (20, 20), "what was not trimmed is lost"
    assert chosen(21, 21, (0, 12), (21, 22)) == (21, 22), "it begins where it had come to"


def slices(data: tuple[int, int], time: tuple[int, int], txn: tuple[int, int]) -> list[StreamSlice]:
    return [StreamSlice(11, *data), StreamSlice(12, *time), StreamSlice(13, *txn)]


def test_positions_in_streams_come_from_segments_and_the_log_start() -> None:
    state = MetaState()
    state.apply(Description("t", UUID(int=7), 0, 11, 12, 13))
    state.apply(SegmentOpened(100, 0, *slices((10, -1), (3, -1), (1, -1))))
    assert (reached(state, "data", 11), trimmed_to(state, 11)) == (10, 10)
    state.apply(SegmentSealed(100, 140, 1, 0, 0, 0, *slices((10, 50), (3, 5), (1, 2))))
    state.apply(SegmentOpened(140, 0, *slices((50, -1), (5, -1), (2, -1))))
    state.apply(LogStart(120))
    assert (reached(state, "data", 11), trimmed_to(state, 11)) == (50, 30)
    assert (reached(state, "time", 12), trimmed_to(state, 12)) == (5, 3)
    assert (reached(state, "txn", 13), trimmed_to(state, 13)) == (2, 1)
    state.apply(Checkpoint(150, 140, 1, 0, 0, 0, 7, -1, 139, 0, ()))
    assert reached(state, "data", 11) == 60
    assert reached(state, "time", 12) == 7
    state.apply(LogStart(145))
    assert trimmed_to(state, 11) == 50, "the oldest segment, as long as it is there"
    assert trimmed_to(state, 99) is None
