"""A typed error that crosses the wire keeps its class and its fields."""

from __future__ import annotations

import grpc
import pytest

from streamlog import errors
from streamlog.v1 import error_pb2
from streamlog.v1support import errors as wire

CLASSES = sorted(errors.by_name().values(), key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_round_trip_keeps_class_text_and_fields(cls: type[errors.StreamlogError]) -> None:
    error = cls("what happened; what to do", start_offset=-5, path="/ä", is_last=True)
    status = wire.to_status(error)
    back = wire.from_status(status.code, status.message, status.trailers, may_have_happened=True)
    assert type(back) is cls
    assert back.message == error.message
    assert back.fields == error.fields
    assert back.is_retryable == error.is_retryable
    assert back.has_no_side_effects == error.has_no_side_effects


def test_side_effects_of_one_error_travel() -> None:
    error = errors.Invalid("half of it was done")
    error.has_no_side_effects = False
    assert wire.from_proto(wire.to_proto(error)).has_no_side_effects is False


def test_every_code_is_in_the_proto() -> None:
    proto = {
        value.number: name for name, value in error_pb2.ErrorCode.DESCRIPTOR.values_by_name.items()
    }
    ours = {int(code): f"ERROR_CODE_{code.name}" for code in errors.ErrorCode}
    assert proto == ours


def test_numbers_below_10000_are_those_of_kafka() -> None:
    """The numbers of org.apache.kafka.common.protocol.Errors of Kafka 4.1."""
    kafka = {
        "NONE": 0,
        "UNKNOWN_SERVER_ERROR": -1,
        "OFFSET_OUT_OF_RANGE": 1,
        "CORRUPT_MESSAGE": 2,
        "UNKNOWN_TOPIC_OR_PARTITION": 3,
        "NOT_LEADER_OR_FOLLOWER": 6,
        "REQUEST_TIMED_OUT": 7,
        "MESSAGE_TOO_LARGE": 10,
        "COORDINATOR_LOAD_IN_PROGRESS": 14,
        "COORDINATOR_NOT_AVAILABLE": 15,
        "NOT_COORDINATOR": 16,
        "INVALID_TOPIC_EXCEPTION": 17,
        "RECORD_LIST_TOO_LARGE": 18,
        "TOPIC_AUTHORIZATION_FAILED": 29,
        "INVALID_TIMESTAMP": 32,
        "UNSUPPORTED_VERSION": 35,
        "TOPIC_ALREADY_EXISTS": 36,
        "INVALID_PARTITIONS": 37,
        "INVALID_CONFIG": 40,
        "INVALID_REQUEST": 42,
        "POLICY_VIOLATION": 44,
        "OUT_OF_ORDER_SEQUENCE_NUMBER": 45,
        "INVALID_PRODUCER_EPOCH": 47,
        "INVALID_TXN_STATE": 48,
        "INVALID_PRODUCER_ID_MAPPING": 49,
        "INVALID_TRANSACTION_TIMEOUT": 50,
        "CONCURRENT_TRANSACTIONS": 51,
        "TRANSACTION_COORDINATOR_FENCED": 52,
        "KAFKA_STORAGE_ERROR": 56,
        "FENCED_LEADER_EPOCH": 74,
        "UNKNOWN_LEADER_EPOCH": 75,
        "OFFSET_NOT_AVAILABLE": 78,
        "INVALID_RECORD": 87,
        "THROTTLING_QUOTA_EXCEEDED": 89,
        "PRODUCER_FENCED": 90,
        "UNKNOWN_TOPIC_ID": 100,
        "INCONSISTENT_TOPIC_ID": 103,
        "TRANSACTIONAL_ID_NOT_FOUND": 105,
        "TRANSACTION_ABORTABLE": 120,
    }
    assert {code.name: int(code) for code in errors.ErrorCode if code < 10_000} == kafka


@pytest.mark.parametrize("text", ["x" * 10_000, "ä" * 10_000, "\ud800" * 5_000])
def test_details_stay_under_4_kib(text: str) -> None:
    fields = {f"{index}{'n' * 500}": text for index in range(40)}
    error = errors.Invalid(text, **fields)
    status = wire.to_status(error)
    assert len(status.trailers[0][1]) < 4096
    assert len(status.message.encode()) <= 256
    wire.to_proto(error).SerializeToString()


def test_unknown_class_becomes_its_nearest_relative() -> None:
    proto = error_pb2.Error(code=error_pb2.ERROR_CODE_DISK_FULL, name="NotYetInvented", message="m")
    assert type(wire.from_proto(proto)) is errors.DiskFull
    proto = error_pb2.Error(code=31_000, name="NotYetInvented", message="m", is_retryable=True)  # type: ignore[arg-type]
    assert type(wire.from_proto(proto)) is errors.Unavailable


def test_a_bare_status_is_unknown_for_writes_and_unavailable_for_reads() -> None:
    for code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        assert isinstance(
            wire.from_status(code, "gone", (), may_have_happened=True), errors.OutcomeUnknown
        )
        assert isinstance(
            wire.from_status(code, "gone", (), may_have_happened=False), errors.Unavailable
        )
    unknown = wire.from_status(grpc.StatusCode.UNIMPLEMENTED, "", (), may_have_happened=True)
    assert isinstance(unknown, errors.UnsupportedVersion)
    assert "older version" in unknown.message
