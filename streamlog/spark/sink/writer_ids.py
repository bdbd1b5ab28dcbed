"""Who writes: the name under which a node remembers what was committed.

A batch write has a name of its own, unless it is given one. A streaming query is known by the id
that Spark wrote into its checkpoint when the query first ran: it is the same for every run on that
checkpoint, and another one for a new checkpoint, whose batches are counted from 0 again.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote, urlsplit

import pyarrow.fs

from streamlog.errors import InvalidConfig
from streamlog.runtime.rand import Random
from streamlog.spark.sink.write_options import WriteOptions

METADATA = "metadata"
"""Spark's file in a checkpoint with the query's id."""
_REMOTE = {"s3a": "s3", "s3n": "s3"}
"""Hadoop's names of schemes that pyarrow knows by another."""


def batch_writer_id(options: WriteOptions, random: Random) -> str:
    return options.writer_id or f"spark-batch-{random.uuid()}"


def stream_writer_id(options: WriteOptions) -> str:
    """Errors: InvalidConfig where neither writerId nor the checkpoint tells it."""
    if options.writer_id is not None:
        return options.writer_id
    if options.checkpoint is None:
        raise InvalidConfig(
            "option checkpointLocation is missing, by whose query id repeated batches are known: "
            "give it to this query by .option, or give it a writerId",
            name="checkpointLocation",
        )
    return f"spark-query-{query_id(options.checkpoint)}"


def query_id(checkpoint: str) -> str:
    """Errors: InvalidConfig."""
    try:
        found = json.loads(_read(checkpoint))["id"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        _refuse(checkpoint, error)
    if not isinstance(found, str) or not re.fullmatch(r"[0-9A-Za-z-]{1,64}", found):
        _refuse(checkpoint, f"{METADATA} has the id {found!r}")
    return found


def _read(checkpoint: str) -> bytes:
    """Spark's own process wrote it; this one must find it by the same name."""
    parts = urlsplit(checkpoint)
    if parts.scheme in ("", "file"):
        path = unquote(parts.path) if parts.scheme else checkpoint
        return (Path(path) / METADATA).read_bytes()
    scheme = _REMOTE.get(parts.scheme, parts.scheme)
    files, path = pyarrow.fs.FileSystem.from_uri(parts._replace(scheme=scheme).geturl())
    with files.open_input_stream(f"{path.rstrip('/')}/{METADATA}") as stream:
        found: bytes = stream.read()
        return found


def _refuse(checkpoint: str, why: object) -> NoReturn:
    raise InvalidConfig(
        f"option checkpointLocation: the query's id cannot be read from {checkpoint}/{METADATA} by "
        f"the driver's Python ({why}); give the query a writerId, a new one for a new checkpoint",
        name="checkpointLocation",
    )
