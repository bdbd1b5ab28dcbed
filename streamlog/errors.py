"""Every error that streamlog raises, sorted by what the caller does about it.

`*`: retryable, that is, the same call may succeed later without a change (`is_retryable`).

    StreamlogError
    ├── Unavailable*                   retry later: nothing is wrong with the call
    │   ├── StoreUnavailable*
    │   ├── MetadataUnavailable*
    │   ├── Overloaded*
    │   ├── DiskFull*
    │   ├── OffsetNotAvailable*
    │   ├── NotLeader*                 retry at the leader
    │   ├── NotCoordinator*            look for the coordinator again
    │   ├── CoordinatorLoadInProgress*
    │   ├── CoordinatorNotAvailable*
    │   ├── ConcurrentTransactions*    the transactional id's last transaction is still ending
    │   ├── TlsHandshakeFailed*        mend the certificates or the TLS settings of one side
    │   └── Closed*                    retry at another node, or open again
    ├── Conflict                       refresh what you know, then retry with that
    │   ├── OffsetConflict
    │   ├── TokenMismatch
    │   ├── AlreadyExists
    │   │   └── TopicAlreadyExists
    │   └── ValueConflict
    ├── Fenced                         stop; reopen with a newer epoch
    │   ├── StreamFenced
    │   ├── TenureFenced
    │   ├── LineageFenced
    │   ├── ProducerFenced
    │   ├── TransactionalIdFenced      a newer instance has the transactional id: stop this one
    │   ├── CoordinatorFenced          a newer coordinator has the producer: stop this one
    │   └── EpochFenced
    ├── Invalid                        fix the call
    │   ├── OffsetOutOfRange
    │   ├── InvalidRecord
    │   ├── CorruptMessage*            send it again: bytes were changed on their way
    │   ├── InvalidTimestamp
    │   ├── MessageTooLarge            split it
    │   │   └── RecordListTooLarge
    │   ├── OutOfOrderSequence
    │   ├── InvalidTxnState
    │   ├── TransactionAbortable       abort the transaction, then begin anew
    │   ├── InvalidProducerIdMapping   initialise the producer again
    │   ├── InvalidTransactionTimeout
    │   ├── PolicyViolation
    │   ├── InvalidName
    │   ├── InvalidPartitions
    │   ├── InvalidConfig
    │   ├── UnsupportedVersion
    │   ├── UnknownLeaderEpoch*        retry until the node has caught up
    │   ├── RevisionCompacted
    │   ├── DeadlinePassed*            retry with more time
    │   └── NotFound                   fix the name
    │       ├── StreamNotFound
    │       ├── UnknownTopicOrPartition*   retry once it is created
    │       │   ├── UnknownTopicId*        look the topic up again
    │       │   └── InconsistentTopicId*   look the topic up again
    │       ├── KeyNotFound
    │       ├── ObjectNotFound
    │       ├── StagedNotFound
    │       └── TransactionalIdNotFound
    ├── QuotaExceeded*                 wait `retry_after_ms`
    ├── Unauthorized                   ask for permission
    ├── OutcomeUnknown                 it may have happened: retry only idempotently
    ├── WalPending                     the data is on another node's disk
    ├── DataInUse                      this process must not touch that data
    ├── ForeignCluster                 this process must not touch that data
    ├── StoreUntrusted                 the store breaks its contract: use another, or reconfigure it
    ├── Corrupt                        alarm: stored bytes are wrong (object key and byte range)
    └── Internal                       a bug here

`code` is Kafka's number (and its name) where Kafka has the error; numbers from 10000 on are
streamlog's own. `fields` holds the typed values; they travel over gRPC, and the client raises the
error with the same ones.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ErrorCode(IntEnum):
    """Kafka's numbers where Kafka has the error; numbers from 10000 on are streamlog's own."""

    NONE = 0
    UNKNOWN_SERVER_ERROR = -1
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    TOPIC_AUTHORIZATION_FAILED = 29
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    KAFKA_STORAGE_ERROR = 56
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    TRANSACTION_ABORTABLE = 120
    # streamlog's own
    UNAVAILABLE = 10000
    STORE_UNAVAILABLE = 10001
    METADATA_UNAVAILABLE = 10002
    OVERLOADED = 10003
    DISK_FULL = 10004
    CLOSED = 10005
    OFFSET_CONFLICT = 10010
    TOKEN_MISMATCH = 10011
    ALREADY_EXISTS = 10012
    VALUE_CONFLICT = 10013
    STREAM_FENCED = 10020
    TENURE_FENCED = 10021
    LINEAGE_FENCED = 10022
    INVALID_NAME = 10030
    STREAM_NOT_FOUND = 10031
    KEY_NOT_FOUND = 10032
    OBJECT_NOT_FOUND = 10033
    REVISION_COMPACTED = 10034
    STAGED_NOT_FOUND = 10035
    OUTCOME_UNKNOWN = 10040
    WAL_PENDING = 10041
    DATA_IN_USE = 10042
    FOREIGN_CLUSTER = 10043
    CORRUPT = 10050


Field = str | int | bool


class StreamlogError(Exception):
    """Root of the tree. `str(error)` says what happened and what to do."""

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    is_retryable: ClassVar[bool] = False
    """The same call may succeed later without a change."""
    has_no_side_effects: bool = True
    """False where the call, or a part of it, may have taken effect."""

    def __init__(self, message: str, **fields: Field) -> None:
        super().__init__(message)
        self.message = message
        self.fields: dict[str, Field] = fields

    def __getattr__(self, name: str) -> Field:
        try:
            return self.__dict__["fields"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None


class Unavailable(StreamlogError):
    """A part that the call needs does not answer; retry with back-off."""

    code = ErrorCode.UNAVAILABLE
    is_retryable = True


class StoreUnavailable(Unavailable):
    """The object store failed or timed out. Field: `operation`."""

    code = ErrorCode.STORE_UNAVAILABLE


class MetadataUnavailable(Unavailable):
    """The metadata store failed or timed out."""

    code = ErrorCode.METADATA_UNAVAILABLE


class Overloaded(Unavailable):
    """The byte bound stayed reached until the deadline. Fields: `queued_bytes`, `bound_bytes`."""

    code = ErrorCode.OVERLOADED


class DiskFull(Unavailable):
    """A local disk has no room. Field: `path`."""

    code = ErrorCode.DISK_FULL


class OffsetNotAvailable(Unavailable):
    """The offset exists at the leader but is not committed, or not known here yet."""

    code = ErrorCode.OFFSET_NOT_AVAILABLE


class NotLeader(Unavailable):
    """Another node leads the partition. Fields: `leader_node`, `leader_epoch` where known."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class NotCoordinator(Unavailable):
    """Another node coordinates the transactional id, or none does now; look it up again."""

    code = ErrorCode.NOT_COORDINATOR


