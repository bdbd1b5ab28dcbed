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
from streamlog.metadata.lookup.lookup import Lookup
from streamlog.metadata.session import TenureMetadata


def follower_of(metadata: TenureMetadata) -> Follower:
    return metadata._follower


def fold_of(metadata: TenureMetadata) -> Fold:
    return metadata._follower.state.fold


def checkpointer_of(metadata: TenureMetadata) -> Checkpointer:
    return metadata._checkpointer


def committer_of(metadata: TenureMetadata) -> Committer:
    return metadata._committer


def garbage_of(metadata: TenureMetadata) -> Garbage:
    return metadata._garbage


def lookup_of(metadata: TenureMetadata) -> Lookup:
    return metadata._lookup


def allocator_of(metadata: TenureMetadata) -> ObjectIdAllocator:
    return metadata._allocator
