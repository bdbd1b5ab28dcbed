"""Every error of streamlog has a code of Kafka's, and clients retry what passes by itself."""

from __future__ import annotations

import pytest

from streamlog import errors
from streamlog.kafka.protocol.errors import CODES, KafkaError, answer_to, code_of
from streamlog.kafka.protocol.primitives import Malformed

RETRIED_IN_PRODUCE_AND_FETCH = {
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.NOT_LEADER_OR_FOLLOWER,
    KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.INCONSISTENT_TOPIC_ID,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
}
RETRIED_WHERE_THEY_OCCUR = {
    # Of Produce, where the bytes changed on their way.
    errors.CorruptMessage: KafkaError.CORRUPT_MESSAGE,
    # Of calls with a deadline of their own: Java's and franz-go's RetriableException.
    errors.DeadlinePassed: KafkaError.REQUEST_TIMED_OUT,
    # Of Create, Delete and CreatePartitions.
    errors.QuotaExceeded: KafkaError.THROTTLING_QUOTA_EXCEEDED,
    # Of calls to a coordinator; Produce has other codes for them.
    errors.NotCoordinator: KafkaError.NOT_COORDINATOR,
    errors.CoordinatorLoadInProgress: KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    errors.CoordinatorNotAvailable: KafkaError.COORDINATOR_NOT_AVAILABLE,
    errors.ConcurrentTransactions: KafkaError.CONCURRENT_TRANSACTIONS,
}
"""Retryable errors whose codes not every API's clients retry."""
every_error = pytest.mark.parametrize("error", errors.by_name().values(), ids=lambda e: e.__name__)


@every_error
def test_every_error_has_a_code_of_its_own_entry(error: type[errors.StreamlogError]) -> None:
    assert error in CODES
    assert code_of(error("what happened")) is CODES[error]


def test_the_table_has_nothing_else() -> None:
    assert CODES.keys() == set(errors.by_name().values())


@every_error
def test_kafkas_own_numbers_are_kept(error: type[errors.StreamlogError]) -> None:
    """Where an error carries a number of Kafka's for itself, that is the code on the wire."""
    own = error.__dict__.get("code")
    if own is not None and own < 10_000 and error is not errors.StreamlogError:
        assert CODES[error] == own


@every_error
def test_retryable_errors_have_codes_that_clients_retry(error: type[errors.StreamlogError]) -> None:
    if error in RETRIED_WHERE_THEY_OCCUR:
        assert CODES[error] is RETRIED_WHERE_THEY_OCCUR[error]
    elif error.is_retryable:
        assert CODES[error] in RETRIED_IN_PRODUCE_AND_FETCH


@pytest.mark.parametrize("error", [errors.DiskFull, errors.StoreUnavailable, errors.StreamFenced])
def test_what_may_have_been_written_is_not_called_unwritten(
    error: type[errors.StreamlogError],
) -> None:
    """librdkafka tells its application so of KAFKA_STORAGE_ERROR and NOT_LEADER_OR_FOLLOWER."""
    raised = error("the group may be found at the next start")
    raised.has_no_side_effects = False
    assert code_of(raised) is KafkaError.REQUEST_TIMED_OUT


def test_an_error_from_elsewhere_has_its_bases_code() -> None:
    answer = answer_to(Malformed("3 bytes follow"))
    assert answer.code is KafkaError.INVALID_REQUEST
    assert answer.message == "3 bytes follow"


def test_numbers_agree_with_the_error_tree() -> None:
    for code in errors.ErrorCode:
        if code < 10_000:
            assert KafkaError[code.name].value == code.value
