"""Records of the transaction log: Kafka's bytes, both ways, and damage."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as some

from streamlog.coordinator.api import TransactionState
from streamlog.coordinator.transactions.records import (
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from streamlog.coordinator.transactions.state import NONE, Transaction
from streamlog.errors import Corrupt, StreamlogError, UnsupportedVersion
from streamlog.model.partition import TopicPartition
from tests.coordinator.kafkas_records import BEGUN, KEY, WRITTEN_BY_KAFKA


@pytest.mark.parametrize("written", WRITTEN_BY_KAFKA)
def test_records_have_kafkas_bytes(written: str) -> None:
    transaction = WRITTEN_BY_KAFKA[written]
    assert encode_key("tx-ü").hex() == KEY
    assert encode_value(transaction).hex() == written
    assert decode_key(bytes.fromhex(KEY)) == "tx-ü"
    assert decode_value("tx-ü", bytes.fromhex(written)) == transaction


def test_what_kafka_forgets_has_a_tag_of_its_own() -> None:
    known = Transaction(
        "t", 7, 6, 60_000, 1, last_producer_epoch=5, previous_producer_id=3, next_producer_id=9
    )
    value = encode_value(known)
    assert value.hex().endswith("03" "0008" "0000000000000003" "0108" "0000000000000009"
                                "904e02" "0005")  # fmt: skip
    assert decode_value("t", value) == known


def test_an_applications_epoch_has_a_tag_of_its_own() -> None:
    known = Transaction("t", 7, 6, 60_000, 1, application_epoch=258)
    value = encode_value(known)
    assert value.hex().endswith("01914e080000000000000102")
    assert decode_value("t", value) == known


def test_version_0_is_read() -> None:
    known = Transaction("tx", 7, 5, 60_000, 2000, *BEGUN)
    assert decode_value("tx", encode_value(known, 0)) == known


numbers = some.integers(0, (1 << 63) - 1)
epochs = some.integers(-1, (1 << 15) - 1)
stored = some.sampled_from(sorted(set(TransactionState) - {6, 7}))
partitions = some.frozensets(
    some.builds(TopicPartition, some.text("ab.", min_size=1), some.integers(0, (1 << 31) - 1))
)
transactions: some.SearchStrategy[Transaction] = some.builds(
    Transaction,
    some.text(max_size=20).filter(lambda text: text.isprintable()),
    numbers,
    epochs,
    some.integers(1, (1 << 31) - 1),
    numbers,
    stored,
    partitions,
    some.one_of(some.just(NONE), numbers),
    epochs,
    some.one_of(some.just(NONE), numbers),
    some.one_of(some.just(NONE), numbers),
    some.integers(0, 2),
    some.one_of(some.just(NONE), numbers),
).filter(lambda one: one.state is not TransactionState.EMPTY or not one.partitions)


@given(transactions)
def test_a_record_holds_the_whole_state(known: Transaction) -> None:
    key = encode_key(known.transactional_id)
    assert decode_key(key) == known.transactional_id
    assert decode_value(known.transactional_id, encode_value(known)) == known


@given(transactions, some.data())
def test_damage_is_found_or_changes_nothing_else(known: Transaction, data: some.DataObject) -> None:
    value = bytearray(encode_value(known))
    place = data.draw(some.integers(0, len(value) - 1))
    value[place] ^= 1 << data.draw(some.integers(0, 7))
    cut = value[: data.draw(some.integers(0, len(value)))]
    for damaged in (value, cut):
        with suppress(Corrupt, UnsupportedVersion):
            assert decode_value("tx", bytes(damaged)).transactional_id == "tx"


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda: decode_key(b"\0"), Corrupt),
        (lambda: decode_key(None), Corrupt),
        (lambda: decode_key(bytes.fromhex(KEY) + b"x"), Corrupt),
        (lambda: decode_value("t", b"\0\2rest"), UnsupportedVersion),
        (lambda: decode_value("t", encode_value(Transaction("t", 1, 1, 1, 1)) + b"x"), Corrupt),
        (
            lambda: decode_value(
                "t", encode_value(Transaction("t", 1, 1, 1, 1, TransactionState.DEAD))
            ),
            Corrupt,
        ),
    ],
)
def test_what_is_no_record_is_refused(
    read: Callable[[], object], error: type[StreamlogError]
) -> None:
    with pytest.raises(error):
        read()


def test_a_key_of_a_later_version_is_passed_over() -> None:
    assert decode_key(b"\0\1anything") is None
