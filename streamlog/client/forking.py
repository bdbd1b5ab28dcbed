"""Clients that have ended, above all in a forked child process: each further call says so.

A child process has the parent's objects, but not its threads, and its connections are the
parent's. A client used there would wait for ever for a thread that does not exist, or hang on a
lock that another thread held at the moment of the fork. The objects of gRPC stay referenced there:
freeing them takes locks of gRPC's own.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from streamlog.errors import Closed, Invalid, StreamlogError


class Forkable(Protocol):
    """A client whose calls raise `error` once the process was forked."""

    def after_fork(self, error: Invalid) -> None: ...


_clients: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(client: Forkable) -> None:
    """Calls `client.after_fork` in each process that is forked from this one."""
    _clients.add(client)


class CallGuard:
    """Whether a client's calls may start: not once it is closed, nor after a fork."""

    def __init__(self) -> None:
        self._error: StreamlogError | None = None
        watch(self)

    @property
    def is_ended(self) -> bool:
        return self._error is not None

    def check(self) -> None:
        """Errors: Closed; Invalid in a process that was forked after the client was made."""
        if self._error is not None:
            # Without the traceback of former raises: it would grow with each call.
            raise self._error.with_traceback(None)

    def checked(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """`start`, which has the errors of `check` now."""

        def start_if_open(*arguments: Any, **options: Any) -> Any:
            self.check()
            return start(*arguments, **options)

        return start_if_open

    def close(self) -> bool:
        """Each further call raises. False: it had ended before, and there is nothing to free."""
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
