"""Options of `df.write.format("streamlog")` and `writeStream`: those of Spark's Kafka sink, and our
own. Spark passes their names in lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from streamlog.client.settings import COMPRESSIONS
from streamlog.client.tls import Tls
from streamlog.codec.batch import Compression
from streamlog.spark.options import TLS_OPTIONS, OptionValues

BATCH_BYTES_DEFAULT = 64 << 10
BATCH_BYTES_MIN = 512
BUFFER_BYTES_DEFAULT = 64 << 20
BUFFER_BYTES_MIN = 1 << 20
TIMEOUT_MS_DEFAULT = 120_000
WRITER_ID_BYTES_MAX = 200
STAGED_TTL_MS_MAX = 365 * 24 * 3600 * 1000
"""The bound of a node."""

WRITE_OPTIONS = {
    "server": "host:port of a node",
    **TLS_OPTIONS,
    "topic": "the topic of all rows; without it, the column topic",
    "compression": "none, gzip, snappy, lz4 or zstd",
    "batchBytes": "bytes of a record batch at most, before compression",
    "bufferBytes": "what a task gathers, encoded, before it stores it",
    "writerId": "who writes; the same for all runs that together must write once",
    "commit": "node or transaction: who makes all records of a write visible at once",
    "writerEpoch": "of a batch write with writerId: which of its writes this is, rising",
    "timeoutMs": "how long a call to a node that is not there is repeated",
    "stagedTtlMs": "how long staged records are kept when nothing commits them",
}
"""Names as users write them, with their values."""
_READ_ALONE = ("store", "meta", "readMode")


class CommitKind(Enum):
    """Who commits a write."""

    NODE = "node"
    """The node that leads all of its partitions, by one step."""
    TRANSACTION = "transaction"
    """The transaction coordinator, whoever leads the partitions."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Checked options of a batch or streaming write; holds no secrets."""

    server: str
    tls: Tls | None = None
    topic: str | None = None
    compression: Compression = Compression.NONE
    batch_bytes: int = BATCH_BYTES_DEFAULT
    buffer_bytes: int = BUFFER_BYTES_DEFAULT
    writer_id: str | None = None
    """None: a new id for each batch write, the query's id for a stream."""
    writer_epoch: int = 0
    """The epoch of a batch write."""
    timeout_ms: int = TIMEOUT_MS_DEFAULT
    staged_ttl_ms: int = 0
    """0: the node's setting, a day by default."""
    commit: CommitKind = CommitKind.NODE
    checkpoint: str | None = None
    """The checkpoint of the streaming query, as it was given to Spark."""


def parse_write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Errors: InvalidConfig, which names the option."""
    accepted = (*WRITE_OPTIONS, *_READ_ALONE, "checkpointLocation")
    options = OptionValues(given, accepted, is_write=True)
    options.check_known()
    for name in _READ_ALONE:
        if options.has(name):
            options.refuse(name, "is for reading; writes go through a node: give server")
    server = options.server()
    if server is None:
        options.refuse("server", "is missing: writes go through a node")
    writer_id = options.text("writerId")
    if writer_id is not None and len(writer_id.encode()) > WRITER_ID_BYTES_MAX:
        options.refuse("writerId", f"is longer than {WRITER_ID_BYTES_MAX} bytes")
    if options.has("writerEpoch"):
        if streaming:
            options.refuse("writerEpoch", "is for batch writes; a stream's epochs are its batches")
        if writer_id is None:
            options.refuse("writerEpoch", "needs writerId")
    compression = options.choice("compression", tuple(COMPRESSIONS), "none")
    return WriteOptions(
        server=server,
        tls=options.tls(),
        topic=options.text("topic"),
        compression=COMPRESSIONS[compression],
        batch_bytes=options.number("batchBytes", BATCH_BYTES_MIN, 1 << 30) or BATCH_BYTES_DEFAULT,
        buffer_bytes=options.number("bufferBytes", BUFFER_BYTES_MIN, 1 << 30)
        or BUFFER_BYTES_DEFAULT,
        writer_id=writer_id,
        writer_epoch=options.number("writerEpoch", 0) or 0,
        timeout_ms=options.number("timeoutMs", 1) or TIMEOUT_MS_DEFAULT,
        commit=CommitKind(
            options.choice("commit", tuple(kind.value for kind in CommitKind), "node")
        ),
        staged_ttl_ms=options.number("stagedTtlMs", 1000, STAGED_TTL_MS_MAX) or 0,
        checkpoint=options.text("checkpointLocation"),
    )
