"""Mutants of transactions: the log's stable end and aborted lists, and the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from streamlog.codec.batch import TRANSACTIONAL
from streamlog.coordinator import markers, replay, timeouts
from streamlog.coordinator.api import TransactionState
from streamlog.coordinator.partition import CoordinatorPartition
from streamlog.coordinator.state_log import StateLog
from streamlog.coordinator.transactions.decisions import Init
from streamlog.coordinator.transactions.state import transition_to
from streamlog.errors import CoordinatorFenced, InvalidTxnState, ProducerFenced
from streamlog.log.partition.producer_state_manager import ProducerStateManager
from streamlog.log.partition.transactions.unstable_offsets import UnstableOffsets
from streamlog.log.partition.transactions.verification import Verifications
from streamlog.log.partition.view.visibility import Visibility
from streamlog.log.shared.aborted.aborted_search import AbortedSearch
from streamlog.log.shared.placing import BatchPlacer
from streamlog.log.shared.shared_log import SharedLog
from streamlog.log.shared.state.tail import LogTail
from streamlog.testing.simulation.history import PLAN
from tests.simulation.mutants.mutant import Mutant, Patch

TRANSACTIONS = replace(PLAN, transactional=1.0)
"""Every history has them."""

# The log.


def _stable_is_durable(patch: Patch) -> None:
    patch.set(Visibility, "last_stable_offset", property(lambda self: self.high_watermark))


def _marker_counts_at_once(patch: Patch) -> None:
    def end(self: Any, first_offset: int, marker_end: int) -> None:
        del self._first_offsets[first_offset]
        self.first = next(iter(self._first_offsets), 1 << 62)

    patch.set(UnstableOffsets, "end", end)


def _read_past_stable(patch: Patch) -> None:
    patch.set(SharedLog, "_visible_end", lambda self, isolation: self.high_watermark)


def _aborted_lost_at_a_roll(patch: Patch) -> None:
    def roll(self: Any) -> None:
        aborted = self._tail.active.aborted
        del aborted.unstored[aborted.taken :]
        original(self)

    original = patch.set(BatchPlacer, "roll", roll)


def _aborted_not_restored(patch: Patch) -> None:
    def found_aborted(self: Any, txn_confirm_offset: int) -> bool:
        is_right: bool = original(self, txn_confirm_offset)
        self.active.aborted.unstored.clear()
        return is_right

    original = patch.set(LogTail, "found_aborted", found_aborted)


def _aborted_told_once_stored(patch: Patch) -> None:
    async def collect(
        self: Any, segment: Any, offset: Any, end_offset: Any, deadline: Any, found: Any
    ) -> bool:
        unstored, segment.aborted.unstored = segment.aborted.unstored, []
        try:
            is_last: bool = await original(self, segment, offset, end_offset, deadline, found)
            return is_last
        finally:
            segment.aborted.unstored = unstored

    original = patch.set(AbortedSearch, "_collect", collect)


def _open_not_in_checkpoint(patch: Patch) -> None:
    def snapshot(self: Any) -> Any:
        return tuple(entry._replace(txn_first_offset=-1) for entry in original(self))

    original = patch.set(ProducerStateManager, "snapshot", snapshot)


def _older_coordinator_taken(patch: Patch) -> None:
    def check_marker(self: Any, marker: Any, now_ms: int) -> None:
        try:
            original(self, marker, now_ms)
        except CoordinatorFenced:
            return

    original = patch.set(ProducerStateManager, "check_marker", check_marker)


def _fenced_may_append(patch: Patch) -> None:
    def check(self: Any, header: Any, now_ms: int) -> Any:
        try:
            return original(self, header, now_ms)
        except ProducerFenced:
            if header.attributes & TRANSACTIONAL:
                return None
            raise

    original = patch.set(ProducerStateManager, "check", check)


def _verification_skipped(patch: Patch) -> None:
    def check_transaction(self: Any, header: Any, producer: Any) -> None:
        try:
            original(self, header, producer)
        except InvalidTxnState:
            if not header.attributes & TRANSACTIONAL:
                raise

    original = patch.set(ProducerStateManager, "_check_transaction", check_transaction)
    patch.set(ProducerStateManager, "needs_verification", lambda self, *_: False)


def _permission_outlives_marker(patch: Patch) -> None:
    patch.set(Verifications, "ended", lambda self, producer_id: None)


def _fencing_marker_ends_nothing(patch: Patch) -> None:
    def account_marker(self: Any, base_offset: int, metadata: Any) -> Any:
        entry = self._in_transaction.get(metadata.producer_id)
        if entry is None or entry.producer_epoch == metadata.producer_epoch:
            return original(self, base_offset, metadata)
        self._in_transaction[metadata.producer_id] = entry._replace(
            producer_epoch=metadata.producer_epoch
        )
        return None

    original = patch.set(ProducerStateManager, "_account_marker", account_marker)


# The coordinator.


def _answered_early(patch: Patch) -> None:
    async def settled(self: Any) -> None:
        self.check()

    patch.set(StateLog, "settled", settled)


def _prepared_dropped(patch: Patch) -> None:
    patch.set(CoordinatorPartition, "resume", lambda self: None)


def _decided_again(patch: Patch) -> None:
    def decode_value(transactional_id: str, value: Any) -> Any:
        known = original(transactional_id, value)
        return replace(known, state=TransactionState.ONGOING) if known.is_prepared else known

    original = patch.set(replay, "decode_value", decode_value)


def _same_epoch_after_time_out(patch: Patch) -> None:
    def fence(known: Any, now_ms: int) -> Any:
        return transition_to(known, TransactionState.PREPARE_ABORT, now_ms)

    patch.set(timeouts, "fence", fence)


def _first_partition_only(patch: Patch) -> None:
    def init(self: Any, owner: Any, prepared: Any, since: float) -> None:
        original(self, owner, prepared, since)
        self.left = set(sorted(self.left)[:1])

    original = patch.set(markers.Pending, "__init__", init)


def _complete_before_markers(patch: Patch) -> None:
    def begin(self: Any, owner: Any, prepared: Any) -> None:
        original(self, owner, prepared)
        owner.complete(prepared)

    original = patch.set(markers.Markers, "begin", begin)


def _markers_before_prepare(patch: Patch) -> None:
    def add(self: Any, key: bytes, value: bytes | None, then: Any = None) -> None:
        original(self, key, value)
        if then is not None:
            then()

    original = patch.set(StateLog, "add", add)


def _live_not_copied(patch: Patch) -> None:
    patch.set(CoordinatorPartition, "write_again", lambda self, transactional_id: None)


def _new_instance_same_epoch(patch: Patch) -> None:
    def next_one(self: Any, known: Any, now_ms: int) -> Any:
        return replace(original(self, known, now_ms), producer_epoch=known.producer_epoch)

    original = patch.set(Init, "_next", next_one)


def _mutant(
    name: str,
    broken: str,
    install: Callable[[Patch], None],
    *,
    is_quick: bool = False,
    found_by: str = "",
) -> Mutant:
    return Mutant(name, broken, "object", install, is_quick, found_by, TRANSACTIONS)


TRANSACTION_MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "stable is durable",
        "the last stable offset is the high watermark",
        _stable_is_durable,
    ),
    _mutant(
        "marker counts at once",
        "the last stable offset passes a transaction whose marker is not durable yet",
        _marker_counts_at_once,
    ),
    _mutant(
        "read past the stable end",
        "read_committed readers get everything up to the high watermark",
        _read_past_stable,
    ),
    _mutant(
        "aborted lost at a roll",
        "a roll forgets the aborted transactions that are not stored yet",
        _aborted_lost_at_a_roll,
    ),
    _mutant(
        "aborted not restored",
        "an open forgets the aborted transactions that are not stored yet",
        _aborted_not_restored,
    ),
    _mutant(
        "aborted told once stored",
        "a fetch tells only the aborted transactions that the txn stream has",
        _aborted_told_once_stored,
    ),
    _mutant(
        "open not in the checkpoint",
        "a checkpoint does not say which transactions are open",
        _open_not_in_checkpoint,
    ),
    _mutant(
        "older coordinator taken",
        "a marker of a coordinator that was replaced is written",
        _older_coordinator_taken,
        # A marker has to be under way for longer than the next coordinator loads and writes.
        found_by="tests/log/test_media.py::TestSharedLogOverMemory"
        "::test_a_marker_of_an_older_coordinator_is_fenced",
    ),
    _mutant(
        "fenced may append",
        "a transactional batch under an older epoch of its producer is taken",
        _fenced_may_append,
    ),
    _mutant(
        "verification skipped",
        "a transaction's first batch is taken without asking the coordinator",
        _verification_skipped,
    ),
    _mutant(
        "permission outlives the marker",
        "a batch that was verified before its transaction's end is taken behind it",
        _permission_outlives_marker,
        # A batch has to wait for room between its verification and its transaction's end.
        found_by="tests/log/test_media.py::TestSharedLogOverMemory"
        "::test_a_marker_takes_the_permission_back",
    ),
    _mutant(
        "fencing marker ends nothing",
        "a marker of a newer epoch leaves the transaction open",
        _fencing_marker_ends_nothing,
    ),
    _mutant(
        "answered before durable",
        "the coordinator answers before its record is durable",
        _answered_early,
    ),
    _mutant(
        "markers before the decision",
        "markers go out before the decision is durable",
        _markers_before_prepare,
        # A node has to die between a marker's append and that of the decision.
        found_by="tests/coordinator/test_background.py"
        "::test_no_marker_goes_out_before_the_decision_is_durable",
    ),
    _mutant(
        "prepared dropped on load",
        "a coordinator does not go on with what was decided before it",
        _prepared_dropped,
    ),
    _mutant(
        "decided again",
        "a transaction that was decided is open again after a load",
        _decided_again,
        is_quick=True,
    ),
    _mutant(
        "same epoch after a time-out",
        "a transaction that takes too long is aborted under its own epoch",
        _same_epoch_after_time_out,
    ),
    _mutant(
        "first partition only",
        "one partition of a transaction gets its marker",
        _first_partition_only,
        is_quick=True,
    ),
    _mutant(
        "complete before the markers",
        "a transaction is complete when its markers are on their way",
        _complete_before_markers,
    ),
    _mutant(
        "live records not copied",
        "a coordinator's log is shortened without writing its live records again",
        _live_not_copied,
    ),
    _mutant(
        "new instance under the same epoch",
        "a new instance gets the pair of the one before",
        _new_instance_same_epoch,
    ),
)
