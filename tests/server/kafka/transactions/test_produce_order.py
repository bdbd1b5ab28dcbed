"""Produce on a socket while a coordinator is asked: what waits, what does not, and the order."""

from __future__ import annotations

import asyncio

from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from tests.server.kafka.handlers.produce_world import batch, only, produce_request, produce_world
from tests.server.kafka.transactions.transactional_batches import P0, batch_of, begun, ends
from tests.support.kafka_wire import WireClient, request_bytes, wire

VERSION = 9


def request(correlation_id: int, records: bytes, *, partition: int = 0, tx: str | None) -> bytes:
    message = produce_request(records, partition=partition, transactional_id=tx)
    return request_bytes(ApiKey.PRODUCE, VERSION, correlation_id, message)


async def answered(client: WireClient) -> tuple[int, KafkaError, int]:
    correlation_id, response = await client.answer(ApiKey.PRODUCE, VERSION)
    part = only(response)
    return correlation_id, KafkaError(part.error_code), part.base_offset


def test_only_what_is_behind_a_question_waits_for_its_answer() -> None:
    async def main() -> None:
        async with produce_world() as world, wire(world.produce.routes()) as served:
            producer = await begun(world)
            await world.coordinator.add_partitions("tx", producer, [P0])
            client, other = await served.client(), await served.client()
            world.coordinator.gate.clear()
            world.coordinator.entered.clear()
            client.send(
                request(1, batch(b"before"), tx=None)
                + request(2, batch_of(producer, 0, b"0"), tx="tx")
                + request(3, batch_of(producer, 1, b"1"), tx="tx")
                + request(4, batch(b"behind"), partition=1, tx=None)
            )
            # Before the coordinator has said a word.
            assert await answered(client) == (1, KafkaError.NONE, 0)
            await world.coordinator.entered.wait()
            other.send(request(1, batch(b"another connection"), tx=None))
            assert await answered(other) == (1, KafkaError.NONE, 1)
            assert await ends(world) == [2, 0]
            world.coordinator.gate.set()
            assert [await answered(client) for _ in range(3)] == [
                (2, KafkaError.NONE, 2),
                (3, KafkaError.NONE, 3),
                (4, KafkaError.NONE, 0),
            ]
            assert len([one for one in world.coordinator.calls if one[0] != "add_partitions"]) == 2
            await client.close()
            await other.close()

    asyncio.run(main())


def test_a_connection_that_ends_during_the_question_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with produce_world() as world, wire(world.produce.routes()) as served:
            producer = await begun(world)
            await world.coordinator.add_partitions("tx", producer, [P0])
            world.coordinator.gate.clear()
            world.coordinator.entered.clear()
            client = await served.client()
            client.send(request(1, batch_of(producer), tx="tx"))
            await world.coordinator.entered.wait()
            await client.close()
            again = await served.client()
            again.send(request(1, batch(b"plain"), tx=None))
            assert await answered(again) == (1, KafkaError.NONE, 0)
            world.coordinator.gate.set()
            again.send(request(2, batch_of(producer), tx="tx"))
            assert (await answered(again))[1] is KafkaError.NONE
            await again.close()

    asyncio.run(main())


def test_many_requests_of_one_transaction_keep_their_order() -> None:
    async def main() -> None:
        async with produce_world() as world, wire(world.produce.routes()) as served:
            producer = await begun(world)
            await world.coordinator.add_partitions("tx", producer, [P0])
            client = await served.client()
            count = 300
            client.send(
                b"".join(
                    request(number, batch_of(producer, number), tx="tx") for number in range(count)
                )
            )
            for number in range(count):
                assert await answered(client) == (number, KafkaError.NONE, number)
            asked = [one for one in world.coordinator.calls if one[0] == "verify_partitions"]
            assert len(asked) == 1
            await client.close()

    asyncio.run(main())
