"""What CreateTopics and CreatePartitions ask for, checked as a Kafka of these nodes would.

A manual assignment says which brokers hold which partition. The node that leads a partition is
chosen elsewhere, so an assignment gives the count of partitions and nothing more; it is refused
where Kafka would refuse it, as one that names a broker that is not there.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.errors import (
    Invalid,
    InvalidConfig,
    InvalidPartitions,
    StreamlogError,
    Unavailable,
)
from streamlog.kafka.messages.create_partitions_request import CreatePartitionsTopic
from streamlog.kafka.messages.create_topics_request import CreatableTopic
from streamlog.kafka.protocol.errors import ErrorAnswer, KafkaError, answer_to
from streamlog.server.kafka.cluster_view import ClusterView

DEFAULT = -1
"""Of partitions or replicas: the broker's default, or what the assignment says."""
_ASSIGNMENT = KafkaError.INVALID_REPLICA_ASSIGNMENT


class Refused(Invalid):
    """Kafka has an error of its own for it, which streamlog's tree does not have."""

    def __init__(self, kafka_error: KafkaError, message: str) -> None:
        super().__init__(message)
        self.kafka_error = kafka_error


def partitions_of(topic: CreatableTopic, cluster: ClusterView) -> int:
    """How many partitions are asked for; 0: the broker's default.

    Errors: InvalidPartitions, Refused, Invalid.
    """
    if topic.assignments:
        return _assigned(topic, cluster)
    if topic.replication_factor < DEFAULT or topic.replication_factor == 0:
        raise Refused(
            KafkaError.INVALID_REPLICATION_FACTOR,
            f"a replication factor of {topic.replication_factor}; give 1 or more, or -1 for the "
            "default (the store replicates, whatever the factor is)",
        )
    if topic.num_partitions < DEFAULT or topic.num_partitions == 0:
        raise InvalidPartitions(
            f"{topic.num_partitions} partitions; give 1 or more, or -1 for the default"
        )
    return max(0, topic.num_partitions)


def check_creations(topics: Sequence[CreatableTopic], most: int) -> None:
    """Errors: Refused, since an answer is a hundred times larger than its request.

    Kafka refuses more than 10,000 partitions in one request, with the same code.
    """
    if len(topics) > most:
        raise Refused(
            KafkaError.POLICY_VIOLATION,
            f"the request names {len(topics)} topics; at most {most} are allowed "
            "(limits.partitions_per_request_max): split it",
        )


def configs_of(topic: CreatableTopic) -> dict[str, str]:
    """Errors: InvalidConfig."""
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise InvalidConfig(f"{config.name[:80]} is null; leave it out for its default")
        configs[config.name] = config.value
    return configs


def _assigned(topic: CreatableTopic, cluster: ClusterView) -> int:
    if topic.num_partitions != DEFAULT or topic.replication_factor != DEFAULT:
        raise Invalid(
            "a manual assignment says how many partitions and replicas there are: give -1 for both"
        )
    numbers = sorted(assignment.partition_index for assignment in topic.assignments)
    if numbers != list(range(len(numbers))):
        raise Refused(_ASSIGNMENT, "assign partitions 0, 1, 2 and so on, each of them once")
    for assignment in topic.assignments:
        check_brokers(assignment.broker_ids, cluster)
    return len(numbers)


def check_brokers(broker_ids: Sequence[int], cluster: ClusterView) -> None:
    """Errors: Refused."""
    if not broker_ids or len(set(broker_ids)) != len(broker_ids):
        raise Refused(_ASSIGNMENT, "assign each partition to a broker, and to none twice")
    for broker_id in broker_ids:
        if not cluster.is_live(broker_id):
            raise Refused(
                _ASSIGNMENT, f"the assignment names broker {broker_id}, which is not in the cluster"
            )


def check_growth(partitions: int, topic: CreatePartitionsTopic, cluster: ClusterView) -> None:
    """`partitions`: what the topic has. Errors: InvalidPartitions, Refused."""
    more = topic.count - partitions
    if more <= 0:
        raise InvalidPartitions(
            f"{topic.name} has {partitions} partitions; their number can only grow, and "
            f"{topic.count} is no growth"
        )
    if topic.assignments is None:
        return
    if len(topic.assignments) != more:
        raise Refused(
            _ASSIGNMENT,
            f"{more} partitions would be added, but {len(topic.assignments)} are assigned",
        )
    for assignment in topic.assignments:
        check_brokers(assignment.broker_ids, cluster)


def refusal(error: StreamlogError) -> ErrorAnswer:
    """Code and message of a topic's result.

    NOT_CONTROLLER where nothing was done because the metadata or the store is away, or the node has
    too many requests: Java, franz-go and kafka-python look for the controller, which is this node,
    and ask again until their time is up. They would hand any other code to their user at once.
    """
    if isinstance(error, Refused):
        return ErrorAnswer(error.kafka_error, error.message)
    answer = answer_to(error)
    if isinstance(error, Unavailable) and error.has_no_side_effects:
        return answer._replace(code=KafkaError.NOT_CONTROLLER)
    return answer
