"""What a lost metadata store is rebuilt from: the newest checkpoint in the store that is whole.

It is whole if every block of it that a stream needs can be read: nothing is taken from a part of
it.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.errors import Corrupt, ForeignCluster, ObjectNotFound, StreamlogError
from streamlog.kvstore.interface import StoredKeyValue
from streamlog.metadata.checkpoint.trailer import read_trailer
from streamlog.metadata.interface import ObjectRow, StreamRow
from streamlog.metadata.keys import checkpoint
from streamlog.metadata.keys.checkpoint import CheckpointPointer
from streamlog.metadata.keys.space import prefix_of
from streamlog.objectstore.interface import ObjectInfo, ObjectStore
from streamlog.repair.frozen_kv import FrozenKV
from streamlog.repair.in_flight import in_flight
from streamlog.repair.recover.resolve import Known, Piece
from streamlog.repair.view import MetadataView, load_view
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload
from streamlog.runtime.rand import Random


@dataclass(frozen=True, slots=True)
class CheckpointCandidate:
    info: ObjectInfo
    checkpoint: CheckpointPointer


async def find_candidates(
    store: ObjectStore, files: list[ObjectInfo], cluster_id: str
) -> tuple[list[CheckpointCandidate], list[StreamlogError]]:
    """Deltas that name their base, the newest first; and why other files than bases are of no use.

    Errors: UnsupportedVersion (a newer release wrote one), StoreUnavailable.
    """

    async def look(info: ObjectInfo) -> CheckpointCandidate | StreamlogError | None:
        try:
            trailer = await read_trailer(store, info, cluster_id)
        except (Corrupt, ForeignCluster, ObjectNotFound) as error:
            return error
        return None if trailer is None else CheckpointCandidate(info, trailer)

    looked = await in_flight(files, look)
    usable = [candidate for candidate in looked if isinstance(candidate, CheckpointCandidate)]
    usable.sort(
        key=lambda candidate: (candidate.checkpoint.revision, candidate.info.modified_ms),
        reverse=True,
    )
    # A base counts as whole or damaged with the checkpoint that names it.
    bases = {one.checkpoint.base.name for one in usable if one.checkpoint.base is not None}
    useless = [
        one
        for info, one in zip(files, looked, strict=True)
        if isinstance(one, StreamlogError) and info.key not in bases
    ]
    return usable, useless


@dataclass(frozen=True, slots=True)
class KnownStreams:
    """What a checkpoint or a backup says: all streams by id, and the objects that they need."""

    view: MetadataView
    streams: dict[int, tuple[StreamRow, Known]]
    objects: dict[int, ObjectRow]


async def read_streams(view: MetadataView) -> KnownStreams:
    """Errors: Corrupt (a block of a checkpoint file), StoreUnavailable."""
    known = KnownStreams(view, {}, {})
    for row in view.streams():
        pieces: list[Piece] = []
        async for page in view.ranges(row):
            for place in page:
                pieces.append(Piece(place.start, place.end, place.object.object_id))
                known.objects[place.object.object_id] = place.object
        known.streams[row.stream_id] = row, Known(row.epoch, row.start, row.end, pieces)
    return known


async def read_candidate(
    candidate: CheckpointCandidate,
    store: ObjectStore,
    cluster_id: str,
    *,
    clock: Clock,
    random: Random,
    offload: Offload,
) -> KnownStreams:
    """The metadata as that checkpoint has it.

    Errors: Corrupt (a file is gone or damaged), StoreUnavailable.
    """
    named = candidate.checkpoint
    key = checkpoint.key(prefix_of(cluster_id))
    value = checkpoint.encode(named)
    revision = named.revision + 1
    kv = FrozenKV([StoredKeyValue(key, value, revision, revision)], revision)
    view = await load_view(kv, store, cluster_id, clock=clock, random=random, offload=offload)
    return await read_streams(view)
