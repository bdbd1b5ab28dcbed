"""The checks of copies fail where they have to: each way of being wrong is found, and named."""

from __future__ import annotations

from tests.kafka_clients.kills.transactions.checks import (
    Finding,
    Kind,
    Read,
    Told,
    check_copy,
    check_ends,
    check_reader,
)

PARTITIONS = 2
COUNT = 4


def source() -> list[Read]:
    return [Read(0, offset, b"%d" % offset, None, "", "") for offset in range(COUNT)]


def told() -> Told:
    """Two transactions of two records each; a third was aborted."""
    return Told({"a", "b", "c"}, {"a", "b"}, {"a", "b"}, {"c"})


def copy(original: int, offset: int, transaction: str) -> Read:
    partition = original % PARTITIONS
    return Read(partition, offset, b"%d" % original, (0, original), "copier", transaction)


def marker(partition: int, offset: int, transaction: str) -> Read:
    return Read(partition, offset, f"{transaction} 2 2".encode(), None, "", transaction)


def copied() -> list[Read]:
    """Each transaction has a record and a marker in both partitions."""
    return [
        *(copy(0, 0, "a"), copy(1, 0, "a"), marker(0, 1, "a"), marker(1, 1, "a")),
        *(copy(2, 3, "b"), copy(3, 3, "b"), marker(0, 4, "b"), marker(1, 4, "b")),
    ]


def kinds(records: list[Read], said: Told | None = None) -> list[Kind]:
    return [one.kind for one in check_copy(source(), records, said or told())]


def test_a_good_copy_has_no_findings() -> None:
    assert kinds(copied()) == []


def test_a_committed_transaction_that_is_not_there_is_found() -> None:
    found = check_copy(source(), copied()[:4], told())
    assert found == [
        Finding(Kind.LOST, "(0, 2) was not copied"),
        Finding(Kind.LOST, "(0, 3) was not copied"),
        Finding(Kind.LOST, "b was told as committed"),
    ]


def test_a_transaction_without_one_of_its_partitions_is_torn() -> None:
    found = check_copy(source(), [one for one in copied() if one[:2] != (1, 4)], told())
    assert found == [Finding(Kind.TORN, "b has 2 of 2 records, 1 of 2 markers")]


def test_a_transaction_without_its_markers_is_torn() -> None:
    records = [one for one in copied() if one[:2] not in ((0, 4), (1, 4))]
    assert Finding(Kind.TORN, "b has 2 records, and no marker") in check_copy(
        source(), records, told()
    )


def test_a_missing_record_is_torn_and_lost() -> None:
    assert kinds([one for one in copied() if one[:2] != (1, 3)]) == [Kind.LOST, Kind.TORN]


def test_a_record_that_was_copied_twice_is_found() -> None:
    said = told()
    said.began.add("d")
    said.committing.add("d")
    again = [copy(2, 6, "d"), copy(3, 6, "d"), marker(0, 7, "d"), marker(1, 7, "d")]
    assert kinds([*copied(), *again], said) == [Kind.DOUBLED, Kind.DOUBLED]


def test_a_record_behind_its_follower_is_found() -> None:
    records = copied()
    first, later = records[0], records[4]
    records[0], records[4] = later._replace(offset=0), first._replace(offset=3)
    assert Kind.REORDERED in kinds(records)


def test_a_copy_with_another_value_is_found() -> None:
    records = copied()
    records[0] = records[0]._replace(value=b"7")
    assert kinds(records) == [Kind.CHANGED]


def test_a_copy_of_nothing_is_found() -> None:
    records = copied()
    records[5] = records[5]._replace(original=(0, 8))
    assert kinds(records) == [Kind.LOST, Kind.MADE_UP]


def test_a_transaction_that_nobody_began_is_found() -> None:
    said = told()
    said.began.discard("b")
    assert kinds(copied(), said) == [Kind.MADE_UP]


def test_an_aborted_transaction_that_is_seen_is_found() -> None:
    aborting = Told({"a", "b"}, {"a"}, {"a"}, set())
    assert kinds(copied(), aborting) == [Kind.ABORTED_SEEN]
    told_aborted = Told({"a", "b"}, {"a", "b"}, {"a"}, {"b"})
    assert kinds(copied(), told_aborted) == [Kind.ABORTED_SEEN]


def test_a_transaction_whose_commit_had_no_answer_may_be_there_or_not() -> None:
    said = Told({"a", "b"}, {"a", "b"}, {"a"}, set())
    assert kinds(copied(), said) == []
    assert check_copy(source()[:2], copied()[:4], said) == []


def test_a_reader_that_was_handed_something_else_is_found() -> None:
    assert check_reader(copied(), copied()) == []
    (less,) = check_reader(copied()[:-1], copied())
    (other,) = check_reader([one._replace(value=b"x") for one in copied()[:1]], copied()[:1])
    assert [less.kind, other.kind] == [Kind.READ_OTHERWISE] * 2


def test_an_end_that_is_held_back_is_found() -> None:
    assert check_ends("copy", {0: (5, 5), 1: (3, 5)}) == [
        Finding(Kind.HELD_BACK, "copy-1: stable to 3, written to 5")
    ]
