"""Clients as the common options ask for them, closed when the command ends.

Each waits a moment for a node to listen, so that a command right behind `streamlog dev &` works,
and no longer, so that a node that is not there is told at once.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from streamlog.cli.output import note
from streamlog.cli.state import State
from streamlog.client import KV, Admin, Streams
from streamlog.client.channel import target_of
from streamlog.errors import Unavailable

LISTEN_WAIT_S = 3.0
LISTEN_PAUSE_S = 0.1


def await_listener(state: State) -> None:
    """Returns when somebody listens at the server's address.

    Errors: Unavailable after LISTEN_WAIT_S, or after the command's own time limit if that is
    shorter; Invalid where the address is none.
    """
    host, _, port = target_of(state.server).rpartition(":")
    wait_s = min(LISTEN_WAIT_S, state.timeout_s)
    ends_at = time.monotonic() + wait_s
    is_told = not sys.stderr.isatty()
    while True:
        left_s = ends_at - time.monotonic()
        try:
            with socket.create_connection((host.strip("[]"), int(port)), max(left_s, 0.01)):
                return
        except OSError as error:
            if left_s <= LISTEN_PAUSE_S:
                raise Unavailable(
                    f"no node answers at {state.server}: {error.strerror or error}; start one with "
                    "`streamlog dev`, or name another with --server HOST:PORT",
                ) from None
        if not is_told:
            note(f"nobody listens at {state.server} yet; waiting up to {wait_s:g} s")
            is_told = True
        time.sleep(LISTEN_PAUSE_S)


@contextmanager
def admin(state: State) -> Iterator[Admin]:
    await_listener(state)
    client = Admin(state.server, timeout_ms=int(state.timeout_s * 1000))
    try:
        yield client
    finally:
        client.close()


@contextmanager
def streams(state: State) -> Iterator[Streams]:
    await_listener(state)
    client = Streams(state.server, timeout_ms=int(state.timeout_s * 1000))
    try:
        yield client
    finally:
        client.close()


@contextmanager
def key_values(state: State) -> Iterator[KV]:
    await_listener(state)
    client = KV(state.server, timeout_ms=int(state.timeout_s * 1000))
    try:
        yield client
    finally:
        client.close()
