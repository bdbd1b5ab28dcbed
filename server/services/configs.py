"""Settings of topics, of this node and of all nodes: described, and changed while nodes run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from streamlog.errors import Invalid, InvalidConfig, UnknownTopicOrPartition
from streamlog.log.api import topic_config
from streamlog.server.context import (
    CLUSTER,
    Authorize,
    Operation,
    RequestContext,
    Resource,
    ResourceType,
)
from streamlog.server.services.config_entries import ConfigEntry, ConfigSource, Layers
from streamlog.server.services.ports import KnownTopic, Logs
from streamlog.settings import Settings, dynamic


class ResourceKind(Enum):
    TOPIC = 1
    BROKER = 2
    BROKER_DEFAULT = 3


class ConfigOperation(Enum):
    SET = 1
    DELETE = 2
    APPEND = 3
    SUBTRACT = 4


@dataclass(frozen=True, slots=True)
class ConfigChange:
    name: str
    operation: ConfigOperation
    value: str = ""


class ConfigService:
    def __init__(
        self, logs: Logs, settings: Settings, *, node_id: int, authorize: Authorize
    ) -> None:
        self._logs = logs
        self._settings = settings
        self.node_id = node_id
        self._authorize = authorize
        self._cached: tuple[Mapping[str, str], Mapping[str, str], Layers] | None = None

    def _layers(self, kind: ResourceKind = ResourceKind.BROKER) -> Layers:
        """Made anew only where something was set. BROKER_DEFAULT: without this node's own."""
        configs = self._logs.broker_configs
        own: Mapping[str, str] = {}
        if kind is not ResourceKind.BROKER_DEFAULT:
            own = configs.of(self.node_id)
        all_nodes = configs.of(None)
        cached = self._cached
        if cached is None or cached[0] != own or cached[1] != all_nodes:
            layers = Layers(self._settings, self.node_id, own, all_nodes)
            cached = self._cached = own, all_nodes, layers
        return cached[2]

    async def describe(
        self, context: RequestContext, kind: ResourceKind, name: str
    ) -> list[ConfigEntry]:
        """All settings of a topic, or of this node ("" as its name, too). BROKER_DEFAULT: those of
        a node for which nothing was set.

        Errors: UnknownTopicOrPartition, Invalid.
        """
        if kind is ResourceKind.TOPIC:
            self._authorize(context, Operation.DESCRIBE_CONFIGS, _topic(name))
            return self.topic_entries(self._topic(name).configs)
        self._authorize(context, Operation.DESCRIBE_CONFIGS, CLUSTER)
        if kind is ResourceKind.BROKER_DEFAULT:
            return self._layers(kind).broker_entries()
        self._check_broker(name)
        return self._layers().broker_entries()

    def topic_entries(self, own: Mapping[str, str]) -> list[ConfigEntry]:
        """All settings of a topic that sets `own` itself, whether or not it exists."""
        return self._layers().topic_entries(own, self.capped(own))

    def _topic(self, name: str) -> KnownTopic:
        topic = self._logs.topic(name)
        if topic is None:
            raise UnknownTopicOrPartition(
                f"there is no topic {name[:80]!r}; create it first", topic=name
            )
        return topic

    def _check_broker(self, name: str) -> None:
        if name not in ("", str(self.node_id)):
            raise Invalid(f"this is node {self.node_id}; ask node {name[:20]} itself")

    def capped(self, own: Mapping[str, str]) -> dict[str, str]:
        """A topic's settings that are above what this node can carry → the value in force."""
        name = topic_config.MAX_MESSAGE_BYTES
        given = {name: own[name]} if name in own else {}
        try:
            config = topic_config.parse(given, self._logs.defaults.topic, is_stored=True)
        except InvalidConfig:  # Another version stored it, and it is not in force.
            return {}
        bound = self._logs.message_bytes_max
        return {name: str(bound)} if config.max_message_bytes > bound else {}

    async def alter(
        self,
        context: RequestContext,
        kind: ResourceKind,
        name: str,
        changes: Sequence[ConfigChange],
        *,
        validate_only: bool,
        is_replacing: bool = False,
    ) -> None:
        """All changes or none; on return they are durable, and in force on this node.

        `is_replacing`: what is not set by them goes back to its default. Errors: InvalidConfig;
        Invalid for a setting that is read at the start, or named twice; UnknownTopicOrPartition.
        """
        resource = _topic(name) if kind is ResourceKind.TOPIC else CLUSTER
        self._authorize(context, Operation.ALTER_CONFIGS, resource)
        if kind is ResourceKind.TOPIC:
            self._topic(name)
            by_operation = _by_operation(changes)
            await self._logs.alter_topic_configs(
                name,
                set=by_operation[ConfigOperation.SET],
                delete=list(by_operation[ConfigOperation.DELETE]),
                append=by_operation[ConfigOperation.APPEND],
                subtract=by_operation[ConfigOperation.SUBTRACT],
                is_replacing=is_replacing,
                validate_only=validate_only,
            )
            return
        if kind is ResourceKind.BROKER:
            self._check_broker(name)
        node_id = self.node_id if kind is ResourceKind.BROKER else None
        altered = self._broker_change(changes, is_replacing=is_replacing)
        if validate_only:
            altered(self._logs.broker_configs.of(node_id))
        else:
            await self._logs.alter_broker_configs(node_id, altered)

    def _broker_change(
        self, changes: Sequence[ConfigChange], *, is_replacing: bool
    ) -> Callable[[Mapping[str, str]], dict[str, str]]:
        by_operation = _by_operation(
            [
                ConfigChange(dynamic.short_name(change.name), change.operation, change.value)
                for change in changes
            ]
        )
        topic, name = topic_config.MAX_MESSAGE_BYTES, "message.max.bytes"

        def altered(configs: Mapping[str, str]) -> dict[str, str]:
            changed = dynamic.alter(
                {} if is_replacing else configs,
                set=by_operation[ConfigOperation.SET],
                delete=list(by_operation[ConfigOperation.DELETE]),
                append=by_operation[ConfigOperation.APPEND],
                subtract=by_operation[ConfigOperation.SUBTRACT],
                in_force={"log.cleanup.policy": self._logs.defaults.topic.cleanup_policy},
            )
            if name in by_operation[ConfigOperation.SET]:
                topic_config.check_message_bytes(
                    {topic: changed[name]}, self._logs.message_bytes_max
                )
            return changed

        return altered

    def set_at_run_time(self, kind: ResourceKind) -> list[ConfigEntry]:
        """What was set for all nodes, or for this one, and nothing else."""
        source = (
            ConfigSource.ALL_BROKERS if kind is ResourceKind.BROKER_DEFAULT else ConfigSource.BROKER
        )
        return [
            replace(
                entry,
                synonyms=tuple(synonym for synonym in entry.synonyms if synonym.source is source),
            )
            for entry in self._layers(kind).broker_entries()
            if entry.kafka_source is source
        ]


def _by_operation(changes: Sequence[ConfigChange]) -> dict[ConfigOperation, dict[str, str]]:
    """Errors: Invalid for a setting that is named twice."""
    by_operation: dict[ConfigOperation, dict[str, str]] = {
        operation: {} for operation in ConfigOperation
    }
    for change in changes:
        if any(change.name in named for named in by_operation.values()):
            raise Invalid(f"{change.name[:80]} is changed twice in one request")
        by_operation[change.operation][change.name] = change.value
    return by_operation


def _topic(name: str) -> Resource:
    return Resource(ResourceType.TOPIC, name)
