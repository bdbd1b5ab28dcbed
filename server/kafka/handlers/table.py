"""The table of APIs that a node serves: it joins the routes of all handlers.

What is in the table is what ApiVersions advertises, so nothing is advertised that has no handler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from streamlog.kafka.protocol.apis import ApiKey
from streamlog.server.composition import Services
from streamlog.server.kafka.call import Handle, Route
from streamlog.server.kafka.cluster_view import ClusterView
from streamlog.server.kafka.handlers.api_versions import ApiVersionsHandler
from streamlog.server.kafka.handlers.client_quotas import ClientQuotasHandler
from streamlog.server.kafka.handlers.cluster import ClusterHandler
from streamlog.server.kafka.handlers.configs import ConfigsHandler
from streamlog.server.kafka.handlers.delete_records import DeleteRecordsHandler
from streamlog.server.kafka.handlers.describe_producers import DescribeProducersHandler
from streamlog.server.kafka.handlers.fetch import FetchHandler
from streamlog.server.kafka.handlers.init_producer_id import ProducerIdHandler
from streamlog.server.kafka.handlers.leader_epochs import LeaderEpochHandler
from streamlog.server.kafka.handlers.list_offsets import ListOffsetsHandler
from streamlog.server.kafka.handlers.metadata import MetadataHandler
from streamlog.server.kafka.handlers.produce import ProduceHandler
from streamlog.server.kafka.handlers.topics import TopicsHandler
from streamlog.server.kafka.handlers.transactions.add_partitions import AddPartitionsHandler
from streamlog.server.kafka.handlers.transactions.describe import DescribeTransactionsHandler
from streamlog.server.kafka.handlers.transactions.end_txn import EndTxnHandler
from streamlog.server.kafka.handlers.transactions.find_coordinator import FindCoordinatorHandler
from streamlog.server.kafka.handlers.transactions.write_txn_markers import WriteTxnMarkersHandler

Routes = Mapping[ApiKey, Route]


class Handler(Protocol):
    """A class with the services that its APIs need."""

    def routes(self) -> Mapping[ApiKey, Handle | Route]:
        """A plain coroutine is a Route with nothing else."""
        ...


def handlers(services: Services) -> list[Handler]:
    """One of each; a new handler is one more line."""
    return [
        FetchHandler(services, leaders=ClusterView(services)),
        ListOffsetsHandler(services),
        LeaderEpochHandler(services),
        DeleteRecordsHandler(services),
        ProduceHandler(services),
        ProducerIdHandler(services),
        DescribeProducersHandler(services),
        ConfigsHandler(services),
        ClientQuotasHandler(services),
        MetadataHandler(services),
        ClusterHandler(services),
        TopicsHandler(services),
        FindCoordinatorHandler(services),
        AddPartitionsHandler(services),
        EndTxnHandler(services),
        WriteTxnMarkersHandler(services),
        DescribeTransactionsHandler(services),
    ]


def join(handlers: list[Handler]) -> dict[ApiKey, Route]:
    """The routes of all `handlers`, and of ApiVersions, which names them."""
    joined: dict[ApiKey, Route] = {}
    for handler in handlers:
        for api, route in handler.routes().items():
            assert api not in joined, f"two handlers for {api.name}"
            joined[api] = route if isinstance(route, Route) else Route(route)
    versions = ApiVersionsHandler((*joined, ApiKey.API_VERSIONS))
    for api, handle in versions.routes().items():
        joined[api] = Route(handle)
    return joined


class NodeRoutes:
    """The routes of a node, made once for all its Kafka listeners: handlers may have state."""

    def __init__(self) -> None:
        self._made: Routes | None = None

    def of(self, services: Services) -> Routes:
        """Every API that the node serves."""
        if self._made is None:
            self._made = join(handlers(services))
        return self._made
