"""Writer ids: the names under which a node remembers committed epochs.

A batch write has a new id, unless it is given one. A streaming query has the id that Spark wrote
into its checkpoint at the first run: all runs on that checkpoint share it, and a new checkpoint,
whose batches are counted from 0 again, has another.
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
"""The file in a checkpoint where Spark keeps the query's id."""
_REMOTE = {"s3a": "s3", "s3n": "s3"}
"""Hadoop's URL schemes → those of pyarrow."""


def batch_writer_id(options: WriteOptions, random: Random) -> str:
    return options.writer_id or f"spark-batch-{random.uuid()}"


def stream_writer_id(options: WriteOptions) -> str:
    """Errors: InvalidConfig, if there is neither a writerId nor a readable checkpoint."""
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
        value = json.loads(_read(checkpoint))["id"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        _refuse(checkpoint, error)
    if not isinstance(value, str) or not re.fullmatch(r"[0-9A-Za-z-]{1,64}", value):
        _refuse(checkpoint, f"{METADATA} has the id {value!r}")
    return value


def _read(checkpoint: str) -> bytes:
    """Reads the file that Spark's JVM wrote; this process must find it under the same name."""
    parts = urlsplit(checkpoint)
    if parts.scheme in ("", "file"):
        path = unquote(parts.path) if parts.scheme else checkpoint
        return (Path(path) / METADATA).read_bytes()
    scheme = _REMOTE.get(parts.scheme, parts.scheme)
    files, path = pyarrow.fs.FileSystem.from_uri(parts._replace(scheme=scheme).geturl())
    with files.open_input_stream(f"{path.rstrip('/')}/{METADATA}") as stream:
        data: bytes = stream.read()
        return data


def _refuse(checkpoint: str, why: object) -> NoReturn:
    raise InvalidConfig(
        f"option checkpointLocation: the query's id cannot be read from {checkpoint}/{METADATA} by "
        f"the driver's Python ({why}); give the query a writerId, a new one for a new checkpoint",
        name="checkpointLocation",
    )
