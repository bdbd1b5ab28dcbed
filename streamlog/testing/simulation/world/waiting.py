"""The clients' calls that have no answer yet, so that a call that is never answered is found.

A session that ends cancels its calls, and a cancelled call no longer shows that its answer would
never have come. So a history ends in two steps: first the world heals and sessions no longer end,
and every call that waits then must be answered; only then are the sessions cancelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from streamlog.testing.simulation.world.node import SimulationNode


@dataclass(eq=False, slots=True)
class WaitingCall:
    """One call: its node, its purpose, and since when it waits (virtual seconds)."""

    node: SimulationNode
    purpose: str
    since: float

    def __str__(self) -> str:
        return f"{self.purpose} at {self.node} since {self.since:.3f}"


class WaitingCalls:
    """All calls without an answer, in the order in which they were made."""

    def __init__(self) -> None:
        self._calls: dict[WaitingCall, None] = {}

    @contextmanager
    def waiting(self, node: SimulationNode, purpose: str, now: float) -> Iterator[None]:
        """The call waits inside."""
        call = WaitingCall(node, purpose, now)
        self._calls[call] = None
        try:
            yield
        finally:
            del self._calls[call]

    def at_serving_nodes(self) -> list[WaitingCall]:
        """The calls whose node serves, and so owes an answer."""
        return [call for call in self._calls if call.node.is_serving]

    def still_waiting(self, calls: list[WaitingCall]) -> list[WaitingCall]:
        """The calls among `calls` whose node still serves and has not answered."""
        return [call for call in calls if call in self._calls and call.node.is_serving]
