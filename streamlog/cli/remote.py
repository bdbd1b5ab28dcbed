"""Clients as the common options ask for them, closed when the command ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamlog.cli.state import State
from streamlog.client import KV, Admin, Streams


@contextmanager
def admin(state: State) -> Iterator[Admin]:
    client = Admin(state.server, timeout_ms=int(state.timeout_s * 1000))
    try:
        yield client
    finally:
        client.close()


@contextmanager
def streams(state: State) -> Iterator[Streams]:
    client = Streams(state.server, timeout_ms=int(state.timeout_s * 1000))
    try:
        yield client
    finally:
        client.close()


@contextmanager
def key_values(state: State) -> Iterator[KV]:
    client = KV(state.server, timeout_ms=int(state.timeout_s * 1000))
    try:
        yield client
    finally:
        client.close()
