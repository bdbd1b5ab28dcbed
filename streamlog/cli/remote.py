"""Clients made from the common options, closed when the command ends.

Each waits a moment for a node to listen, so that a command right behind `streamlog dev &` works,
and no longer, so that a missing node is reported soon. With --timeout it waits that long, because a
node that reads a long log is slow to start. Errors of a connection name the address.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from streamlog.cli.output import SILENCE_TOLD_AFTER_S, note
from streamlog.cli.standard_streams import stderr_is_terminal
from streamlog.cli.state import State
from streamlog.client import KV, Admin, Consumer, Partitions, Producer, Streams
from streamlog.client.diagnosis import CLOSED_TEXT, NOT_GRPC
from streamlog.errors import (
    Invalid,
    OutcomeUnknown,
    StreamlogError,
    StreamNotFound,
    TlsHandshakeFailed,
    Unavailable,
    UnknownTopicOrPartition,
)

LISTEN_WAIT_S = 3.0
LISTEN_PAUSE_S = 0.1
# Commands report errors themselves; Python would print the clients' log lines without a format.
logging.getLogger("streamlog.client").addHandler(logging.NullHandler())

HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""HTTP/2's preface and an empty SETTINGS frame; a server answers with its own SETTINGS at once."""

PRODUCER_BUFFER_BYTES = 16 << 20
"""Small, so that a slow network still empties it within --timeout."""


def await_listener(state: State) -> None:
    """Returns when a process listens at the server's address.

    A thread then checks whether the process answers. The kernel accepts connections for a node that
    hangs, and the command would wait silently for its whole time limit.

    Errors: Unavailable after LISTEN_WAIT_S, or after the time limit that the user gave.
    """
    host, _, port = state.server.rpartition(":")
    wait_s = state.timeout_s if state.is_timeout_given else LISTEN_WAIT_S
    ends_at = time.monotonic() + wait_s
    is_told = not stderr_is_terminal()
    while True:
        left_s = ends_at - time.monotonic()
        try:
            address = (host.strip("[]"), int(port))
            connection = socket.create_connection(address, max(left_s, 0.01))
            break
        except OSError as error:
            if left_s <= LISTEN_PAUSE_S:
                raise Unavailable(
                    f"no node answers at {state.server} within {wait_s:g} s: "
                    f"{error.strerror or error}; start one with `streamlog dev`, or name another "
                    "with --server HOST:PORT; --timeout waits longer for one that starts",
                ) from None
        if not is_told:
            note(f"nothing listens at {state.server} yet; waiting up to {wait_s:g} s")
            is_told = True
        time.sleep(LISTEN_PAUSE_S)
    if state.timeout_s <= SILENCE_TOLD_AFTER_S:
        connection.close()
        return
    threading.Thread(target=_tell_silence, args=(connection, state), daemon=True).start()


def _tell_silence(connection: socket.socket, state: State) -> None:
    """Says on stderr what is odd about a server that gives no answer for some seconds."""
    begun = time.monotonic()
    with connection, contextlib.ExitStack() as opened:
        connection.settimeout(SILENCE_TOLD_AFTER_S)
        is_answered = False
        try:
            if state.connection is not None:
                # Whose answer it is does not matter: the command's own connection checks that.
                context = ssl._create_unverified_context()
                connection = opened.enter_context(context.wrap_socket(connection))
            connection.sendall(HTTP2_GREETING)
            is_answered = bool(connection.recv(1))
            what = f"closes connections{CLOSED_TEXT}"
        except TimeoutError:
            what = f"takes connections and has not answered for {SILENCE_TOLD_AFTER_S:g} s"
        except (ConnectionError, ssl.SSLError):
            what = f"closes connections{CLOSED_TEXT}"
    if not is_answered:
        # By then the command has ended, where its own connection found out what is there.
        time.sleep(max(0.0, SILENCE_TOLD_AFTER_S - (time.monotonic() - begun)))
        note(f"{state.server} {what}; waiting up to {state.timeout_s:g} s (--timeout)")


@contextmanager
def named_server(state: State) -> Iterator[None]:
    """Errors of the connection that leave the block name the address and the time limit."""
    try:
        yield
    except StreamlogError as error:
        raise with_server(error, state) from error


