"""Which batches were aborted, and which markers still end something (CleanedTransactionMetadata).

Batches are shown in order of offsets. A marker may go once no batch of its transaction was seen
before it, because a read_committed reader needs it as long as there is one.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamlog.codec.batch import BatchHeader
from streamlog.codec.control import ControlType, EndMarker
from streamlog.log.api.cleaning import AbortedRange


class CleanedTransactions:
    """`aborted` may have transactions whose markers are gone: each ends at its last offset."""

    def __init__(self, aborted: Iterable[AbortedRange] = ()) -> None:
        self._aborted = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._ongoing_aborted: dict[int, AbortedRange] = {}
        self._seen_aborted: set[int] = set()
        """Producers of ongoing aborted transactions of which a batch was seen."""
        self._ongoing_committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Takes a batch of data: whether its records were aborted."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        ongoing = self._ongoing_aborted.get(header.producer_id)
        if ongoing is not None and header.last_offset <= ongoing.last_offset:
            self._seen_aborted.add(header.producer_id)
            return True
        self._ongoing_committed.add(header.producer_id)
        return False

    def is_marker_empty(self, header: BatchHeader, marker: EndMarker | None) -> bool:
        """Takes a control batch: whether it ends a transaction of which nothing is left.

        `marker` None: a control batch of another type, which is never empty.
        """
        self._begin_up_to(header.last_offset)
        if header.record_count == 0:
            return True
        if marker is None:
            return False
        seen = self._ongoing_committed
        if marker.control_type is ControlType.ABORT:
            self._ongoing_aborted.pop(header.producer_id, None)
            seen = self._seen_aborted
        is_empty = header.producer_id not in seen
        seen.discard(header.producer_id)
        return is_empty

    def _begin_up_to(self, offset: int) -> None:
        while self._aborted and self._aborted[-1].first_offset <= offset:
            begun = self._aborted.pop()
            self._ongoing_aborted[begun.producer_id] = begun
            self._seen_aborted.discard(begun.producer_id)
