"""How many files a reader opens to follow an append to its ack, or a fetch to its answer.

A real node with `wal=disk` serves the request through gRPC; each call of a function between the
request and its answer is recorded. The rule of the count:

1. A file counts when one of its functions calls into another file: it says where the request goes
   next, so a reader must open it.
2. A file that calls no other only answers (a check, a table, a counter): its name is enough.
   ARCHITECTURE.md may name it where it explains something. Such files have a bound of their own, so
   that no file of the first kind is split up into them.
3. Left out on both sides of a call is what knows no requests and is called from everywhere: values
   and bytes (`codec`, `format`, `model`, generated code), the ground (`runtime`, `errors.py`), and
   metrics.
4. The usual case counts: the partition is open, requests have been served before, there is room.
   Nothing of what is fetched is in memory. What does not run for each of several such requests
   (timers, uploads of earlier batches) is left out.

ARCHITECTURE.md names all counted files; those that it names ran, in the order of their first calls.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from streamlog.codec.batch import NO_PRODUCER, BatchProducer
from streamlog.codec.records import encode_values
from streamlog.v1 import admin_pb2, log_pb2
from tests.support.calls_between import ROOT, CallRecorder
from tests.support.running_node import RunningNode, running_node
from tests.support.server_harness import Answers

APPEND_MAX = 20
FETCH_MAX = 22
ANSWERING_MAX = 24
"""Files that only answer, for each of the two."""
ROUNDS = 8
NO_CACHE = {
    "engine__read__block_cache_bytes": "0",
    "engine__read__index_cache_bytes": "0",
    "engine__read__object_scan_bytes_max": "0",
    "engine__read__small_object_bytes": "0",
}
"""A node that has just started has no tails of streams, either."""
GROUND = ("codec/", "errors.py", "format/", "model/", "runtime/", "v1/", "v1support/")
FILE = re.compile(r"`((?:\w+/)+\w+\.py)`")


def is_counted(file: str) -> bool:
    """Rule 3."""
    return not file.startswith(GROUND) and not file.endswith("metrics.py") and file != ""


@dataclass(frozen=True)
class Way:
    """What several requests of one kind have in common. `ran`: files, by first call.

    `orders`: `ran` of each request. A thread that is late makes the order of one request another.
    """

    ran: list[str]
    callers: frozenset[str]
    orders: Sequence[list[str]] = ()

    @property
    def counted(self) -> list[str]:
        return [file for file in self.ran if file in self.callers]

    @property
    def answering(self) -> list[str]:
        return [file for file in self.ran if is_counted(file) and file not in self.callers]


class Ways:
    """Records requests of one kind."""

    def __init__(self) -> None:
        self.recorder = CallRecorder(is_counted)
        self._recorded: list[Way] = []

    def keep(self) -> None:
        """Keeps what was just recorded."""
        recorder = self.recorder
        self._recorded.append(Way(list(recorder.files), frozenset(recorder.callers)))

    def common(self) -> Way:
        *others, last = self._recorded
        ran = [file for file in last.ran if all(file in other.ran for other in others)]
        callers = last.callers.intersection(*(other.callers for other in others))
        return Way(ran, callers, [way.ran for way in self._recorded])


def produce(producer: BatchProducer, partition: int) -> log_pb2.ProduceRequest:
    batch = encode_values([bytes(100_000)], timestamp_ms=1000, producer=producer)
    part = log_pb2.ProducePartition(partition=partition, record_batches=bytes(batch.data))
    return log_pb2.ProduceRequest(topics=[log_pb2.ProduceTopic(topic="t", partitions=[part])])


async def end_offset(node: RunningNode, partition: int) -> int:
    part = log_pb2.ListOffsetsPartition(partition=partition, timestamp_ms=-1)
    topic = log_pb2.ListOffsetsTopic(topic="t", partitions=[part])
    answer = await node.log.ListOffsets(log_pb2.ListOffsetsRequest(topics=[topic]))
    return int(answer.topics[0].partitions[0].offset)


async def record_appends(node: RunningNode, ways: Ways) -> None:
    """Also appends to the other partitions, for the fetches."""
    topic = admin_pb2.NewTopic(name="t", partitions=1 + ROUNDS)
    await node.admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[topic]))
    producer_id = (await node.log.InitProducerId(log_pb2.InitProducerIdRequest())).producer_id
    call = node.log.ProduceStream()
    answers = Answers(call)
    for partition in range(1 + ROUNDS):
        await node.log.Produce(produce(NO_PRODUCER, partition))
    for sequence in range(1 + ROUNDS):
        request = log_pb2.ProduceStreamRequest(
            correlation_id=sequence, request=produce(BatchProducer(producer_id, 0, sequence), 0)
        )
        # The server goes on for a moment after an answer: another request waits for that.
        await end_offset(node, 0)
        with ways.recorder.recording():
            await call.write(request)
            answer = await answers.read()
        (part,) = answer.response.topics[0].partitions
        assert (part.base_offset, part.HasField("error")) == (1 + sequence, False)
        if sequence:
            ways.keep()
    await call.done_writing()


async def record_cold_fetches(node: RunningNode, ways: Ways) -> None:
    for partition in range(1 + ROUNDS):
        assert await end_offset(node, partition) > 0
        wanted = log_pb2.FetchPartition(partition=partition, partition_max_bytes=150_000)
        topic = log_pb2.FetchTopic(topic="t", partitions=[wanted])
        with ways.recorder.recording():
            answer = await node.log.Fetch(log_pb2.FetchRequest(topics=[topic]))
        (part,) = answer.topics[0].partitions
        assert (part.next_offset, part.HasField("error")) == (1, False)
        if partition:
            ways.keep()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Way, Way]:
    """The way of an append, and that of a cold fetch."""
    appends, fetches = Ways(), Ways()
    data = str(tmp_path_factory.mktemp("ways"))

    async def main() -> None:
        async with asyncio.timeout(60):
            with appends.recorder.installed():
                async with running_node(data=data) as node:
                    await record_appends(node, appends)
            with fetches.recorder.installed():
                async with running_node(data=data, **NO_CACHE) as node:
                    await record_cold_fetches(node, fetches)

    asyncio.run(main())
    return appends.common(), fetches.common()


def named(title: str, items: int | None = None) -> list[str]:
    """Files that ARCHITECTURE.md names in the first items of a section, each once."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    (section,) = re.findall(rf"^## {title}$(.*?)^## ", text, re.S | re.M)
    numbered = re.findall(r"^\d+\. .*?(?=^\d+\. |\n\n|\Z)", section, re.S | re.M)
    return list(dict.fromkeys(FILE.findall("".join(numbered[:items]))))


def check_page(way: Way, files: list[str]) -> None:
    assert [file for file in files if file not in way.ran] == []
    assert [file for file in way.counted if file not in files] == []
    assert files in [[file for file in order if file in files] for order in way.orders]


def test_an_append_passes_few_files_to_its_ack(recorded: tuple[Way, Way]) -> None:
    append, _ = recorded
    assert len(append.counted) <= APPEND_MAX, append.counted
    assert len(append.answering) <= ANSWERING_MAX, append.answering


def test_a_cold_fetch_passes_few_files_to_its_answer(recorded: tuple[Way, Way]) -> None:
    _, fetch = recorded
    assert len(fetch.counted) <= FETCH_MAX, fetch.counted
    assert len(fetch.answering) <= ANSWERING_MAX, fetch.answering


def test_architecture_tells_the_way_of_an_append(recorded: tuple[Way, Way]) -> None:
    append, _ = recorded
    # The last two items are about the upload, which with wal=disk follows the ack.
    check_page(append, named("One append, through the files", -2))


def test_architecture_tells_the_way_of_a_fetch(recorded: tuple[Way, Way]) -> None:
    _, fetch = recorded
    check_page(fetch, named("One fetch, through the files"))
