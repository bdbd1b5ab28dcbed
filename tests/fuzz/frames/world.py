"""A node's services over a real engine in memory, and what keeps its state as it was.

Damaged requests create, grow and delete topics and change settings, as they may. `tidy` puts all
of that back, so that a run of any length has the same topics, and memory that can be compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import CollectorRegistry

import streamlog
from streamlog.compaction.collect.collector import CollectorConfig
from streamlog.coordinator.api import TRANSACTION_STATE_TOPIC
from streamlog.coordinator.config import TransactionConfig
from streamlog.kafka.messages import (
    create_topics_request as create,
)
from streamlog.kafka.messages import (
    delete_topics_request as delete,
)
from streamlog.kafka.messages import (
    describe_configs_request as describe,
)
from streamlog.kafka.messages import (
    incremental_alter_configs_request as alter,
)
from streamlog.kafka.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from streamlog.kafka.messages.metadata_request import MetadataRequest
from streamlog.kafka.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.log.api.config import LogConfig
from streamlog.runtime.clock import SystemClock
from streamlog.server.kafka.dispatch import Dispatcher
from streamlog.server.kafka.handlers.table import NodeRoutes, Routes
from streamlog.server.kafka.transport.connections import Connections
from streamlog.server.limits.requests import ActiveRequests
from streamlog.wiring import Components
from tests.engine.remote import InlineOffload
from tests.fuzz.frames.corpus import Recorded
from tests.memory.process import CONFIG as SMALL
from tests.support.kafka_wire import WireClient, connect
from tests.support.server_harness import batch, running, with_limits

REQUEST_BYTES_MAX = 16 * 1024 * 1024
TOPIC_CONFIG, BROKER_CONFIG = 2, 4
DYNAMIC_SOURCES = (2, 3)
DELETE = 1
FRIENDS = 2
"""Connections that send nothing wrong."""
BYSTANDERS_TOPIC = "undisturbed"
NODE_ID = "1"
ANSWER_S = 600.0
"""A run is the last in line on a loaded machine."""
ENGINE = replace(SMALL, collector=CollectorConfig(deletion_delay_ms=0, collect_interval_ms=1000))
"""Small caches and objects that are deleted at once: what stays is a leak."""
LOGS = LogConfig(
    topics_max=400,
    partitions_max=1000,
    partitions_per_topic_max=16,
    # Random producer ids must not cost memory that no bug has taken.
    producer_ids_max=50,
    producer_idle_ms_min=0,
)

TRANSACTIONS = TransactionConfig(
    id_expiration_ms=1000, expiration_interval_ms=1000, abort_interval_ms=1000
)
"""Random transactional ids neither."""


@dataclass
class World:
    connections: Connections
    apis: Container[int]
    registry: CollectorRegistry
    port: int
    requests: ActiveRequests
    recorded: Recorded
    client: WireClient
    """A connection over a real socket that sends nothing wrong."""

    def ended(self, reason: str) -> int:
        """Connections that the node has ended for the reason."""
        name = "streamlog_connections_ended_total"
        labels = {"listener": "kafka", "reason": reason}
        return int(self._metric(name, **labels))

    def _metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def held(self, friends: int = FRIENDS) -> dict[str, int]:
        """What has to be nothing when no client is there but those that send nothing wrong."""
        return {
            "connections": self.connections.count - friends,
            "requests": self.requests.count,
            "in_flight_bytes": int(
                self.registry.get_sample_value("streamlog_in_flight_bytes") or 0
            ),
            "unfilled_bytes": self.connections.memory.unfilled_bytes,
        }

    async def tidy(self) -> dict[str, bytes]:
        """Makes all topics anew, and forgets settings; the ids of the topics by name."""
        await self._forget_settings()
        found = await self._ask(ApiKey.METADATA, 12, MetadataRequest(topics=None))
        kept = (BYSTANDERS_TOPIC, TRANSACTION_STATE_TOPIC)
        names = [one.name for one in found.topics if one.name not in kept]
        if names:
            gone = delete.DeleteTopicsRequest(topic_names=names, timeout_ms=30_000)
            self._expect(await self._ask(ApiKey.DELETE_TOPICS, 5, gone))
        made = create.CreateTopicsRequest(
            topics=[
                create.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
                for name, count in self.recorded.topics.items()
            ],
            timeout_ms=30_000,
        )
        answer = await self._ask(ApiKey.CREATE_TOPICS, 7, made)
        self._expect(answer)
        return {one.name: one.topic_id for one in answer.topics}

    @staticmethod
    def _expect(answer: Any) -> None:
        topics = getattr(answer, "topics", None) or answer.responses
        wrong = [(one.name, one.error_code) for one in topics if one.error_code]
        assert not wrong, wrong

    async def _forget_settings(self) -> None:
        names = (NODE_ID, "")
        asked = describe.DescribeConfigsRequest(
            resources=[
                describe.DescribeConfigsResource(
                    resource_type=BROKER_CONFIG, resource_name=name, configuration_keys=None
                )
                for name in names
            ]
        )
        answer = await self._ask(ApiKey.DESCRIBE_CONFIGS, 4, asked)
        resources = []
        for name, result in zip(names, answer.results, strict=True):
            wanted = DYNAMIC_SOURCES[0] if name else DYNAMIC_SOURCES[1]
            set_now = [one.name for one in result.configs if one.config_source == wanted]
            configs = [
                alter.AlterableConfig(name=one, config_operation=DELETE, value=None)
                for one in set_now
            ]
            if configs:
                resources.append(
                    alter.AlterConfigsResource(
                        resource_type=BROKER_CONFIG, resource_name=name, configs=configs
                    )
                )
        if resources:
            changed = alter.IncrementalAlterConfigsRequest(resources=resources)
            answer = await self._ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, changed)
            wrong = [one.error_message for one in answer.responses if one.error_code]
            assert not wrong, wrong

    async def _ask(self, api: ApiKey, version: int, message: Any) -> Any:
        async with asyncio.timeout(ANSWER_S):
            return await self.client.ask(api, version, message)


@asynccontextmanager
async def open_world(
    recorded: Recorded, change: Callable[[Routes], Routes] = lambda routes: routes
) -> AsyncIterator[World]:
    """`change` may put other handlers in the place of the node's."""
    settings = with_limits(connections_max=10_000, kafka_request_bytes_max=REQUEST_BYTES_MAX)
    async with (
        streamlog.open(
            "memory://",
            meta="memory://",
            config=ENGINE,
            logs=LOGS,
            transactions=TRANSACTIONS,
            components=Components(offload=InlineOffload()),
        ) as engine,
        running(
            settings,
            logs=engine.logs,
            transactions=engine.transactions,
            store=engine.store,
            clock=engine.clock,
            offload=engine.offload,
            cluster_id=engine.metadata.cluster_id,
        ) as server,
    ):
        services = server.service.services
        connections = Connections("kafka", settings.limits, SystemClock())
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(connections.new, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        connections.advertised = ("127.0.0.1", port)
        connections.start()
        routes = change(NodeRoutes().of(services))
        shared = services.resources
        dispatcher = Dispatcher(routes, shared.requests, shared.quotas)
        connections.serve(dispatcher, services.resources)
        client = await connect(port)
        try:
            yield World(
                connections,
                dispatcher.apis,
                server.registry,
                port,
                services.resources.requests,
                recorded,
                client,
            )
        finally:
            await client.close()
            listening.close()
            await connections.stop(1)


class Bystander:
    """Another connection, which produces and fetches all the while and has to see it go well."""

    def __init__(self, client: WireClient) -> None:
        self._client = client
        self.rounds = 0
        self.is_stopped = False

    @classmethod
    async def on(cls, world: World) -> Bystander:
        return cls(await connect(world.port))

    async def make_topic(self) -> None:
        topic = create.CreatableTopic(name=BYSTANDERS_TOPIC, num_partitions=1, replication_factor=1)
        made = create.CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        await self._client.ask(ApiKey.CREATE_TOPICS, 7, made)

    async def until_stopped(self) -> None:
        self.is_stopped = False
        while not self.is_stopped:
            await self.round()

    async def round(self) -> None:
        """Produces a batch and reads it back."""
        value = b"round %d" % self.rounds
        part = PartitionProduceData(index=0, records=batch(value))
        topics = [TopicProduceData(name=BYSTANDERS_TOPIC, partition_data=[part])]
        message = ProduceRequest(acks=-1, timeout_ms=int(ANSWER_S * 1000), topic_data=topics)
        answer = await self._client.ask(ApiKey.PRODUCE, 9, message)
        (produced,) = answer.responses[0].partition_responses
        assert produced.error_code == 0, produced
        wanted = FetchPartition(
            partition=0, fetch_offset=produced.base_offset, partition_max_bytes=1 << 20
        )
        fetch = FetchRequest(
            max_wait_ms=1000,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[FetchTopic(topic=BYSTANDERS_TOPIC, partitions=[wanted])],
        )
        answer = await self._client.ask(ApiKey.FETCH, 12, fetch)
        (fetched,) = answer.responses[0].partitions
        assert fetched.error_code == 0, fetched
        assert value in bytes(fetched.records), fetched
        self.rounds += 1

    async def close(self) -> None:
        await self._client.close()
