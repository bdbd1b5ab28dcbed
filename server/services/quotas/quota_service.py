"""Describes and changes the quotas of clients, which are kept for all nodes.

Owners of quotas are client ids, and None: all clients that have none of their own. There are no
users yet, so there are no quotas of users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from streamlog.errors import Invalid
from streamlog.server.context import CLUSTER, Authorize, Operation, RequestContext
from streamlog.server.limits.quotas.quota_values import check, kind_of, readable, written
from streamlog.server.services.ports import Logs
from streamlog.settings.limits import CLIENT_ID_BYTES_MAX


class StoredQuota(NamedTuple):
    """What was set for one owner, by the names of the quotas."""

    client_id: str | None
    values: Mapping[str, float]


class QuotaService:
    def __init__(self, logs: Logs, *, authorize: Authorize) -> None:
        self._logs = logs
        self._authorize = authorize

    def describe_all(self, context: RequestContext) -> list[StoredQuota]:
        """What was set, for each owner for which something is, None first. Errors: Unauthorized."""
        self._authorize(context, Operation.DESCRIBE_CONFIGS, CLUSTER)
        stored = self._logs.client_configs
        every = (
            StoredQuota(client_id, readable(stored.of(client_id)))
            for client_id in stored.client_ids()
        )
        return [quota for quota in every if quota.values]

    def describe(self, context: RequestContext, client_id: str | None) -> Mapping[str, float]:
        """What was set for one owner. Errors: Unauthorized, Invalid."""
        self._authorize(context, Operation.DESCRIBE_CONFIGS, CLUSTER)
        _check_client_id(client_id)
        return readable(self._logs.client_configs.of(client_id))

    async def alter(
        self,
        context: RequestContext,
        client_id: str | None,
        *,
        set: Mapping[str, float],
        delete: Sequence[str],
        validate_only: bool = False,
    ) -> None:
        """All changes or none; on return they are durable, and in force on this node.

        Errors: Invalid, Unauthorized; those of StoredConfigs.alter.
        """
        self._authorize(context, Operation.ALTER_CONFIGS, CLUSTER)
        _check_client_id(client_id)
        for name, value in set.items():
            check(name, value)

        def altered(configs: Mapping[str, str]) -> dict[str, str]:
            for name in delete:
                if name not in configs:  # What another version stored can be deleted.
                    kind_of(name)
            kept = {name: text for name, text in configs.items() if name not in delete}
            return {**kept, **{name: written(value) for name, value in set.items()}}

        if validate_only:
            altered(self._logs.client_configs.of(client_id))
        else:
            await self._logs.alter_client_configs(client_id, altered)


def _check_client_id(client_id: str | None) -> None:
    """Errors: Invalid for an id under which no client can be known."""
    if client_id == "":
        raise Invalid(
            "the client id is empty; clients without one have the quotas of the default client id"
        )
    size = 0 if client_id is None else len(client_id.encode())
    if size > CLIENT_ID_BYTES_MAX:
        raise Invalid(f"the client id has {size} bytes; at most {CLIENT_ID_BYTES_MAX} are known")