class CoordinatorLoadInProgress(Unavailable):
    """The coordinator's partition is being replayed; retry with back-off."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class CoordinatorNotAvailable(Unavailable):
    """The coordinator cannot write its log now; retry with back-off."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class ConcurrentTransactions(Unavailable):
    """The last transaction of the transactional id is still being ended; retry with back-off."""

    code = ErrorCode.CONCURRENT_TRANSACTIONS


class TlsHandshakeFailed(Unavailable):
    """No connection by TLS: settings or certificates of one side have to change.

    Field: `reason` (untrusted, expired, host_mismatch, plaintext_server, tls_server,
    certificate_required, certificate_refused, other). A single call ends at once; producers and
    consumers go on trying, since certificates are replaced under way.
    """


class Closed(Unavailable):
    """The engine, stream or client was closed."""

    code = ErrorCode.CLOSED


class Conflict(StreamlogError):
    """The state is not the one that the call expected; refresh, then retry."""


class OffsetConflict(Conflict):
    """`expected_next_offset` is not the tail. Fields: `expected`, `actual`."""

    code = ErrorCode.OFFSET_CONFLICT


class TokenMismatch(Conflict):
    """The stream or log has another fencing token. A log tells the tokens: `expected`, `actual`."""

    code = ErrorCode.TOKEN_MISMATCH


