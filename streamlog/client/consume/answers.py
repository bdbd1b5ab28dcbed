"""One partition's part of a fetch's answer: batches, damage, aborted transactions. Pure."""

from __future__ import annotations

import contextlib
from typing import Any

from streamlog.client.calls.topic import TopicPartition
from streamlog.client.consume.records import FetchedBatch
from streamlog.client.settings import ConsumerSettings
from streamlog.codec.batch import ScannedBatch, batch_at, parse_header, scan
from streamlog.errors import CorruptMessage, InvalidRecord


def fetched_batches(
    tp: TopicPartition,
    offset: int,
    result: Any,
    settings: ConsumerSettings,
    *,
    keeps_control_batches: bool = False,
) -> tuple[list[FetchedBatch], int]:
    """A partition's batches in the answer to a fetch from `offset`, and the next fetch's offset.

    Batches of aborted transactions are left out where the settings say so, and control batches
    where they are not to be kept. Errors: CorruptMessage, InvalidRecord with the fields `topic`,
    `partition`, `offset` and `next_offset`.
    """
    if not result.record_batches:
        return [], result.next_offset
    scanned, is_whole = _scanned(tp, offset, result)
    next_offset = result.next_offset if is_whole else scanned[-1].header.next_offset
    if result.aborted_transactions and settings.isolation_level == "read_committed":
        aborted = [(txn.first_offset, txn.producer_id) for txn in result.aborted_transactions]
        scanned = without_aborted(scanned, aborted)
    batches = [
        FetchedBatch(
            *tp,
            batch.header,
            batch.view,
            from_offset=offset,
            high_watermark=result.high_watermark,
            check_crc=settings.check_crcs,
            decoded_bytes_max=settings.decoded_batch_bytes_max,
        )
        for batch in scanned
        if batch.header.next_offset > offset
        and (keeps_control_batches or not batch.header.is_control)
    ]
    return batches, next_offset


def _scanned(tp: TopicPartition, offset: int, result: Any) -> tuple[list[ScannedBatch], bool]:
    """All batches and True; or False and the batches in front of damage, where there are some.

    Errors: as of `fetched_batches`, where the damage comes first.
    """
    data = result.record_batches
    try:
        return scan(data, verify_crc=False), True
    except (CorruptMessage, InvalidRecord) as error:
        view, position, whole = memoryview(data), 0, list[ScannedBatch]()
        # The next fetch begins behind the whole batches, with the damage.
        with contextlib.suppress(CorruptMessage, InvalidRecord):
            while True:
                whole.append(batch_at(view, position))
                position += len(whole[-1].view)
        if whole and whole[-1].header.next_offset > offset:
            return whole, False
        next_offset = offset_behind_damage(view[position:], offset, result.next_offset)
        raise type(error)(
            f"{tp[0]}-{tp[1]}: what the server sent from offset {offset} on is no record "
            f"batch: {error.message}; seek to {next_offset} to go on behind it",
            **{**error.fields, "topic": tp[0], "partition": tp[1]},
            **{"offset": offset, "next_offset": next_offset},
        ) from error


def offset_behind_damage(view: memoryview, offset: int, answer_end: int) -> int:
    """The next offset to read behind damaged bytes that hold `offset`.

    The damaged batch's own header gives it, if what it says is possible. Otherwise it is the end of
    the answer, since batches behind the damage cannot be told apart.
    """
    with contextlib.suppress(CorruptMessage):
        header = parse_header(view)
        if header.base_offset <= offset < header.next_offset <= answer_end:
            return header.next_offset
    return max(answer_end, offset + 1)


def without_aborted(
    batches: list[ScannedBatch], aborted: list[tuple[int, int]]
) -> list[ScannedBatch]:
    """Drops transactional batches of aborted producers up to their ABORT markers.

    `aborted`: (first offset, producer id) of each aborted transaction that overlaps. Between that
    offset and its marker a producer has no other marker, so that none has to be read. Cost: per
    batch. Source: Kafka's CompletedFetch.
    """
    todo = sorted(aborted, reverse=True)
    aborting: set[int] = set()
    kept: list[ScannedBatch] = []
    for batch in batches:
        header = batch.header
        while todo and todo[-1][0] <= header.last_offset:
            aborting.add(todo.pop()[1])
        if header.is_control:
            aborting.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in aborting:
            continue
        kept.append(batch)
    return kept
