"""DescribeCluster (60), ListPartitionReassignments (46), DescribeLogDirs (35)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamlog.kafka.messages.describe_cluster_request import DescribeClusterRequest
from streamlog.kafka.messages.describe_cluster_response import (
    DescribeClusterBroker,
    DescribeClusterResponse,
)
from streamlog.kafka.messages.describe_log_dirs_request import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from streamlog.kafka.messages.describe_log_dirs_response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from streamlog.kafka.messages.list_partition_reassignments_request import (
    ListPartitionReassignmentsRequest,
)
from streamlog.kafka.messages.list_partition_reassignments_response import (
    ListPartitionReassignmentsResponse,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.runtime.concurrency.steps import Steps, run_cooperatively
from streamlog.server.composition import Services
from streamlog.server.context import Operation
from streamlog.server.kafka.call import Encoded, Handle, KafkaCall
from streamlog.server.kafka.cluster_view import ClusterView
from streamlog.server.kafka.describing.large_answers import encoded
from streamlog.server.kafka.describing.operations import NOT_ASKED, bits

ENDPOINT_BROKERS = 1
ENDPOINT_CONTROLLERS = 2
PARTITIONS_PER_STEP = 1000
TOPICS_PER_STEP = 100
NOT_ALLOWED = "this principal may not describe the cluster; ask for permission"


class ClusterHandler:
    def __init__(self, services: Services) -> None:
        self._views = services.topic_views
        self._sizes = services.partition_sizes
        self._cluster = ClusterView(services)
        self._log_dir = services.store_url
        self._offload = services.resources.offload

    def routes(self) -> Mapping[ApiKey, Handle]:
        return {
            ApiKey.DESCRIBE_CLUSTER: self.describe_cluster,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: self.list_partition_reassignments,
            ApiKey.DESCRIBE_LOG_DIRS: self.describe_log_dirs,
        }

    async def describe_cluster(
        self, call: KafkaCall, request: DescribeClusterRequest
    ) -> DescribeClusterResponse:
        """Fenced brokers are brokers that have not registered yet; there are none here."""
        if request.endpoint_type == ENDPOINT_CONTROLLERS:
            return DescribeClusterResponse(
                error_code=KafkaError.MISMATCHED_ENDPOINT_TYPE,
                error_message="a node has no endpoints of controllers: give your tool the address "
                "with --bootstrap-server",
            )
        if request.endpoint_type != ENDPOINT_BROKERS:
            return DescribeClusterResponse(
                error_code=KafkaError.UNSUPPORTED_ENDPOINT_TYPE,
                error_message=f"there are no endpoints of type {request.endpoint_type}; ask for "
                f"brokers ({ENDPOINT_BROKERS})",
            )
        return DescribeClusterResponse(
            endpoint_type=ENDPOINT_BROKERS,
            cluster_id=self._cluster.cluster_id,
            controller_id=self._cluster.node_id,
            brokers=[
                DescribeClusterBroker(
                    broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack
                )
                for node in self._cluster.nodes(call)
            ],
            cluster_authorized_operations=self._operations(call, request),
        )

    def _operations(self, call: KafkaCall, request: DescribeClusterRequest) -> int:
        if not request.include_cluster_authorized_operations:
            return NOT_ASKED
        if not self._views.may_on_cluster(call.context, Operation.DESCRIBE):
            return 0
        return bits(self._views.cluster_operations(call.context))

    async def list_partition_reassignments(
        self, call: KafkaCall, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        """A partition has no replicas to be moved, so none is ever under way."""
        if not self._views.may_on_cluster(call.context, Operation.DESCRIBE):
            return ListPartitionReassignmentsResponse(
                error_code=KafkaError.CLUSTER_AUTHORIZATION_FAILED, error_message=NOT_ALLOWED
            )
        return ListPartitionReassignmentsResponse(error_message=None)

    async def describe_log_dirs(
        self, call: KafkaCall, request: DescribeLogDirsRequest
    ) -> DescribeLogDirsResponse | Encoded:
        """The object store is the one log directory; its room is not known (-1)."""
        if not self._views.may_on_cluster(call.context, Operation.DESCRIBE):
            return DescribeLogDirsResponse(error_code=KafkaError.CLUSTER_AUTHORIZATION_FAILED)
        sizes = await self._sizes.of(call.context, _asked(request.topics))
        topics = await run_cooperatively(_topics(sizes))
        response = DescribeLogDirsResponse(
            results=[DescribeLogDirsResult(log_dir=self._log_dir, topics=topics)]
        )
        return await encoded(call, response, sum(map(len, sizes.values())), self._offload)


def _topics(sizes: Mapping[str, Mapping[int, int]]) -> Steps[list[DescribeLogDirsTopic]]:
    topics = []
    for name, partitions in sizes.items():
        rows = []
        for number, size in partitions.items():
            rows.append(DescribeLogDirsPartition(partition_index=number, partition_size=size))
            if len(rows) % PARTITIONS_PER_STEP == 0:
                yield
        topics.append(DescribeLogDirsTopic(name=name, partitions=rows))
        if len(topics) % TOPICS_PER_STEP == 0:
            yield
    return topics


def _asked(topics: Sequence[DescribableLogDirTopic] | None) -> dict[str, set[int]] | None:
    """Topic → partitions; None: all of them."""
    if topics is None:
        return None
    asked: dict[str, set[int]] = {}
    for topic in topics:
        asked.setdefault(topic.topic, set()).update(topic.partitions)
    return asked
