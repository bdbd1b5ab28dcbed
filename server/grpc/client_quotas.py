"""Quotas of clients as settings of AdminService: the resources client and client default."""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.errors import Invalid
from streamlog.server.context import RequestContext
from streamlog.server.limits.quotas.quota_values import DOCUMENTATION, QuotaKind, parsed, written
from streamlog.server.services.configs import ConfigChange, ConfigOperation
from streamlog.server.services.quotas.quota_service import QuotaService
from streamlog.v1 import admin_pb2

_OF_ONE = admin_pb2.CONFIG_RESOURCE_TYPE_CLIENT
_OF_OTHERS = admin_pb2.CONFIG_RESOURCE_TYPE_CLIENT_DEFAULT


def is_of_clients(resource: admin_pb2.ConfigResource) -> bool:
    """Whether its settings are quotas."""
    return resource.type in (_OF_ONE, _OF_OTHERS)


def entries(
    quotas: QuotaService, context: RequestContext, resource: admin_pb2.ConfigResource
) -> list[admin_pb2.ConfigEntry]:
    """Every quota, set or not; what is not set for a client id is the default's. Errors: Invalid,
    Unauthorized."""
    client_id = _client_id(resource)
    own, others = quotas.describe(context, client_id), quotas.describe(context, None)
    described = []
    for kind in QuotaKind:
        name, source = kind.value, "not set"
        if name in own:
            source = "default client id" if client_id is None else "client id"
        elif name in others:
            source = "default client id"
        value = own.get(name, others.get(name))
        default = None if client_id is None else others.get(name)
        described.append(
            admin_pb2.ConfigEntry(
                name=name,
                value="" if value is None else written(value),
                source=source,
                documentation=DOCUMENTATION[kind],
                default_value="" if default is None else written(default),
                type="double",
            )
        )
    return described


async def alter(
    quotas: QuotaService,
    context: RequestContext,
    resource: admin_pb2.ConfigResource,
    changes: Sequence[ConfigChange],
    *,
    validate_only: bool,
) -> None:
    """All changes or none. Errors: Invalid, Unauthorized; those of the metadata store."""
    to_set: dict[str, float] = {}
    to_delete: list[str] = []
    for change in changes:
        if change.name in to_set or change.name in to_delete:
            raise Invalid(f"{change.name[:80]} is changed twice in one request")
        if change.operation is ConfigOperation.SET:
            to_set[change.name] = parsed(change.name, change.value)
        elif change.operation is ConfigOperation.DELETE:
            to_delete.append(change.name)
        else:
            raise Invalid(f"{change.name[:80]} is no list; set it, or delete it")
    await quotas.alter(
        context,
        _client_id(resource),
        set=to_set,
        delete=to_delete,
        validate_only=validate_only,
    )


def _client_id(resource: admin_pb2.ConfigResource) -> str | None:
    """Errors: Invalid."""
    if resource.type == _OF_ONE:
        return resource.name
    if resource.name:
        raise Invalid("the default client id has no name; leave it empty")
    return None
