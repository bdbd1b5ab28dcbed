"""How a transaction ends: the decision, and what completes it. Pure.

| state | version 1 | version 2, the id's epoch | version 2, the one before |
|---|---|---|---|
| Ongoing | decided | decided, next epoch | fenced |
| Prepare*, same decision | ConcurrentTransactions | fenced | the same answer |
| Complete*, same decision | the same answer | abort decides anew, commit: invalid | same answer |
| Empty | invalid | abort decides, commit: invalid | fenced |

Invalid is InvalidTxnState, as is the other decision; but version 2 aborts whatever it cannot know
to be open.

Source: Kafka's TransactionCoordinator.endTransaction, KIP-890. Kafka answers the repeated call of
version 2 with ConcurrentTransactions while markers are written; here it gets its answer at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.coordinator.api import ProducerIdAndEpoch, TransactionState
from streamlog.coordinator.transactions.decisions import (
    Decision,
    NeedsProducerId,
    fenced,
    other_producer,
    shown,
    still_ending,
)
from streamlog.coordinator.transactions.state import (
    EPOCH_LAST,
    NONE,
    Transaction,
    transition_to,
)
from streamlog.errors import InvalidTxnState

_PREPARE = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}
_COMPLETE = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}


@dataclass(frozen=True, slots=True)
class End:
    """A call of `end`."""

    producer: ProducerIdAndEpoch
    is_commit: bool
    bumps_epoch: bool
    fresh_id: int | None = None
    """A producer id that nobody has yet; the call may do without."""
    application_epoch: int | None = None

    def decide(self, known: Transaction | None, now_ms: int) -> Decision[ProducerIdAndEpoch]:
        """Errors: NeedsProducerId."""
        if known is None:
            return Decision(other_producer(self.producer))
        if self.bumps_epoch:
            return self._decide_2(known, now_ms)
        if known.producer_id != self.producer.producer_id:
            return Decision(other_producer(self.producer))
        if known.producer_epoch != self.producer.producer_epoch:
            return Decision(fenced(known))
        if known.state is TransactionState.ONGOING:
            if self._is_passed(known):
                return Decision(self._passed(known))
            after = transition_to(
                known,
                _PREPARE[self.is_commit],
                now_ms,
                application_epoch=self._application_epoch(known),
                client_version=0,
            )
            return Decision(after.pair, after)
        if known.state is _PREPARE[self.is_commit]:
            return Decision(still_ending(known))
        if known.state is _COMPLETE[self.is_commit]:
            return Decision(known.pair)
        return Decision(self._not_open(known))

    def _decide_2(self, known: Transaction, now_ms: int) -> Decision[ProducerIdAndEpoch]:
        is_repeated = self._is_repeated(known)
        if known.producer_id != self.producer.producer_id and not is_repeated:
            return Decision(other_producer(self.producer))
        if is_repeated:
            return self._repeated(known)
        if known.is_prepared or known.pair != self.producer or known.producer_epoch > EPOCH_LAST:
            return Decision(fenced(known))
        if known.state is not TransactionState.ONGOING and self.is_commit:
            return Decision(self._not_open(known))
        if self._is_passed(known):
            return Decision(self._passed(known))
        after = self._bumped(known, now_ms)
        return Decision(after.next_pair, after)

    def _bumped(self, known: Transaction, now_ms: int) -> Transaction:
        """Markers have the next epoch, so that no batch of the transaction can come behind them."""
        if known.is_exhausted and self.fresh_id is None:
            raise NeedsProducerId
        is_open = known.state is TransactionState.ONGOING
        return transition_to(
            known,
            _PREPARE[self.is_commit],
            now_ms,
            producer_epoch=known.producer_epoch + 1,
            last_producer_epoch=known.producer_epoch,
            next_producer_id=self.fresh_id if known.is_exhausted else NONE,
            start_ms=known.start_ms if is_open else now_ms,
            application_epoch=self._application_epoch(known),
            client_version=2,
        )

    def _application_epoch(self, known: Transaction) -> int:
        """That of the newest committed transaction, with this decision."""
        if not self.is_commit or self.application_epoch is None:
            return known.application_epoch
        return self.application_epoch

    def _is_passed(self, known: Transaction) -> bool:
        """Whether the application has committed this epoch, or a later one, before."""
        epoch = self.application_epoch
        return self.is_commit and epoch is not None and epoch <= known.application_epoch

    def _passed(self, known: Transaction) -> InvalidTxnState:
        return InvalidTxnState(
            f"{shown(known.transactional_id)} has committed its epoch {known.application_epoch}, "
            f"and now {self.application_epoch} is to be committed: abort this transaction; its "
            "epoch was committed before"
        )

    def _is_repeated(self, known: Transaction) -> bool:
        """Whether the producer has the epoch before, which the call that was done has ended."""
        producer_id, epoch = self.producer
        is_ended = known.state not in (TransactionState.ONGOING, TransactionState.EMPTY)
        if not is_ended or known.client_version < 2:
            return False  # No end has given out the epoch: the one before is another instance's.
        if producer_id == known.producer_id:
            return epoch == known.producer_epoch - 1
        is_replaced = producer_id == known.previous_producer_id
        return is_replaced and epoch == EPOCH_LAST and known.producer_epoch == 0

    def _repeated(self, known: Transaction) -> Decision[ProducerIdAndEpoch]:
        if known.state not in (_PREPARE[self.is_commit], _COMPLETE[self.is_commit]):
            return Decision(self._not_open(known))
        if known.next_pair.producer_epoch > EPOCH_LAST:
            return Decision(fenced(known))  # It was fenced with the id's last epoch.
        return Decision(known.next_pair)

    def _not_open(self, known: Transaction) -> InvalidTxnState:
        call = "commit" if self.is_commit else "abort"
        return InvalidTxnState(
            f"the transactional id {shown(known.transactional_id)} is in the state "
            f"{known.state.name}: there is nothing to {call}"
        )


def complete(known: Transaction, now_ms: int) -> Transaction:
    """All markers are written."""
    state = _COMPLETE[known.state is TransactionState.PREPARE_COMMIT]
    producer_id, epoch = known.next_pair
    return transition_to(
        known,
        state,
        now_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        next_producer_id=NONE,
        partitions=frozenset(),
    )
