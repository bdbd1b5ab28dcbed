"""What a finished copy of a segment has to hold, whatever became of its file.

1. Its batches are whole, follow one another from the first to the last offset of the segment, and
   have the records that readers and producers know to be there.
2. Its producer snapshot is of the offset behind it: who builds on it goes on with the next segment.
   Of each producer with a batch in the segment it has the last one, and whether its transaction is
   open there. It may be empty, where the node's own was damaged.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.codec.batch import BatchHeader, scan
from streamlog.errors import StreamlogError
from streamlog.format.kafka_files.producer_snapshot import SnapshotEntry, decode_snapshot
from streamlog.runtime.buffers import Buffer
from streamlog.testing.simulation.checker import Violation
from streamlog.testing.simulation.numbered.clients import observed
from streamlog.testing.simulation.numbered.model import MARKER


def check_copy(
    name: str, log: Buffer, snapshot: Buffer, offsets: range, at: Mapping[int, int]
) -> None:
    """`offsets`: those of the segment. `at`: the number of each known record, as
    NumberedLogModel.at. Errors: Violation."""
    try:
        headers = [batch.header for batch in scan(log)]
        batches = observed((log,), None)
        entries = {one.producer_id: one for one in decode_snapshot(name, snapshot)}
    except StreamlogError as error:
        raise Violation(f"{name} is damaged: {error}") from error
    position = offsets.start
    for batch in batches:
        if batch.base_offset != position:
            raise Violation(f"{name}: {batch.base_offset} follows {position}")
        position = batch.next_offset
        records = batch.records if batch.is_commit is None else ((batch.base_offset, MARKER),)
        for offset, number in records:
            if at.get(offset, number) != number:
                raise Violation(
                    f"{name} has record {number} at {offset}, and {at[offset]} is there"
                )
    if position != offsets.stop:
        raise Violation(f"{name} ends at {position}")
    if entries:
        _check_producers(name, headers, entries, offsets.stop)


def _check_producers(
    name: str, headers: list[BatchHeader], entries: Mapping[int, SnapshotEntry], end: int
) -> None:
    late = [one for one in entries.values() if one.last_offset >= end]
    if late:
        raise Violation(f"{name}: its producer snapshot has offsets from {end} on: {late[0]}")
    newest = {one.producer_id: one for one in headers if one.producer_id >= 0}
    data = {one.producer_id: one for one in headers if one.producer_id >= 0 and not one.is_control}
    for producer_id in newest.keys() - entries.keys():
        raise Violation(f"{name}: its producer snapshot lacks producer {producer_id}")
    for producer_id, header in data.items():
        entry = entries[producer_id]
        if (entry.producer_epoch, entry.last_offset) != (header.producer_epoch, header.last_offset):
            raise Violation(
                f"{name}: its producer snapshot has {entry}, its last batch is {header}"
            )
    for producer_id, header in newest.items():
        is_open = entries[producer_id].txn_first_offset >= 0
        if is_open != (header.is_transactional and not header.is_control):
            raise Violation(f"{name}: its producer snapshot has {entries[producer_id]}")
