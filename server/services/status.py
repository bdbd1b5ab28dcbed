"""A node's description of itself, and a backup of its metadata."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from streamlog.server.context import CLUSTER, Authorize, Operation, RequestContext


class StatusService:
    """`status` gives the fields of GetStatusResponse by name, `backup` a file in pieces."""

    def __init__(
        self,
        status: Callable[[], Awaitable[dict[str, Any]]],
        backup: Callable[[], AsyncIterator[bytes]],
        *,
        authorize: Authorize,
    ) -> None:
        self._status = status
        self._backup = backup
        self._authorize = authorize

    async def status(self, context: RequestContext) -> dict[str, Any]:
        """Errors: Unauthorized."""
        self._authorize(context, Operation.DESCRIBE, CLUSTER)
        return await self._status()

    def backup(self, context: RequestContext) -> AsyncIterator[bytes]:
        """It holds every user's values, so that DESCRIBE is too little. Errors: Unauthorized."""
        self._authorize(context, Operation.ALTER, CLUSTER)
        return self._backup()