class AlreadyExists(Conflict):
    """The name is in use."""

    code = ErrorCode.ALREADY_EXISTS


class TopicAlreadyExists(AlreadyExists):
    """A topic of that name exists."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS


class ValueConflict(Conflict):
    """A compare-and-set found another value or revision."""

    code = ErrorCode.VALUE_CONFLICT


class Fenced(StreamlogError):
    """A newer owner exists; stop and reopen."""

    code = ErrorCode.STREAM_FENCED
    is_logged: bool = False
    """The log has this error already."""


class StreamFenced(Fenced):
    """The stream was opened with a higher epoch. Fields: `stream_id`, `epoch`."""


class TenureFenced(Fenced):
    """This process was sealed; it must stop writing for good."""

    code = ErrorCode.TENURE_FENCED


class LineageFenced(Fenced):
    """A recover or restore made newer metadata for the same bucket; this one must stop for good.

    Fields: `store_lineage`, `meta_lineage`.
    """

    code = ErrorCode.LINEAGE_FENCED


class ProducerFenced(Fenced):
    """A newer epoch of the same producer exists."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class TransactionalIdFenced(Fenced):
    """A newer instance took the transactional id over. Fields: `producer_id`, `expected`."""

    code = ErrorCode.PRODUCER_FENCED


class CoordinatorFenced(Fenced):
    """A marker comes from an older coordinator. Fields: `expected`, `actual` (epochs)."""

    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class EpochFenced(Fenced):
    """The caller's leader epoch is older than this node's."""

    code = ErrorCode.FENCED_LEADER_EPOCH


class Invalid(StreamlogError):
    """The call is wrong; fix it."""

    code = ErrorCode.INVALID_REQUEST


class OffsetOutOfRange(Invalid):
    """Fields: `offset`, `start_offset` (inclusive), `end_offset` (exclusive)."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class InvalidRecord(Invalid):
    """A record batch breaks a rule of the format. Field: `record_index` of the record at fault."""

    code = ErrorCode.INVALID_RECORD


class CorruptMessage(Invalid):
    """A record batch from a client fails its CRC or cannot be parsed."""

    code = ErrorCode.CORRUPT_MESSAGE
    is_retryable = True


class InvalidTimestamp(Invalid):
    """A timestamp is outside the topic's limits. Field: `record_index`."""

    code = ErrorCode.INVALID_TIMESTAMP


class MessageTooLarge(Invalid):
    """The message is above a bound: split it. Fields: `size_bytes`, `max_bytes` (the bound)."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class RecordListTooLarge(MessageTooLarge):
    """The batch is larger than a segment: split it. Fields: those of MessageTooLarge."""

    code = ErrorCode.RECORD_LIST_TOO_LARGE


class OutOfOrderSequence(Invalid):
    """A gap in an idempotent producer's sequence. Fields: `producer_id`, `expected`, `actual`."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidTxnState(Invalid):
    """The producer's transaction does not allow the call."""

    code = ErrorCode.INVALID_TXN_STATE


class TransactionAbortable(Invalid):
    """The transaction cannot be committed any more: abort it, then begin anew."""

    code = ErrorCode.TRANSACTION_ABORTABLE


class InvalidProducerIdMapping(Invalid):
    """The transactional id has another producer id, or none: initialise the producer again."""

    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class InvalidTransactionTimeout(Invalid):
    """The transaction's time-out is out of range. Field: `max_ms`."""

    code = ErrorCode.INVALID_TRANSACTION_TIMEOUT


class PolicyViolation(Invalid):
    """The topic's policy does not allow the call."""

    code = ErrorCode.POLICY_VIOLATION


