"""Who calls, and what they may do: every request of every listener has a RequestContext."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

ANONYMOUS = "anonymous"


@dataclass(frozen=True, slots=True)
class RequestContext:
    """`deadline` is on the injected clock's monotonic scale, seconds; None: no end."""

    principal: str = ANONYMOUS
    client_id: str = ""
    trace_id: str = ""
    deadline: float | None = None
    peer: str = ""


class Operation(Enum):
    """What a request wants to do with a resource; Kafka's names."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    DESCRIBE_CONFIGS = "describe_configs"
    ALTER_CONFIGS = "alter_configs"
    IDEMPOTENT_WRITE = "idempotent_write"


class ResourceType(Enum):
    CLUSTER = "cluster"
    TOPIC = "topic"
    STREAM = "stream"
    NAMESPACE = "namespace"


@dataclass(frozen=True, slots=True)
class Resource:
    kind: ResourceType
    name: str


CLUSTER = Resource(ResourceType.CLUSTER, "cluster")

Authorize = Callable[[RequestContext, Operation, Resource], None]
"""Returns, or raises Unauthorized. Called once for each resource of a request."""


def allow_all(context: RequestContext, operation: Operation, resource: Resource) -> None:
    """The only rule until principals and permissions exist."""
