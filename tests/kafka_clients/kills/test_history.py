"""The check of a history fails where it has to: each way of being wrong is found, and named."""

from __future__ import annotations

from tests.kafka_clients.kills.history import Finding, History, Kind, Place, check, check_reader

PARTITIONS = 2
SENT = 4


def told() -> History:
    """All records of one writer, acknowledged at the offsets of their numbers."""
    history = History("java", PARTITIONS, sent=SENT)
    for number in range(SENT):
        for partition in range(PARTITIONS):
            history.acknowledged.append(((partition, number), number))
    return history


def kept() -> dict[Place, bytes]:
    """What is stored where all is well."""
    return {
        (partition, number): b"java %d" % number
        for partition in range(PARTITIONS)
        for number in range(SENT)
    }


def test_a_history_without_faults_has_no_findings() -> None:
    assert check([told()], kept()) == []


def test_writers_may_stand_between_each_others_records() -> None:
    other = History("franz-go", PARTITIONS, 1, [((0, 0), 4), ((1, 0), 4)])
    stored = {**kept(), (0, 4): b"franz-go 0", (1, 4): b"franz-go 0"}
    assert check([told(), other], stored) == []


def test_a_lost_record_is_found() -> None:
    stored = kept()
    del stored[1, 3]
    lost = Finding(Kind.LOST, "java", "3 of partition 1, acknowledged at 3")
    assert check([told()], stored) == [lost]


def test_a_record_of_the_other_partition_does_not_stand_for_a_lost_one() -> None:
    stored = kept()
    stored[0, 4] = stored.pop((1, 3))
    assert [finding.kind for finding in check([told()], stored)] == [Kind.DOUBLED, Kind.LOST]


def test_a_doubled_record_is_found() -> None:
    stored = {**kept(), (0, 4): b"java 1"}
    doubled = Finding(Kind.DOUBLED, "java", "1 at offset 4 of partition 0 and at 1")
    assert check([told()], stored) == [doubled]


def test_a_record_that_is_doubled_without_an_acknowledgement_is_found() -> None:
    history = told()
    history.acknowledged.remove(((0, 3), 3))
    findings = check([history], {**kept(), (0, 4): b"java 3"})
    assert [finding.kind for finding in findings] == [Kind.DOUBLED, Kind.UNANSWERED]


def test_a_reordered_record_is_found_though_it_is_where_it_was_acknowledged() -> None:
    history, stored = told(), kept()
    stored[0, 1], stored[0, 2] = stored[0, 2], stored[0, 1]
    history.acknowledged.remove(((0, 1), 1))
    history.acknowledged.remove(((0, 2), 2))
    history.acknowledged += [((0, 1), 2), ((0, 2), 1)]
    reordered = Finding(Kind.REORDERED, "java", "1 at offset 2 of partition 0, behind 2")
    assert check([history], stored) == [reordered]


def test_a_record_at_another_offset_than_acknowledged_is_found() -> None:
    history = told()
    history.acknowledged.remove(((1, 3), 3))
    history.acknowledged.append(((1, 3), 7))
    elsewhere = Finding(Kind.ELSEWHERE, "java", "3 of partition 1, acknowledged at 7, is at [3]")
    assert check([history], kept()) == [elsewhere]


def test_a_record_that_nobody_sent_is_found() -> None:
    stored = {**kept(), (0, 4): b"java 4", (0, 5): b"go 0", (0, 6): b"", (0, 7): b"java x"}
    assert [finding.kind for finding in check([told()], stored)] == [Kind.UNSENT] * 4


def test_records_without_an_answer_with_two_and_with_an_error_are_found() -> None:
    history = told()
    history.acknowledged.remove(((0, 3), 3))
    history.acknowledged.append(((0, 0), 0))
    history.acknowledged.remove(((1, 3), 3))
    history.refused.append(((1, 3), "timed out"))
    assert check([history], kept()) == [
        Finding(Kind.REFUSED, "java", "3 of partition 1: timed out"),
        Finding(Kind.ANSWERED_TWICE, "java", "0 of partition 0, now with 0"),
        Finding(Kind.UNANSWERED, "java", "3 of partition 0"),
    ]


def test_a_consumer_that_was_handed_other_or_fewer_records_is_found() -> None:
    seen = {**kept(), (0, 1): b"java 9"}
    del seen[1, 3]
    assert check_reader("consumer", kept(), kept()) == []
    assert [finding.text for finding in check_reader("consumer", seen, kept())] == [
        "(0, 1): b'java 9', b'java 1'",
        "(1, 3): None, b'java 3'",
    ]
