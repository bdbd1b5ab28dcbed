"""Clients in a forked child process: they cannot work there, and each call says so.

A child process has the parent's objects, but not its threads, and its connections are the
parent's. A client used there would wait for ever for a thread that does not exist, or hang on a
lock that another thread held at the moment of the fork. The objects of gRPC stay referenced there:
freeing them takes locks of gRPC's own.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from streamlog.errors import Invalid


class Forkable(Protocol):
    """A client whose calls raise `error` once the process was forked."""

    def after_fork(self, error: Invalid) -> None: ...


_clients: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(client: Forkable) -> None:
    """Calls `client.after_fork` in each process that is forked from this one."""
    _clients.add(client)


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
