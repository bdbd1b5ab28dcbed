"""Staged writes that a transaction commits: all partitions or none, whoever leads them.

1. The writer id is the transactional id. `initialise` fences whoever wrote under it before, and
   aborts what that one left open. Tasks stage for the id and epoch that it gives.
2. `commit` adds the partitions to a transaction, attaches the objects to them as a part of it, and
   ends it. Its epoch is kept with the decision to commit, in the coordinator's log: after any crash
   `last_epoch` says whether it is committed.
3. An abort gives the writer another epoch as a producer: what was staged before is void.
4. A transaction has the objects of one epoch. While it is open, only a commit of that epoch by the
   writer that began it goes on with it: the end of another one would show its objects, too.

`StagedWriter` commits by one step of one node. This writer needs three steps more, and no node that
leads all partitions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from streamlog.client.calls import staging as staging_calls
from streamlog.client.calls.transaction import (
    STATES,
    add_partitions,
    describe_transactions,
    end_transaction,
    init_transactional_producer,
)
from streamlog.client.channel import Retry
from streamlog.client.producer_identity import NO_IDENTITY, ProducerIdentity
from streamlog.client.staging import (
    TIMEOUT_MS,
    StagedCommit,
    StagedObject,
    StagedWriter,
    manifest_of,
    parts_of,
)
from streamlog.client.tls import Tls
from streamlog.codec.batch import scan, with_transaction
from streamlog.errors import (
    ConcurrentTransactions,
    Fenced,
    InvalidTxnState,
    OutcomeUnknown,
    StreamlogError,
    TransactionalIdNotFound,
    Unavailable,
)
from streamlog.runtime.buffers import Buffer
from streamlog.v1.transaction_pb2 import Transaction

log = logging.getLogger(__name__)

TRANSACTION_TIMEOUT_MS = 60_000
"""How long the coordinator leaves a transaction open that nobody ends."""
ENDING_WAIT_MS = 2.0
"""Before the first look whether the markers are written, which takes milliseconds."""
_ENDING = {STATES["prepare_commit"], STATES["prepare_abort"]}


class TransactionalStagedWriter(StagedWriter):
    """As `StagedWriter`; `producer` is what `initialise` gave, in this process or in another one.

    Tasks need a producer to stage, and the driver to commit.
    """

    def __init__(
        self,
        server: str,
        writer_id: str,
        producer: ProducerIdentity = NO_IDENTITY,
        *,
        timeout_ms: int = TIMEOUT_MS,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        client_id: str = "",
        tls: Tls | bool | None = None,
    ) -> None:
        super().__init__(server, writer_id, timeout_ms=timeout_ms, client_id=client_id, tls=tls)
        self.producer = producer
        self._void: list[ProducerIdentity] = []
        """Producers whose transaction this writer has aborted, or has tried to and not committed
        since; objects may be staged for them."""
        self._begun_epoch: int | None = None
        """For which this writer began its last transaction."""
        self._transaction_timeout_ms = transaction_timeout_ms

    def initialise(self) -> ProducerIdentity:
        """Fences older drivers of the writer id, aborts their transaction, or awaits its commit.

        Errors: InvalidTransactionTimeout, Unavailable.
        """
        retry = Retry(self._caller, self._timeout_ms, first_ms=ENDING_WAIT_MS)
        call = init_transactional_producer(
            self.writer_id, self._transaction_timeout_ms, NO_IDENTITY
        )
        while True:
            try:
                self.producer = self._caller.run_once(call, retry.left_s() * 1000)
                return self.producer
            except StreamlogError as error:
                wait_s = retry.wait_s(error)
            time.sleep(wait_s)

    def stage(
        self, attempt: str, batches: Mapping[tuple[str, int], Buffer], *, expires_ms: int = 0
    ) -> list[StagedObject]:
        """As `StagedWriter.stage`; batches without a producer get the writer's.

        Errors: those; InvalidTxnState without a producer.
        """
        producer = self._initialised("stage()")
        own = {partition: _of_producer(data, producer) for partition, data in batches.items()}
        return self._stage(attempt, own, expires_ms, producer)

    def commit(self, epoch: int, objects: Iterable[StagedObject]) -> StagedCommit:
        """As `StagedWriter.commit`, and visible to readers of committed records on return.

        Errors: those, OutcomeUnknown also where the objects are attached to a transaction that was
        not ended; Fenced (a newer driver has the writer id, or the transaction took too long:
        nothing was committed by this call); InvalidTxnState without a producer, and while the
        transaction of another epoch is open, or of another driver that had the same producer.
        """
        producer = self._initialised("commit()")
        found = self._described()
        last = _application_epoch(found)
        if last is not None and last >= epoch:
            return StagedCommit(epoch, (), True)
        if _is_open(found, producer) and self._begun_epoch != epoch:
            raise InvalidTxnState(
                f"epoch {epoch} cannot be committed: a transaction of writer {self.writer_id} is "
                f"open, and may have the objects of {self._begun_text()}, which would be shown, "
                "too: call abort(), or initialise()"
            )
        self._begun_epoch = epoch
        manifest = manifest_of(objects)
        partitions = [partition for _, new in manifest for partition in new]
        try:
            refused = self._repeated(add_partitions(self.writer_id, producer, partitions))
            for error in refused.values():
                raise error
            attached = self._repeated(
                staging_calls.attach(self.writer_id, producer, epoch, manifest)
            )
        except (OutcomeUnknown, Unavailable, Fenced):
            # The same commit again goes on with the transaction; else it is aborted in time.
            raise
        except StreamlogError:
            self._try_to_abort(producer)
            raise
        self._end_transaction(producer, epoch)
        if producer in self._void:  # The abort that was tried had come to nothing.
            self._void.remove(producer)
        self._await_markers()
        return StagedCommit(epoch, parts_of(attached.parts), False)

    def last_epoch(self) -> int | None:
        """The epoch that was committed last; None: none for as long as the coordinator remembers
        (`transactional.id.expiration.ms`, seven days)."""
        return _application_epoch(self._described())

    def abort(self, objects: Iterable[StagedObject]) -> int:
        """Aborts the writer's open transaction, and drops objects that were not attached.

        Errors: those of a call. After one the transaction may be open: abort again, or
        `initialise`; else the coordinator aborts it when its time is over.
        """
        producer = self._initialised("abort()")
        if producer in self._void or _is_open(self._described(), producer):
            self._abort_transaction(producer)
        staged = list(objects)
        return sum(self._drop(staged, one) for one in {producer, self.producer, *self._void})

    def drop(self, objects: Iterable[StagedObject]) -> int:
        """Drops objects that were not attached; the driver's transaction goes on."""
        return self._drop(objects, self._initialised("drop()"))

    def _initialised(self, call: str) -> ProducerIdentity:
        """Errors: InvalidTxnState."""
        if self.producer == NO_IDENTITY:
            raise InvalidTxnState(
                f"{call} needs the producer id of writer {self.writer_id}: call initialise() once, "
                "and give what it returns to the writers of the tasks"
            )
        return self.producer

    def _begun_text(self) -> str:
        if self._begun_epoch is None:
            return "an epoch that another driver began"
        return f"epoch {self._begun_epoch}"

    def _end_transaction(self, producer: ProducerIdentity, epoch: int) -> None:
        """Decides the commit. Errors: OutcomeUnknown, Fenced."""
        call = end_transaction(
            self.writer_id, producer, is_commit=True, keeps_epoch=True, application_epoch=epoch
        )
        try:
            self._repeated(call)
        except (OutcomeUnknown, Fenced):
            raise
        except StreamlogError as error:
            raise OutcomeUnknown(
                f"the objects of epoch {epoch} are attached to the open transaction of writer "
                f"{self.writer_id}, which was not ended: {error.message}. Commit the same epoch "
                "again, or abort it",
                **error.fields,
            ) from error

    def _abort_transaction(self, producer: ProducerIdentity) -> None:
        """What is staged for the producer's epoch is void. A repetition gives the same answer.

        Errors: those of a call that may be repeated.
        """
        if producer not in self._void:
            self._void.append(producer)
        self.producer = self._repeated(end_transaction(self.writer_id, producer, is_commit=False))

    def _try_to_abort(self, producer: ProducerIdentity) -> None:
        """What fails is logged: no other epoch is committed while the transaction is open."""
        try:
            self._abort_transaction(producer)
        except StreamlogError as error:
            log.warning("the transaction of writer %s is left to expire: %s", self.writer_id, error)

    def _await_markers(self) -> None:
        """Returns when the commit is shown, or at the end of the time: it is decided all the same,
        and shown as soon as the leaders of its partitions are there."""
        retry = Retry(self._caller, self._timeout_ms, first_ms=ENDING_WAIT_MS)
        while True:
            try:
                found = self._described()
                if found is None or found.state not in _ENDING:
                    return
                wait_s = retry.wait_s(ConcurrentTransactions("markers are being written"))
            except StreamlogError as error:
                log.warning(
                    "the commit of writer %s is decided, and may not be shown in all partitions "
                    "yet: %s",
                    self.writer_id,
                    error,
                )
                return
            time.sleep(wait_s)

    def _described(self) -> Transaction | None:
        """None: the coordinator knows nothing of the id. Errors: those of a call."""
        retry = Retry(self._caller, self._timeout_ms, first_ms=ENDING_WAIT_MS)
        call = describe_transactions([self.writer_id])
        while True:
            try:
                (found,) = self._caller.run_once(call, retry.left_s() * 1000)
                if isinstance(found, StreamlogError):
                    raise found
                assert isinstance(found, Transaction)
                return found
            except TransactionalIdNotFound:
                return None
            except StreamlogError as error:
                wait_s = retry.wait_s(error)
            time.sleep(wait_s)


def _is_open(found: Transaction | None, producer: ProducerIdentity) -> bool:
    if found is None or found.state != STATES["ongoing"]:
        return False
    return (found.producer_id, found.producer_epoch) == producer


def _application_epoch(found: Transaction | None) -> int | None:
    if found is None or not found.HasField("application_epoch"):
        return None
    return found.application_epoch


def _of_producer(data: Buffer, producer: ProducerIdentity) -> bytes:
    """The batches, as a part of the producer's transaction. Errors: CorruptMessage."""
    batches = scan(data, verify_crc=False)
    return b"".join([with_transaction(batch.view, *producer) for batch in batches])