class InvalidName(Invalid):
    """A topic, namespace or key name has characters or a length that are not allowed."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class InvalidPartitions(Invalid):
    """The partition count is out of range."""

    code = ErrorCode.INVALID_PARTITIONS


class InvalidConfig(Invalid):
    """Unknown setting or value out of range; the message names the nearest known one."""

    code = ErrorCode.INVALID_CONFIG


class UnsupportedVersion(Invalid):
    """The data was written by a newer version. Fields: `found`, `supported`."""

    code = ErrorCode.UNSUPPORTED_VERSION


class UnknownLeaderEpoch(Invalid):
    """The caller's leader epoch is newer than this node's."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH
    is_retryable = True


class RevisionCompacted(Invalid):
    """The revision is no longer held. Field: `oldest`."""

    code = ErrorCode.REVISION_COMPACTED


class DeadlinePassed(Invalid):
    """The deadline had passed before anything was done."""

    code = ErrorCode.REQUEST_TIMED_OUT
    is_retryable = True


class NotFound(Invalid):
    """No object of that name exists."""


class StreamNotFound(NotFound):
    """Field: `stream_id`."""

    code = ErrorCode.STREAM_NOT_FOUND


class UnknownTopicOrPartition(NotFound):
    """Fields: `topic`, `partition`."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    is_retryable = True


class UnknownTopicId(UnknownTopicOrPartition):
    """The topic with the caller's id was deleted. Fields: `topic`, `topic_id`."""

    code = ErrorCode.UNKNOWN_TOPIC_ID


class InconsistentTopicId(UnknownTopicOrPartition):
    """The topic with the caller's id was deleted, and a new topic has its name.

    Fields: `topic`, `topic_id` (the caller's), `current_topic_id`.
    """

    code = ErrorCode.INCONSISTENT_TOPIC_ID


class KeyNotFound(NotFound):
    """Fields: `namespace`, `key`."""

    code = ErrorCode.KEY_NOT_FOUND


class ObjectNotFound(NotFound):
    """Field: `object_key`."""

    code = ErrorCode.OBJECT_NOT_FOUND


class StagedNotFound(NotFound):
    """The staged object has expired, was dropped, or is another writer's: stage it again."""

    code = ErrorCode.STAGED_NOT_FOUND


class TransactionalIdNotFound(NotFound):
    """No transaction is known under the id. Field: `transactional_id`."""

    code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


class QuotaExceeded(StreamlogError):
    """Field: `retry_after_ms`."""

    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    is_retryable = True


class Unauthorized(StreamlogError):
    """The principal may not do this. Fields: `principal`, `resource`, `operation`."""

    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class OutcomeUnknown(StreamlogError):
    """The call may or may not have taken effect; an idempotent retry is safe."""

    code = ErrorCode.OUTCOME_UNKNOWN
    has_no_side_effects = False


class WalPending(StreamlogError):
    """Acknowledged bytes lie only in a write-ahead log that cannot be replayed here.

    It is another node's, or the metadata has other epochs of its streams.
    """

    code = ErrorCode.WAL_PENDING


class DataInUse(StreamlogError):
    """Another process holds the data folder. Fields: `path`, `pid`, `host`."""

    code = ErrorCode.DATA_IN_USE


class ForeignCluster(StreamlogError):
    """Store and metadata belong to different clusters. Fields: `store_cluster`, `meta_cluster`."""

    code = ErrorCode.FOREIGN_CLUSTER


class StoreUntrusted(StreamlogError):
    """The object store failed a check that the data's safety depends on.

    Field: `check`, the name that `doctor` gives it.
    """


class Corrupt(StreamlogError):
    """Stored bytes fail their check. Fields: `object_key`, `start`, `end` (bytes, exclusive)."""

    code = ErrorCode.CORRUPT


class Internal(StreamlogError):
    """A broken invariant: a bug in streamlog."""


def by_name() -> dict[str, type[StreamlogError]]:
    """Class name → class, for every error in this module."""
    classes: dict[str, type[StreamlogError]] = {}
    todo: list[type[StreamlogError]] = [StreamlogError]
    while todo:
        cls = todo.pop()
        if cls.__module__ == __name__:
            classes[cls.__name__] = cls
        todo.extend(cls.__subclasses__())
    return classes
