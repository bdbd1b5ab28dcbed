"""The changes of the last revisions, with the values that they replaced: for watches and old reads.

1. The history holds every change of every revision ≥ `oldest_change`, in order.
2. So it can restore the state of any revision ≥ `oldest_read`, by undoing the newer changes.
3. It is bounded by bytes and by revisions; the oldest changes are dropped first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from streamlog.errors import Invalid, RevisionCompacted
from streamlog.kvstore.interface import StoredKeyValue, WatchBatch


class History:
    """Begins at `revision` without changes. `is_new`: there never were any, so none is missing."""

    def __init__(self, revision: int, bytes_max: int, revisions_max: int, *, is_new: bool) -> None:
        self._bytes_max = bytes_max
        self._revisions_max = revisions_max
        self._batches: list[WatchBatch] = []
        self._revisions: list[int] = []
        self._first = 0
        """Index of the oldest batch; the dropped ones before it are cut off now and then."""
        self._size_bytes = 0
        self.revision = revision
        self.oldest_change = 0 if is_new else revision + 1
        self.oldest_read = revision

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def __len__(self) -> int:
        return len(self._batches) - self._first

    def append(self, batch: WatchBatch) -> None:
        self._batches.append(batch)
        self._revisions.append(batch.revision)
        self._size_bytes += _size(batch)
        self.revision = batch.revision
        while len(self) and (self._size_bytes > self._bytes_max or len(self) > self._revisions_max):
            dropped = self._drop_first()
            self.oldest_change = dropped + 1
            self.oldest_read = dropped

    def compact(self, revision: int) -> None:
        """Drops the changes before `revision`; state and changes at it stay."""
        while len(self) and self._revisions[self._first] < revision:
            self._drop_first()
        self.oldest_change = max(self.oldest_change, revision)
        self.oldest_read = max(self.oldest_read, revision)

    def _drop_first(self) -> int:
        batch = self._batches[self._first]
        self._size_bytes -= _size(batch)
        self._first += 1
        if self._first * 2 > len(self._batches):
            del self._batches[: self._first]
            del self._revisions[: self._first]
            self._first = 0
        return batch.revision

    def check_read(self, revision: int) -> None:
        """Errors: RevisionCompacted; Invalid for a revision still to come."""
        if revision > self.revision:
            raise Invalid(
                f"revision {revision} has not been reached; the store is at {self.revision}",
                revision=self.revision,
            )
        if revision < self.oldest_read:
            raise RevisionCompacted(
                f"revision {revision} is no longer held; read at {self.oldest_read} or later",
                oldest=self.oldest_read,
            )

    def check_watch(self, from_revision: int) -> None:
        """Errors: RevisionCompacted."""
        if from_revision < self.oldest_change:
            raise RevisionCompacted(
                f"the changes from revision {from_revision} on are no longer held; read the keys, "
                f"then watch from {self.oldest_change} or later",
                oldest=self.oldest_change,
            )

    def since(self, revision: int) -> Iterator[WatchBatch]:
        """Batches of revisions ≥ `revision`; the history must not change meanwhile."""
        first = bisect_left(self._revisions, revision, self._first)
        for index in range(first, len(self._batches)):
            yield self._batches[index]

    def undo(self, revision: int, start: bytes, end: bytes) -> dict[bytes, StoredKeyValue | None]:
        """The keys in [start, end) that changed after `revision`, as they were at it."""
        previous: dict[bytes, StoredKeyValue | None] = {}
        for batch in self.since(revision + 1):
            for change in batch.changes:
                if start <= change.key < end:
                    previous.setdefault(change.key, change.previous)
        return previous


def _size(batch: WatchBatch) -> int:
    size = 64
    for change in batch.changes:
        size += 128 + len(change.key)
        if change.kv is not None:
            size += len(change.kv.value)
        if change.previous is not None:
            size += len(change.previous.value)
    return size
