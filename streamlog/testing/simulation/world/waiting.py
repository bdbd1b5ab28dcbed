"""Calls of users that have no answer yet, so that a call that never gets one is found.

A session cancels its calls when it ends, and a cancelled call no longer shows that it would never
have been answered. So a history ends in two steps: first all faults cease and no session ends any
more, and each call that waits then must be answered; only then the sessions are cancelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamlog.testing.simulation.world.node import Node


@dataclass(eq=False, slots=True)
class Call:
    """One call: at which node, what for, and since when (virtual seconds)."""

    node: Node
    what: str
    since: float

    def __str__(self) -> str:
        return f"{self.what} at {self.node} since {self.since:.3f}"


class WaitingCalls:
    """All calls that have no answer, in the order in which they were made."""

    def __init__(self) -> None:
        self._calls: dict[Call, None] = {}

    @contextmanager
    def waiting(self, node: Node, what: str, now: float) -> Iterator[None]:
        """The call waits inside."""
        call = Call(node, what, now)
        self._calls[call] = None
        try:
            yield
        finally:
            del self._calls[call]

    def at_serving_nodes(self) -> list[Call]:
        """Those that a node which serves owes an answer."""
        return [call for call in self._calls if call.node.is_serving]

    def still(self, calls: list[Call]) -> list[Call]:
        """Of `calls` those that a node still owes an answer."""
        return [call for call in calls if call in self._calls and call.node.is_serving]
