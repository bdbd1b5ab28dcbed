"""The client of a write: one that commits by a node, or by a transaction."""

from __future__ import annotations

from streamlog.client.producer_identity import ProducerIdentity
from streamlog.client.staged_transactions import TransactionalStagedWriter
from streamlog.client.staging import StagedWriter
from streamlog.client.tls import Tls
from streamlog.spark.cluster.cluster import CLIENT_ID


def staged_writer(
    server: str,
    writer_id: str,
    producer: ProducerIdentity | None,
    timeout_ms: int,
    tls: Tls | None,
) -> StagedWriter:
    """`producer`: whose transaction commits; None: a node commits."""
    if producer is None:
        return StagedWriter(server, writer_id, timeout_ms=timeout_ms, client_id=CLIENT_ID, tls=tls)
    return TransactionalStagedWriter(
        server, writer_id, producer, timeout_ms=timeout_ms, client_id=CLIENT_ID, tls=tls
    )


def initialised(server: str, writer_id: str, timeout_ms: int, tls: Tls | None) -> ProducerIdentity:
    """Makes this driver the only one that commits for the writer id. Errors: Unavailable."""
    with TransactionalStagedWriter(
        server, writer_id, timeout_ms=timeout_ms, client_id=CLIENT_ID, tls=tls
    ) as writer:
        return writer.initialise()
