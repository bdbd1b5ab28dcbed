"""Damaged requests of real clients: each is answered, or ends its connection; none does harm.

The short run; `make fuzz-kafka FRAMES=N` is the long one.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from streamlog.kafka.protocol.apis import APIS, ApiKey
from streamlog.server.kafka.call import Encoded, KafkaCall, Route
from streamlog.server.kafka.handlers.table import Routes
from tests.engine.harness import until
from tests.fuzz.frames.answers import Answers
from tests.fuzz.frames.client import InProcess
from tests.fuzz.frames.corpus import Corpus, Sample, recorded
from tests.fuzz.frames.damage import Request
from tests.fuzz.frames.findings import Findings
from tests.fuzz.frames.run import Run
from tests.fuzz.frames.world import REQUEST_BYTES_MAX, World, open_world

FRAMES = 12_000
CLIENTS = {"librdkafka", "aiokafka", "java", "franz-go", "kafka-python", "sarama"}


def test_damaged_requests_do_no_harm() -> None:
    # Found out before the time of a test is up, so that it is told which request it was.
    told = asyncio.run(Run(FRAMES, seed=1, answer_s_max=90).run())
    assert not told.findings, told.findings
    assert told.ended.get("bug", 0) == 0
    assert told.frames >= FRAMES
    assert told.answered > FRAMES // 3
    assert told.over_sockets > 0
    assert told.bystander_rounds > 0
    assert min(told.changes.values()) > FRAMES // 200


def test_the_corpus_has_requests_of_every_client_and_every_api() -> None:
    found = recorded()
    corpus = Corpus.of_topics(found, found.ids, seed=1)
    assert {sample.client for sample in corpus.samples} >= CLIENTS
    assert {sample.api for sample in corpus.samples} == set(APIS)


def newest_of_each(corpus: Corpus) -> list[Sample]:
    """The largest request of the newest version of each API that some client has sent."""
    newest: dict[int, Sample] = {}
    for sample in corpus.samples:
        known = newest.get(sample.api)
        rank = sample.version, len(sample.frame)
        if sample.places and (known is None or rank > (known.version, len(known.frame))):
            newest[sample.api] = sample
    return list(newest.values())


def test_requests_cut_at_every_byte_do_no_harm() -> None:
    async def main() -> None:
        findings, answers, sent = Findings(), Answers(), 0
        loop = asyncio.get_running_loop()
        with findings.watching(loop):
            async with open_world(recorded()) as world:
                corpus = Corpus.of_topics(world.recorded, await world.tidy(), seed=1)
                for sample in newest_of_each(corpus):
                    sent += await all_cuts(world, sample, answers, findings)
                assert not any(world.held(friends=1).values())
                assert world.ended("bug") == 0
        assert sent > 1000
        assert not findings.found, findings.found

    asyncio.run(main())


async def all_cuts(world: World, sample: Sample, answers: Answers, findings: Findings) -> int:
    """Each cut goes over a connection of its own; how many there were."""
    loop = asyncio.get_running_loop()
    clients = []
    for end in range(len(sample.frame)):
        data = end.to_bytes(4, "big") + sample.frame[:end]
        client = InProcess(world.connections.new(), answers, findings, REQUEST_BYTES_MAX)
        clients.append(client)
        await asyncio.sleep(0)  # The connection is served from now on.
        client.send(Request(data, "cut", is_valid=False, api=sample.api), loop.time())
    for client in clients:
        await until(lambda: client.is_over or client.is_ready)  # noqa: B023
        if not client.is_over:
            client.check_quiet()
            client.leave()
            await until(lambda: client.is_over)  # noqa: B023
    return len(clients)


def test_an_answer_is_not_taken_for_that_of_a_request_without_one() -> None:
    """Damage may give two requests one correlation id."""
    header = struct.Struct(">hhih")
    without_acks = header.pack(ApiKey.PRODUCE, 3, 7, 0) + struct.pack(">hhii", -1, 0, 1, 0)
    asking = header.pack(ApiKey.API_VERSIONS, 0, 7, 0)

    async def main() -> None:
        findings, loop = Findings(), asyncio.get_running_loop()
        with findings.watching(loop):
            async with open_world(recorded()) as world:
                client = InProcess(world.connections.new(), Answers(), findings, REQUEST_BYTES_MAX)
                await asyncio.sleep(0)  # The connection is served from now on.
                for api, frame in ((ApiKey.PRODUCE, without_acks), (ApiKey.API_VERSIONS, asking)):
                    data = len(frame).to_bytes(4, "big") + frame
                    client.send(Request(data, "unchanged", is_valid=True, api=api), loop.time())
                await until(lambda: bool(client.answered or findings.found))
                client.check_quiet()
                client.leave()
                await until(lambda: client.is_over)
                assert client.answered == 1
        assert not findings.found, findings.found

    asyncio.run(main())


def test_a_run_sees_handlers_that_fail_or_answer_something_else_or_nothing() -> None:
    async def fails(call: KafkaCall, request: Any) -> Any:
        raise KeyError("a bug")

    async def says_something_else(call: KafkaCall, request: Any) -> Any:
        return Encoded([b"\x01\x02\x03"])

    async def says_nothing(call: KafkaCall, request: Any) -> Any:
        return None

    async def never_returns(call: KafkaCall, request: Any) -> Any:
        await asyncio.Event().wait()

    def change(routes: Routes) -> Routes:
        planted = {
            ApiKey.LIST_OFFSETS: Route(fails),
            ApiKey.API_VERSIONS: Route(says_something_else),
            ApiKey.INIT_PRODUCER_ID: Route(says_nothing),
            ApiKey.OFFSET_FOR_LEADER_EPOCH: Route(never_returns),
        }
        return {**routes, **planted}

    # On a slow machine more requests are answered later than that, which are findings, too.
    told = asyncio.run(Run(1200, seed=1, change=change, answer_s_max=0.5).run())
    found = {finding["what"] for finding in told.findings}
    assert found >= {"request failed by a bug", "an answer that is none"}
    assert found >= {"no answer", "no answer in time"}
    assert told.ended["bug"] > 0
    examples = [one for finding in told.findings for one in finding["examples"]]
    assert len(examples) >= 4
