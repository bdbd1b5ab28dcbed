"""Kafka's records of the transaction log: a transactional id's state as key and value.

    key    int16 0, then TransactionLogKey version 0
    value  int16 version, then TransactionLogValue of it: 1 is written, 0 and 1 are read;
           null: the id is forgotten

Kafka's readers take what is written here; one of streamlog's tags is unknown to them, and skipped.
Source: Kafka's TransactionLog.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from struct import Struct

from streamlog.coordinator.api import TransactionState
from streamlog.coordinator.transactions.state import Transaction
from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.kafka.protocol.primitives import Malformed, Structure
from streamlog.kafka.records import transaction_log_key, transaction_log_value
from streamlog.kafka.records.transaction_log_key import TransactionLogKey
from streamlog.kafka.records.transaction_log_value import PartitionsSchema, TransactionLogValue
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer

KEY_VERSION = 0
VALUE_VERSION = 1
VALUE_VERSIONS = (0, 1)
_VERSION = Struct(">h")
_STORED = frozenset(TransactionState) - {
    TransactionState.DEAD,
    TransactionState.PREPARE_EPOCH_FENCE,
}


def encode_key(transactional_id: str) -> bytes:
    key = TransactionLogKey(transactional_id=transactional_id)
    return _prefixed(KEY_VERSION, transaction_log_key.encode(key, KEY_VERSION))


def encode_value(transaction: Transaction, version: int = VALUE_VERSION) -> bytes:
    is_empty = transaction.state is TransactionState.EMPTY
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None if is_empty else _by_topic(transaction.partitions),
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.client_version,
        last_producer_epoch=transaction.last_producer_epoch,
        application_epoch=transaction.application_epoch,
    )
    return _prefixed(version, transaction_log_value.encode(value, version))


def decode_key(key: Buffer | None) -> str | None:
    """The transactional id; None: another kind of record, which a later version writes.

    Errors: Corrupt.
    """
    view = memoryview(b"" if key is None else key)
    if _version_of(view, "key") != KEY_VERSION:
        return None
    try:
        decoded, end = transaction_log_key.decode(view, _VERSION.size, KEY_VERSION)
    except Malformed as error:
        raise _corrupt("key", str(error)) from error
    _check_whole(decoded, end, view, "key")
    return decoded.transactional_id


def decode_value(transactional_id: str, value: Buffer) -> Transaction:
    """Errors: Corrupt, UnsupportedVersion."""
    view = memoryview(value)
    version = _version_of(view, "value")
    if version not in VALUE_VERSIONS:
        raise UnsupportedVersion(
            f"a record of the transaction log has version {version}, this program knows "
            f"{VALUE_VERSION}; use the program that wrote it, or a newer one",
            found=version,
            supported=VALUE_VERSION,
        )
    try:
        decoded, end = transaction_log_value.decode(view, _VERSION.size, version)
    except Malformed as error:
        raise _corrupt("value", str(error)) from error
    _check_whole(decoded, end, view, "value")
    if decoded.transaction_status not in _STORED:
        raise _corrupt("value", f"the state {decoded.transaction_status} is never stored")
    return Transaction(
        transactional_id,
        decoded.producer_id,
        decoded.producer_epoch,
        decoded.transaction_timeout_ms,
        decoded.transaction_last_update_timestamp_ms,
        TransactionState(decoded.transaction_status),
        _partitions(decoded.transaction_partitions or ()),
        decoded.transaction_start_timestamp_ms,
        decoded.last_producer_epoch,
        decoded.previous_producer_id,
        decoded.next_producer_id,
        decoded.client_transaction_version,
        decoded.application_epoch,
    )


def _by_topic(partitions: frozenset[TopicPartition]) -> list[PartitionsSchema]:
    numbers: dict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        numbers[topic].append(number)
    return [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in numbers.items()]


def _partitions(topics: Sequence[PartitionsSchema]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(one.topic, number) for one in topics for number in one.partition_ids
    )


def _prefixed(version: int, pieces: Sequence[Buffer]) -> bytes:
    return b"".join((_VERSION.pack(version), *pieces))


def _version_of(view: memoryview, part: str) -> int:
    if len(view) < _VERSION.size:
        raise _corrupt(part, "it has no version")
    return int(_VERSION.unpack_from(view)[0])


def _check_whole(decoded: Structure, end: int, view: memoryview, part: str) -> None:
    if end != len(view):
        raise _corrupt(part, f"{len(view) - end} bytes follow {type(decoded).__name__}")


def _corrupt(part: str, fault: str) -> Corrupt:
    return Corrupt(f"the {part} of a record of the transaction log cannot be read: {fault}")
