"""EndTxn: commit and abort, the next epoch from version 5 on, and errors by version."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from streamlog.coordinator.api import ProducerIdAndEpoch, TransactionState
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.server.context import Operation
from tests.server.kafka.transactions.asking import LASTING, PASSING, added, begun, ended
from tests.support.kafka_handlers import all_but, kafka_handlers

VERSIONS = range(6)
OK = KafkaError.NONE
NOBODY = ProducerIdAndEpoch(-1, -1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_ends(version: int, is_commit: bool) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await node.logs.create_topic("a", 1)
            producer = await begun(node)
            await added(node, producer, {"a": [0]})
            code, following = await ended(node, producer, version=version, is_commit=is_commit)
            assert code is OK
            bumps_epoch = version >= 5
            if bumps_epoch:
                assert following == (producer.producer_id, producer.producer_epoch + 1)
            assert node.coordinator.calls[-1] == ("end", "tx", producer, is_commit, bumps_epoch)
            state = node.coordinator.states["tx"].state
            assert state.name == ("COMPLETE_COMMIT" if is_commit else "COMPLETE_ABORT")

    asyncio.run(main())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fenced_producer_is_told_so_by_the_code_that_its_version_knows(version: int) -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            await node.logs.create_topic("a", 1)
            old = await begun(node)
            await added(node, old, {"a": [0]})
            await begun(node)
            fenced = (
                KafkaError.INVALID_PRODUCER_EPOCH if version < 2 else KafkaError.PRODUCER_FENCED
            )
            assert await ended(node, old, version=version) == (fenced, NOBODY)

    asyncio.run(main())


def test_the_coordinators_errors() -> None:
    async def main() -> None:
        async with kafka_handlers() as node:
            producer = await begun(node)
            for version, (error, code) in product((0, 5), PASSING + LASTING):
                node.coordinator.fails("end", error)
                assert await ended(node, producer, version=version) == (code, NOBODY)

    asyncio.run(main())


@pytest.mark.parametrize("version", [0, 3, 5])
def test_ends_that_are_refused(version: int) -> None:
    async def main() -> None:
        authorize = all_but((Operation.WRITE, "closed"))
        async with kafka_handlers(authorize=authorize) as node:
            producer = await begun(node)

            async def refused(id_: str, who: ProducerIdAndEpoch) -> KafkaError:
                code, following = await ended(node, who, version=version, transactional_id=id_)
                assert following == NOBODY
                return code

            assert await refused("tx", producer) is KafkaError.INVALID_TXN_STATE
            unknown = KafkaError.INVALID_PRODUCER_ID_MAPPING
            assert await refused("tx", ProducerIdAndEpoch(-1, -1)) is unknown
            assert await refused("other", producer) is unknown
            assert await refused("", producer) is KafkaError.INVALID_REQUEST
            forbidden = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert await refused("closed", producer) is forbidden
            assert node.coordinator.states["tx"].state is TransactionState.EMPTY

    asyncio.run(main())
