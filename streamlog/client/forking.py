"""Clients that were closed, or forked into a child process: each further call raises an error.

A child process has the parent's objects, but not its threads, and its connections are the
parent's. A client used there would wait for ever for a thread that does not exist, or for a lock
that another thread held at the moment of the fork. gRPC's objects stay referenced in the child,
because freeing them takes locks of gRPC.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from streamlog.errors import Closed, Invalid, StreamlogError


class Forkable(Protocol):
    """A client whose calls raise `error` in a child process."""

    def after_fork(self, error: Invalid) -> None: ...


_clients: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(client: Forkable) -> None:
    """Calls `client.after_fork` in each process that is forked from this one."""
    _clients.add(client)


class CallGuard:
    """Refuses a client's calls once it is closed, and after a fork."""

    def __init__(self) -> None:
        self._error: StreamlogError | None = None
        watch(self)

    @property
    def is_ended(self) -> bool:
        return self._error is not None

    def check(self) -> None:
        """Errors: Closed; Invalid in a process that was forked after the client was made."""
        if self._error is not None:
            # Without the traceback of earlier raises, which would grow with each call.
            raise self._error.with_traceback(None)

    def checked(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """`start`, preceded by `check`."""

        def start_if_open(*arguments: Any, **options: Any) -> Any:
            self.check()
            return start(*arguments, **options)

        return start_if_open

    def close(self) -> bool:
        """Each further call raises. False where the client had ended before."""
        is_first = self._error is None
        if is_first:
            self._error = Closed("the client is closed; open another one")
        return is_first

    def after_fork(self, error: Invalid) -> None:
        self._error = error


def _in_child() -> None:
    for client in list(_clients):
        client.after_fork(
            Invalid(
                "this client was made before the process was forked, and "
                "its connection belongs to the parent process: make a new one in the child, or "
                'start processes with multiprocessing\'s method "spawn"'
            )
        )
    _clients.clear()


os.register_at_fork(after_in_child=_in_child)
