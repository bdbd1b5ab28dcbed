"""Transactional clients over two nodes that are killed, stall, and give partitions to each other.

Each record says which transaction wrote it. In the end read_committed readers see each transaction
in all of its partitions or in none: in all where its commit was answered, in none where it was
aborted. Nothing stays open, and a replay of each coordinator's log comes to its state.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial
from random import Random

import pytest

from streamlog.coordinator.api import (
    TRANSACTION_STATE_TOPIC,
    ProducerIdAndEpoch,
    TransactionFilter,
    TransactionState,
)
from streamlog.errors import StreamlogError
from streamlog.model.partition import TopicPartition
from streamlog.testing.logs.transaction_conformance import transactional
from streamlog.testing.simulation.world.loop import run as run_virtually
from tests.coordinator.world import Node, World, check_replay, retried, seen, world

DATA = [TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("b", 1)]
STATE = [TopicPartition(TRANSACTION_STATE_TOPIC, number) for number in range(2)]
CLIENTS = 5
TRANSACTIONS = 8
TIMEOUT_MS = 20_000


class Client:
    """One transactional id; `bumps_epoch`: its producer is of version 2."""

    def __init__(self, name: str, one: World, random: Random, *, bumps_epoch: bool) -> None:
        self.name = name
        self._world = one
        self._random = random
        self._bumps_epoch = bumps_epoch
        self._sequences: dict[tuple[TopicPartition, ProducerIdAndEpoch], int] = defaultdict(int)
        self.wrote: dict[str, set[TopicPartition]] = {}
        """Transaction → the partitions that have its record, or may have."""
        self.committed: set[str] = set()
        self.undecided: set[str] = set()
        """Their commit was asked for, and not answered."""

    def coordinator(self) -> Node:
        return self._world.leader(self._partition())

    def _partition(self) -> TopicPartition:
        return self._world.nodes[0].coordinator.partition_of(self.name)

    async def run(self) -> None:
        pair: ProducerIdAndEpoch | None = None
        for number in range(TRANSACTIONS):
            try:
                if pair is None:
                    pair = await retried(
                        lambda: self.coordinator().coordinator.init_producer_id(
                            self.name, TIMEOUT_MS
                        )
                    )
                pair = await self._transaction(f"{self.name}.{number}", pair)
            except (StreamlogError, IndexError):
                pair = None
                await asyncio.sleep(self._random.random() * 3)

    async def _transaction(self, label: str, pair: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
        places = self._random.sample(DATA, self._random.randint(1, len(DATA)))
        for place in places:
            await retried(partial(self._add, pair, place))
            await self._write(label, pair, place)
        if self._random.random() < 0.1:
            await asyncio.sleep(TIMEOUT_MS / 1000 + 30)  # It is aborted behind the client's back.
        is_commit = self._random.random() < 0.6
        if is_commit:
            self.undecided.add(label)
        following = await self.coordinator().coordinator.end(
            self.name, pair, is_commit=is_commit, bumps_epoch=self._bumps_epoch
        )
        if is_commit:
            self.undecided.discard(label)
            self.committed.add(label)
            if self._random.random() < 0.3:
                again = await retried(
                    lambda: self.coordinator().coordinator.end(
                        self.name, pair, is_commit=True, bumps_epoch=self._bumps_epoch
                    )
                )
                assert again == following
        return following

    async def _add(self, pair: ProducerIdAndEpoch, place: TopicPartition) -> None:
        await self.coordinator().coordinator.add_partitions(self.name, pair, [place])

    async def _write(self, label: str, pair: ProducerIdAndEpoch, place: TopicPartition) -> None:
        opened = await self._world.leader(place).logs.log(place)
        if opened.needs_verification(*pair):
            coordinator = self.coordinator().coordinator
            refused = await coordinator.verify_partitions(self.name, pair, [place])
            assert not refused, refused
            opened.verified(*pair)
        sequence = self._sequences[place, pair]
        self._sequences[place, pair] += 1
        self.wrote.setdefault(label, set()).add(place)
        ack = await opened.append(transactional([label.encode()], *pair, sequence))
        await ack


class Chaos:
    """Does something to the nodes every now and then."""

    def __init__(self, one: World, random: Random) -> None:
        self._world = one
        self._random = random

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.random() * 4)
            await self._random.choice((self._kill, self._assign, self._assign, self._stall))()

    async def _kill(self) -> None:
        node = self._random.choice(self._world.nodes)
        node_id = node.logs.leadership.node_id
        if self._random.random() < 0.7:
            node.client.hold()  # What is appended from now on is lost.
            await asyncio.sleep(self._random.random() * 2)
        await self._world.kill(node)
        await asyncio.sleep(self._random.random() * 3)
        await self._world.node(node_id)

    async def _assign(self) -> None:
        await self._world.assign(self._random.choice([*STATE, *DATA]), self._random.choice((1, 2)))

    async def _stall(self) -> None:
        node = self._random.choice(self._world.nodes)
        node.client.hold()
        await asyncio.sleep(self._random.random() * 2)
        node.client.release()


async def quiet(one: World) -> None:
    """Returns when no transaction is open, nor one being ended."""
    open_states = frozenset(
        {
            TransactionState.ONGOING,
            TransactionState.PREPARE_ABORT,
            TransactionState.PREPARE_COMMIT,
        }
    )
    for _ in range(200):
        await asyncio.sleep(2)
        try:
            found = [
                transaction
                for node in one.nodes
                for transaction in await node.coordinator.transactions(
                    TransactionFilter(states=open_states)
                )
            ]
        except StreamlogError:
            continue
        if not found:
            return
    raise AssertionError("transactions stay open")


async def history(seed: int) -> None:
    random = Random(seed)
    async with world() as one:
        one.markers.delay_s = lambda: random.random() * 0.3
        first, _ = await one.node(1), await one.node(2)
        for topic, partitions in (("a", 1), ("b", 2)):
            await first.logs.create_topic(topic, partitions)
        await first.coordinator.ensure_topic()
        for number, partition in enumerate([*STATE, *DATA]):
            await one.assign(partition, 1 + number % 2)
        clients = [
            Client(f"tx-{number}", one, random, bumps_epoch=number % 2 == 1)
            for number in range(CLIENTS)
        ]
        chaos = asyncio.create_task(Chaos(one, random).run())
        await asyncio.gather(*(client.run() for client in clients))
        chaos.cancel()
        await asyncio.wait({chaos})
        if not chaos.cancelled():
            chaos.result()
        await _heal(one)
        await quiet(one)
        await _check(one, clients)


async def _heal(one: World) -> None:
    for node in one.nodes:
        node.client.release()
    for node_id in {1, 2} - {node.logs.leadership.node_id for node in one.nodes}:
        await one.node(node_id)


async def _check(one: World, clients: list[Client]) -> None:
    views = {place: await seen(await one.leader(place).logs.log(place)) for place in DATA}
    for client in clients:
        for label, places in client.wrote.items():
            shown = {place for place, labels in views.items() if label in labels}
            if label in client.committed:
                assert shown == places, label
            elif label in client.undecided:
                assert shown in (set(), places), label
            else:
                assert not shown, label
    for node in one.nodes:
        assert node.coordinator.failure is None
        await check_replay(node)


@pytest.mark.parametrize("seed", range(20))
def test_transactions_are_whole_in_any_order_of_events(seed: int) -> None:
    run_virtually(lambda: history(seed))
