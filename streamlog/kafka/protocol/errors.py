"""Kafka's error codes, and the one table from streamlog's errors to them.

The codes of errors that pass by themselves are chosen by what clients do with them, not by name
alone: a Java consumer stops for good at any code in a Fetch answer that it does not list, and
librdkafka gives a message up at most codes in a Produce answer. KAFKA_STORAGE_ERROR and
NOT_LEADER_OR_FOLLOWER are retried in both by Java, librdkafka and franz-go, after a look at the
metadata; REQUEST_TIMED_OUT is retried in Produce as "may have been written".
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from streamlog import errors


class KafkaError(IntEnum):
    """Every code of Kafka 4.1, by Kafka's name."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


CODES: dict[type[errors.StreamlogError], KafkaError] = {
    errors.StreamlogError: KafkaError.UNKNOWN_SERVER_ERROR,
    errors.Unavailable: KafkaError.KAFKA_STORAGE_ERROR,
    errors.StoreUnavailable: KafkaError.KAFKA_STORAGE_ERROR,
    errors.MetadataUnavailable: KafkaError.KAFKA_STORAGE_ERROR,
    errors.TlsHandshakeFailed: KafkaError.KAFKA_STORAGE_ERROR,
    errors.Overloaded: KafkaError.KAFKA_STORAGE_ERROR,
    errors.DiskFull: KafkaError.KAFKA_STORAGE_ERROR,
    errors.OffsetNotAvailable: KafkaError.OFFSET_NOT_AVAILABLE,
    errors.NotLeader: KafkaError.NOT_LEADER_OR_FOLLOWER,
    errors.NotCoordinator: KafkaError.NOT_COORDINATOR,
    errors.CoordinatorLoadInProgress: KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    errors.CoordinatorNotAvailable: KafkaError.COORDINATOR_NOT_AVAILABLE,
    errors.ConcurrentTransactions: KafkaError.CONCURRENT_TRANSACTIONS,
    # Of a partition that this node gives up: the client looks for the one that has it now.
    errors.Closed: KafkaError.NOT_LEADER_OR_FOLLOWER,
    errors.Conflict: KafkaError.INVALID_REQUEST,
    errors.OffsetConflict: KafkaError.INVALID_REQUEST,
    errors.TokenMismatch: KafkaError.INVALID_REQUEST,
    errors.AlreadyExists: KafkaError.DUPLICATE_RESOURCE,
    errors.TopicAlreadyExists: KafkaError.TOPIC_ALREADY_EXISTS,
    errors.ValueConflict: KafkaError.INVALID_REQUEST,
    # Another node owns the data now, so the client has to ask for the leader again.
    errors.Fenced: KafkaError.NOT_LEADER_OR_FOLLOWER,
    errors.StreamFenced: KafkaError.NOT_LEADER_OR_FOLLOWER,
    errors.TenureFenced: KafkaError.NOT_LEADER_OR_FOLLOWER,
    errors.LineageFenced: KafkaError.NOT_LEADER_OR_FOLLOWER,
    errors.ProducerFenced: KafkaError.INVALID_PRODUCER_EPOCH,
    errors.TransactionalIdFenced: KafkaError.PRODUCER_FENCED,
    errors.CoordinatorFenced: KafkaError.TRANSACTION_COORDINATOR_FENCED,
    errors.EpochFenced: KafkaError.FENCED_LEADER_EPOCH,
    errors.Invalid: KafkaError.INVALID_REQUEST,
    errors.OffsetOutOfRange: KafkaError.OFFSET_OUT_OF_RANGE,
    errors.InvalidRecord: KafkaError.INVALID_RECORD,
    errors.CorruptMessage: KafkaError.CORRUPT_MESSAGE,
    errors.InvalidTimestamp: KafkaError.INVALID_TIMESTAMP,
    errors.MessageTooLarge: KafkaError.MESSAGE_TOO_LARGE,
    errors.RecordListTooLarge: KafkaError.RECORD_LIST_TOO_LARGE,
    errors.OutOfOrderSequence: KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.InvalidTxnState: KafkaError.INVALID_TXN_STATE,
    errors.TransactionAbortable: KafkaError.TRANSACTION_ABORTABLE,
    errors.InvalidProducerIdMapping: KafkaError.INVALID_PRODUCER_ID_MAPPING,
    errors.InvalidTransactionTimeout: KafkaError.INVALID_TRANSACTION_TIMEOUT,
    errors.PolicyViolation: KafkaError.POLICY_VIOLATION,
    errors.InvalidName: KafkaError.INVALID_TOPIC_EXCEPTION,
    errors.InvalidPartitions: KafkaError.INVALID_PARTITIONS,
    errors.InvalidConfig: KafkaError.INVALID_CONFIG,
    errors.UnsupportedVersion: KafkaError.UNSUPPORTED_VERSION,
    errors.UnknownLeaderEpoch: KafkaError.UNKNOWN_LEADER_EPOCH,
    errors.RevisionCompacted: KafkaError.INVALID_REQUEST,
    errors.DeadlinePassed: KafkaError.REQUEST_TIMED_OUT,
    errors.NotFound: KafkaError.RESOURCE_NOT_FOUND,
    errors.StreamNotFound: KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
    errors.UnknownTopicOrPartition: KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
    errors.UnknownTopicId: KafkaError.UNKNOWN_TOPIC_ID,
    errors.InconsistentTopicId: KafkaError.INCONSISTENT_TOPIC_ID,
    errors.KeyNotFound: KafkaError.RESOURCE_NOT_FOUND,
    # Data that the metadata names is gone from the store: an alarm here, no retry helps there.
    errors.ObjectNotFound: KafkaError.UNKNOWN_SERVER_ERROR,
    errors.StagedNotFound: KafkaError.RESOURCE_NOT_FOUND,
    errors.TransactionalIdNotFound: KafkaError.TRANSACTIONAL_ID_NOT_FOUND,
    errors.QuotaExceeded: KafkaError.THROTTLING_QUOTA_EXCEEDED,
    errors.Unauthorized: KafkaError.TOPIC_AUTHORIZATION_FAILED,
    # Producers send again, and an idempotent one is answered as a duplicate if it was written.
    errors.OutcomeUnknown: KafkaError.REQUEST_TIMED_OUT,
    errors.WalPending: KafkaError.KAFKA_STORAGE_ERROR,
    errors.DataInUse: KafkaError.UNKNOWN_SERVER_ERROR,
    errors.ForeignCluster: KafkaError.UNKNOWN_SERVER_ERROR,
    errors.StoreUntrusted: KafkaError.UNKNOWN_SERVER_ERROR,
    # A consumer stops and shows it; a retriable code would hide it behind an endless loop.
    errors.Corrupt: KafkaError.CORRUPT_MESSAGE,
    errors.Internal: KafkaError.UNKNOWN_SERVER_ERROR,
}
"""Every class of `streamlog.errors`; a class from elsewhere has its nearest base's code."""


class ErrorAnswer(NamedTuple):
    code: KafkaError
    message: str
    """For the APIs that have a field for it: what happened and what to do."""


_NOTHING_WRITTEN = (KafkaError.KAFKA_STORAGE_ERROR, KafkaError.NOT_LEADER_OR_FOLLOWER)
"""Producers take these for "certainly not written"."""


def code_of(error: errors.StreamlogError) -> KafkaError:
    cls = next(cls for cls in type(error).__mro__ if cls in CODES)
    code = CODES[cls]
    if code in _NOTHING_WRITTEN and not error.has_no_side_effects:
        return KafkaError.REQUEST_TIMED_OUT
    return code


def answer_to(error: errors.StreamlogError) -> ErrorAnswer:
    return ErrorAnswer(code_of(error), error.message)
