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
from tests.support.metadata_insides import (
    allocator_of,
    checkpointer_of,
    committer_of,
    fold_of,
    follower_of,
    garbage_of,
    lookup_of,
)


def follower_of(metadata: TenureMetadata) -> Follower:
    return follower_of(metadata)


def fold_of(metadata: TenureMetadata) -> Fold:
    return fold_of(metadata)


def checkpointer_of(metadata: TenureMetadata) -> Checkpointer:
    return checkpointer_of(metadata)


def committer_of(metadata: TenureMetadata) -> Committer:
    return committer_of(metadata)


def garbage_of(metadata: TenureMetadata) -> Garbage:
    return garbage_of(metadata)


def lookup_of(metadata: TenureMetadata) -> Lookup:
    return lookup_of(metadata)


def allocator_of(metadata: TenureMetadata) -> ObjectIdAllocator:
    return allocator_of(metadata)