def with_server(error: StreamlogError, state: State) -> StreamlogError:
    """The error with the node's address in it, where the connection is what failed."""
    # Subclasses of these come from the node itself, so the connection works.
    is_connection = type(error) in (Unavailable, OutcomeUnknown, TlsHandshakeFailed)
    is_foreign = isinstance(error, Invalid) and NOT_GRPC in error.message
    if state.server in error.message or not (is_connection or is_foreign):
        return error
    named = type(error)(f"{state.server}: {error.message}", **error.fields)
    named.has_no_side_effects = error.has_no_side_effects
    return named


@contextmanager
def admin(state: State) -> Iterator[Admin]:
    """An UnknownTopicOrPartition that leaves the block names the nearest topic that exists."""
    await_listener(state)
    client = Admin(state.server, timeout_ms=state.timeout_ms, tls=state.connection)
    try:
        with named_server(state):
            try:
                yield client
            except UnknownTopicOrPartition as error:
                raise with_near_topic(client, error) from error
    finally:
        client.close()


def with_near_topic(client: Admin, error: UnknownTopicOrPartition) -> StreamlogError:
    """The error with a hint: the nearest topic name, or that there is none at all."""
    asked = str(error.fields.get("topic", ""))
    try:
        topics = [topic.name for topic in client.list_topics()]
    except StreamlogError:
        # Only the hint is lost.
        return error
    if not asked or asked in topics:
        return error
    near = difflib.get_close_matches(asked, topics, n=1)
    if near:
        hint = f"did you mean {near[0]}?"
    elif topics:
        hint = "`streamlog topic list` shows those that exist"
    else:
        hint = "the node has no topic yet"
    return UnknownTopicOrPartition(f"{error.message}; {hint}", **error.fields)


@contextmanager
def streams(state: State) -> Iterator[Streams]:
    await_listener(state)
    client = Streams(state.server, timeout_ms=state.timeout_ms, tls=state.connection)
    try:
        with named_server(state):
            try:
                yield client
            except StreamNotFound as error:
                raise StreamNotFound(
                    f"{error.message}; `streamlog stream list` shows those that exist",
                    **error.fields,
                ) from error
    finally:
        client.close()


@contextmanager
def partitions(state: State) -> Iterator[Partitions]:
    await_listener(state)
    client = Partitions(state.server, timeout_ms=state.timeout_ms, tls=state.connection)
    try:
        with named_server(state):
            yield client
    finally:
        client.close()


@contextmanager
def key_values(state: State) -> Iterator[KV]:
    await_listener(state)
    client = KV(state.server, timeout_ms=state.timeout_ms, tls=state.connection)
    try:
        with named_server(state):
            yield client
    finally:
        client.close()


@contextmanager
def consumer(
    state: State,
    isolation: str = "read_uncommitted",
    *,
    auto_offset_reset: str = "earliest",
    kind: type[Consumer] = Consumer,
) -> Iterator[Consumer]:
    """A consumer whose look-ups and single fetches end after --timeout."""
    client = kind(
        state.server,
        isolation_level=isolation,
        auto_offset_reset=auto_offset_reset,
        request_timeout_ms=state.timeout_ms,
        default_api_timeout_ms=state.timeout_ms,
        fetch_max_wait_ms=min(500, state.timeout_ms),
        tls=state.connection,
    )
    try:
        with named_server(state):
            yield client
    finally:
        client.close()


@contextmanager
def producer(
    state: State,
    compression: str,
    transactional_id: str | None = None,
    transaction_timeout_ms: int = 60_000,
) -> Iterator[Producer]:
    """A producer that gives a record up --timeout after its send; the end of the block flushes."""
    client = Producer(
        state.server,
        transactional_id=transactional_id,
        transaction_timeout_ms=transaction_timeout_ms,
        compression=compression,
        buffer_memory_bytes=PRODUCER_BUFFER_BYTES,
        max_block_ms=state.timeout_ms,
        delivery_timeout_ms=state.timeout_ms,
        request_timeout_ms=state.timeout_ms,
        tls=state.connection,
    )
    with named_server(state), client:
        yield client
