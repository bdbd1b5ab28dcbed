"""The parts of a metadata session, for tests that look inside.

Only this file knows by which private names a session holds them.
"""

from __future__ import annotations

from streamlog.metadata.compaction.garbage import Garbage
from streamlog.metadata.fold.fold import Fold
from streamlog.metadata.journal.checkpointer import Checkpointer
from streamlog.metadata.journal.committer import Committer
from streamlog.metadata.journal.follower import Follower
from streamlog.metadata.journal.id_allocator import ObjectIdAllocator
from streamlog.metadata.journal.object_ids import ObjectIds
from streamlog.metadata.lookup.lookup import Lookup
from streamlog.metadata.ownership.liveness import Liveness
from streamlog.metadata.session import MetadataSession


def follower_of(metadata: MetadataSession) -> Follower:
    return metadata._follower


def fold_of(metadata: MetadataSession) -> Fold:
    return metadata._follower.state.fold


def checkpointer_of(metadata: MetadataSession) -> Checkpointer:
    return metadata._checkpointer


def committer_of(metadata: MetadataSession) -> Committer:
    return metadata._committer


def garbage_of(metadata: MetadataSession) -> Garbage:
    return metadata._garbage


def lookup_of(metadata: MetadataSession) -> Lookup:
    return metadata._lookup


def liveness_of(metadata: MetadataSession) -> Liveness:
    return metadata._liveness


def allocator_of(metadata: MetadataSession) -> ObjectIdAllocator:
    return metadata._allocator


def skip_ids(ids: MetadataSession | ObjectIds, position: int) -> None:
    """The next object id is the one at this position of the block."""
    window = ids if isinstance(ids, ObjectIds) else ids._allocator._ids
    window._next = window._durable = position
