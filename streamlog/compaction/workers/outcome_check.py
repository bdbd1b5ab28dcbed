"""Checks that the objects which a remote executor reports are the ones that its job asked for.

1. There is one object for each output, in order, under the ids that the job gave.
2. The store has each object in the reported size; one GET reads it from its index region on.
3. Its footer names the job's cluster and tenure, and has exactly the output's rows.
4. Its index region has the reported CRC, and blocks that cover every row from start to end.
Data blocks are not read: the index has their CRCs, which every reader checks.
"""

from __future__ import annotations

from streamlog.compaction.plan.spec import Job, MergeOutcome, SpecOutput
from streamlog.errors import Corrupt, Invalid, ObjectNotFound, UnsupportedVersion
from streamlog.format.object.footer import ObjectIdentity, decode_footer
from streamlog.format.object.header import HEADER_BYTES
from streamlog.format.object.index import ObjectIndex, decode_index
from streamlog.format.rows import ObjectRow, RangeRow
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.objectstore.object_reader import get_tail
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane, Offload

TAIL_BYTES_MAX = 128 << 20
"""Index region and footer of one output; the planner's own bound is an eighth of it."""


async def check_outcome(
    job: Job, outcome: MergeOutcome, store: ObjectStore, offload: Offload
) -> None:
    """Errors: Invalid (an object is not as the job asked), StoreUnavailable."""
    check_rows(job, outcome)
    for row, output in zip(outcome.objects, job.spec.outputs, strict=True):
        key = data_key(row.object_id)
        identity = ObjectIdentity(
            job.cluster_id, job.tenure.node_id, job.tenure.node_epoch, row.object_id
        )
        try:
            data = await get_tail(store, row)
            await offload.run(Lane.CPU, _check_tail, data, row, output, identity)
        except ObjectNotFound as error:
            raise Invalid(f"{key} is not in the store: is the executor's another one?") from error
        except (Corrupt, UnsupportedVersion) as error:
            raise Invalid(f"{key} is not as reported: {error.message}") from error


def check_rows(job: Job, outcome: MergeOutcome) -> None:
    """The checks that need no look at the store. Errors: Invalid."""
    ids = [row.object_id for row in outcome.objects]
    if ids != list(job.object_ids):
        raise Invalid(f"the objects {ids} are not {list(job.object_ids)}, which the job asked for")
    for row in outcome.objects:
        tail = row.size_bytes - row.index_position
        if (
            row.store
            or row.placements
            or row.index_position < HEADER_BYTES
            or not 0 < row.index_length < tail <= TAIL_BYTES_MAX
        ):
            raise Invalid(f"the sizes of {data_key(row.object_id)} are impossible: {row}")
    if outcome.bytes_written != sum(row.size_bytes for row in outcome.objects):
        raise Invalid(f"{outcome.bytes_written} bytes written are not those of the objects")


def _check_tail(data: Buffer, row: ObjectRow, output: SpecOutput, identity: ObjectIdentity) -> None:
    key = data_key(row.object_id)
    footer = decode_footer(data, size_bytes=row.size_bytes, object_key=key)
    if footer.identity != identity or footer.row != row or footer.is_staged:
        raise Invalid(f"{key} says of itself to be {footer.identity}, {footer.row}")
    if footer.ranges != list(output.rows):
        raise Invalid(f"{key} does not hold the rows that the job asked for")
    index = decode_index(memoryview(data)[: row.index_length], row, object_key=key)
    for one in output.rows:
        _check_covered(index, one, key)


def _check_covered(index: ObjectIndex, row: RangeRow, key: str) -> None:
    at = row.start
    for block in index.blocks_for(row.stream_id, row.start, row.end):
        if block.start > at:
            break
        at = max(at, block.end)
    if at < row.end:
        raise Invalid(f"{key} has no block with offset {at} of stream {row.stream_id}")
