"""Transactions on the command line: produce, consume, and `txn`."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamlog.cli.records.transactional_sender import TransactionalLineSender
from streamlog.client import Producer
from streamlog.demo.node import NodeProcess
from streamlog.errors import MessageTooLarge, StoreUnavailable, StreamlogError, TransactionAbortable
from tests.cli.conftest import Command
from tests.cli.started import start
from tests.client.fake_node import FakeNode
from tests.client.fake_transactions import CoordinatorFault, FakeTransactions, abort

Done = Callable[..., bytes]
WAIT_S = 30


def committed(done: Done, topic: str) -> bytes:
    return done("consume", topic, "--until-end", "--isolation", "read_committed")


def test_all_lines_are_committed_together(done: Done) -> None:
    done("topic", "create", "together", "--partitions", 3)
    told = json.loads(
        done("produce", "together", "--transactional-id", "job-1", "--json", stdin=b"a\nb\nc\n")
    )
    assert told == {"topic": "together", "records": 3, "bytes": 6, "transactions": 1}
    assert sorted(committed(done, "together").split()) == [b"a", b"b", b"c"]


def test_a_transaction_every_n_lines(done: Done) -> None:
    lines = b"".join(b"%d\n" % number for number in range(25))
    done("topic", "create", "every-ten", "--partitions", 1)
    told = json.loads(
        done(
            *("produce", "every-ten", "--transactional-id", "job-2", "--json"),
            *("--transaction-records", 10),
            stdin=lines,
        )
    )
    assert (told["records"], told["transactions"]) == (25, 3)
    assert committed(done, "every-ten") == lines
    description = json.loads(done("topic", "describe", "every-ten", "--json"))
    # 25 records and three markers.
    assert description["partitions"][0]["log_end_offset"] == 28


def test_an_empty_input_makes_no_transaction(done: Done) -> None:
    told = json.loads(done("produce", "nothing", "--transactional-id", "job-3", "--json"))
    assert (told["records"], told["transactions"]) == (0, 0)


def test_an_error_in_the_middle_aborts_and_says_what_is_committed(run: Command, done: Done) -> None:
    arguments = ["produce", "half", "--transactional-id", "job-4", "--key-separator", ":"]
    ended = run(*arguments, "--transaction-records", 2, stdin=b"a:1\nb:2\nc:3\nd\ne:5\n")
    assert ended.returncode == 1
    stderr = ended.stderr.decode()
    assert "line 4 has no separator" in stderr
    assert "the first 2 lines are committed; 1 more were sent, and none of these will" in stderr
    assert sorted(committed(done, "half").split()) == [b"1", b"2"]
    ended = run(*arguments, stdin=b"f:6\ng\n")
    assert "no line is committed, and none that was sent will be visible" in ended.stderr.decode()
    assert sorted(committed(done, "half").split()) == [b"1", b"2"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_aborts(
    done: Done, environment: dict[str, str], number: signal.Signals, code: int
) -> None:
    topic = f"interrupted-{number.name}"
    process = start(environment, "produce", topic, "--transactional-id", topic)
    assert process.stdin is not None
    process.stdin.write(b"line\n")
    process.stdin.flush()
    assert done("consume", topic, "--follow", "--count", 1) == b"line\n"
    process.send_signal(number)
    _, stderr = process.communicate(timeout=WAIT_S)
    assert process.returncode == code
    assert stderr.decode() == (
        f"streamlog: interrupted by {number.name}: no line is committed, and none that was sent "
        "will be visible\n"
    )
    assert committed(done, topic) == b""
    assert json.loads(done("txn", "describe", topic, "--json"))["open_ms"] is None


def test_read_committed_waits_behind_an_open_transaction_and_says_so(
    done: Done, environment: dict[str, str], node: NodeProcess
) -> None:
    done("topic", "create", "held", "--partitions", 1)
    with Producer(node.server, transactional_id="holding") as producer:
        producer.begin_transaction()
        producer.send("held", b"in it").result(WAIT_S)
        done("produce", "held", stdin=b"behind\n")
        assert committed(done, "held") == b""
        reading = start(environment, "consume", "held", "--isolation", "read_committed")
        assert reading.stderr is not None
        assert reading.stdout is not None
        told = [reading.stderr.readline(), reading.stderr.readline()]
        assert any(b"an open transaction holds back 2 offsets of held-0" in one for one in told)
        producer.commit_transaction()
        assert [reading.stdout.readline() for _ in range(2)] == [b"in it\n", b"behind\n"]
        reading.send_signal(signal.SIGINT)
        reading.communicate(timeout=WAIT_S)


def test_an_open_transaction_is_listed_described_and_aborted(
    run: Command, done: Done, node: NodeProcess
) -> None:
    done("topic", "create", "observed", "--partitions", 2)
    with Producer(
        node.server, transactional_id="observed", transaction_timeout_ms=9000
    ) as producer:
        producer.begin_transaction()
        for partition in range(2):
            producer.send("observed", b"v", partition=partition).result(WAIT_S)
        listed = ("txn", "list", "--state", "ongoing", "--pattern", "obser.*")
        (line,) = done(*listed, "--json").splitlines()
        found = json.loads(line)
        assert found["transactional_id"] == "observed"
        assert (found["state"], found["timeout_ms"]) == ("ongoing", 9000)
        assert found["partitions"] == {"observed": [0, 1]}
        assert found["open_ms"] >= 0
        producer_id = found["producer_id"]
        by_producer = done("txn", "list", "--producer-id", producer_id, "--json")
        assert json.loads(by_producer)["transactional_id"] == "observed"
        assert b"ongoing" in done(*listed)
        assert done(*listed, "--open-longer-than", "1h", "--json") == b""
        shown = done("txn", "describe", "observed").decode()
        assert "observed 0, 1" in shown
        assert "9 s" in shown
        ended = run("txn", "abort", "observed")
        assert ended.returncode == 0
        assert b"aborted; it was open for" in ended.stderr
        assert b"in 2 partitions" in ended.stderr
        with pytest.raises(TransactionAbortable):
            producer.commit_transaction()
    assert committed(done, "observed") == b""
    again = json.loads(done("txn", "abort", "observed", "--json"))
    assert again["aborted"] is False
    assert b"the producer is fenced" in run("txn", "abort", "observed").stderr


def test_a_long_id_does_not_widen_the_table(done: Done, environment: dict[str, str]) -> None:
    name = "long" + "x" * 32_000
    with Producer(environment["STREAMLOG_SERVER"], transactional_id=name) as producer:
        producer.begin_transaction()
        producer.abort_transaction()
    lines = done("txn", "list").decode().splitlines()
    assert any(line.startswith("longxxx") and "… " in line for line in lines)
    assert max(map(len, lines)) < 200
    listed = [json.loads(line) for line in done("txn", "list", "--json").splitlines()]
    assert name in [one["transactional_id"] for one in listed]


def test_a_list_without_entries_says_what_to_do(run: Command) -> None:
    ended = run("txn", "list", "--pattern", "no such id")
    assert (ended.returncode, ended.stdout) == (0, b"")
    assert b"no transactional id is as asked for" in ended.stderr
    assert run("txn", "list", "--pattern", "no such id", "--json").stdout == b""


def test_a_node_without_transactions_says_how_one_begins(tmp_path: Path, run: Command) -> None:
    node = NodeProcess(tmp_path / "data", wal="disk")
    node.start()
    try:
        ended = run("txn", "list", "--server", node.server)
        unknown = run("txn", "describe", "no-such-id", "--server", node.server)
    finally:
        node.stop()
    assert (ended.returncode, ended.stdout) == (0, b"")
    assert b"--transactional-id" in ended.stderr
    assert unknown.returncode == 1
    assert unknown.stderr.startswith(b"streamlog: TransactionalIdNotFound: ")


@pytest.mark.parametrize("verb", ["describe", "abort"])
def test_an_unknown_id_fails_with_a_hint(run: Command, verb: str) -> None:
    ended = run("txn", verb, "no-such-id")
    assert (ended.returncode, ended.stdout) == (1, b"")
    stderr = ended.stderr.decode()
    assert stderr.startswith("streamlog: TransactionalIdNotFound: ")
    assert "streamlog txn list" in stderr
    error = json.loads(run("txn", verb, "no-such-id", "--json").stderr)["error"]
    assert error["name"] == "TransactionalIdNotFound"


@pytest.mark.parametrize(
    "arguments",
    [
        ("txn", "list", "--state", "open"),
        ("txn", "list", "--open-longer-than", "soon"),
        ("txn", "list", "--open-longer-than", "-5s"),
        ("txn", "list", "--producer-id", "-1"),
        ("txn", "describe"),
        ("produce", "t", "--transaction-records", "5"),
        ("produce", "t", "--transactional-id", "x", "--transaction-records", "0"),
        ("produce", "t", "--transactional-id", "x", "--transaction-timeout", "soon"),
        ("consume", "t", "--isolation", "serializable"),
    ],
)
def test_wrong_usage_is_exit_code_2(run: Command, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).returncode == 2


def test_a_wrong_pattern_and_a_time_limit_that_is_too_long(run: Command) -> None:
    assert b"Invalid" in run("txn", "list", "--pattern", "(").stderr
    ended = run(
        "produce", "u", "--transactional-id", "x", "--transaction-timeout", "1w", stdin=b"v"
    )
    assert ended.returncode == 1
    assert b"InvalidTransactionTimeout" in ended.stderr


def test_a_node_that_is_away_behind_the_commit_is_no_error(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(_: FakeTransactions, request: Any, context: Any) -> None:
        abort(context, StoreUnavailable("away"))

    monkeypatch.setattr(FakeTransactions, "DescribeTransactions", describe)
    with FakeNode() as node:
        node.create("t")
        produce = ("produce", "t", "--transactional-id", "x", "--json", "--server", node.server)
        ended = run(*produce, "--timeout", 1, stdin=b"a\nb\n")
        assert node.committed_values("t") == [b"a", b"b"]
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["records"] == 2
    assert ended.stderr.startswith(b"the lines are committed, and some partitions may show them")


def test_a_signal_behind_the_commit_says_that_all_lines_are_committed(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked = threading.Event()

    def describe(transactions: FakeTransactions, request: Any, context: Any) -> None:
        is_asked.set()
        transactions.stopping.wait()

    monkeypatch.setattr(FakeTransactions, "DescribeTransactions", describe)
    with FakeNode() as node:
        node.create("t")
        produce = ("produce", "t", "--transactional-id", "x", "--server", node.server)
        with start(environment, *produce) as process:
            assert process.stdin is not None
            process.stdin.write(b"a\nb\n")
            process.stdin.close()
            assert is_asked.wait(WAIT_S)
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            told = process.stderr.read()
    assert process.returncode == 130
    assert told == b"streamlog: interrupted by SIGINT: the first 2 lines are committed\n"


# -- the sender alone


@pytest.fixture
def fake() -> Iterator[FakeNode]:
    with FakeNode() as node:
        node.create("t")
        yield node


def sender_of(producer: Producer, records: int | None) -> TransactionalLineSender:
    given: dict[str, Any] = dict(partition=None, key_separator=None, headers=[])
    return TransactionalLineSender(producer, "t", records=records, **given)


def test_a_commit_without_an_answer_is_told_as_unknown(fake: FakeNode) -> None:
    with Producer(
        fake.server, transactional_id="x", delivery_timeout_ms=1_000, request_timeout_ms=200
    ) as producer:
        sender = sender_of(producer, 2)
        sender.send([b"1", b"2", b"3"])
        sender.flush()
        fake.transactions.faults.extend([CoordinatorFault.LOSE_ANSWER])
        fake.transactions.faults.extend([CoordinatorFault.HANG] * 50)
        with pytest.raises(StreamlogError):
            sender.send([b"4"])
        sender.stop(0)
    assert (sender.sent, sender.stored) == (4, 2)
    assert sender.outcome().startswith(
        "the first 2 lines are committed; the 2 lines behind them are committed all together, or"
    )


def test_a_commit_that_is_answered_while_stopping_counts(fake: FakeNode) -> None:
    with Producer(
        fake.server, transactional_id="x", delivery_timeout_ms=1_000, request_timeout_ms=200
    ) as producer:
        sender = sender_of(producer, None)
        sender.send([b"1", b"2"])
        fake.transactions.faults.extend([None, CoordinatorFault.LOSE_ANSWER])
        fake.transactions.faults.extend([CoordinatorFault.HANG] * 50)
        with pytest.raises(StreamlogError):
            sender.finish()
        fake.transactions.faults.clear()
        sender.stop(WAIT_S)
    assert (sender.stored, sender.outcome()) == (2, "the first 2 lines are committed")


def test_a_line_that_is_refused_leaves_no_line_of_its_transaction(fake: FakeNode) -> None:
    with Producer(fake.server, transactional_id="x") as producer:
        sender = sender_of(producer, None)
        fake.refusal = lambda _topic, _partition: MessageTooLarge("refused on command")
        sender.send([b"1", b"2"])
        with pytest.raises((MessageTooLarge, TransactionAbortable)):
            sender.finish()
        sender.stop(WAIT_S)
    assert sender.outcome() == "no line is committed, and none that was sent will be visible"
    assert fake.committed_values("t") == []


def test_a_process_that_is_killed_leaves_nothing_after_the_time_limit(
    done: Done, environment: dict[str, str]
) -> None:
    process: subprocess.Popen[bytes] = start(
        environment,
        *("produce", "killed", "--transactional-id", "killed", "--transaction-timeout", "1s"),
    )
    assert process.stdin is not None
    process.stdin.write(b"line\n")
    process.stdin.flush()
    assert done("consume", "killed", "--follow", "--count", 1) == b"line\n"
    process.kill()
    process.communicate(timeout=WAIT_S)
    done("produce", "killed", stdin=b"behind\n")
    follow = ("consume", "killed", "--isolation", "read_committed", "--follow", "--count", 1)
    assert done(*follow) == b"behind\n"
