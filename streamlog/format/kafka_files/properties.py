"""Kafka's small files of names and values: partition.metadata, meta.properties, the marker of a
clean shutdown.

An id is a UUID as Kafka writes it: 22 characters of URL-safe base64 without padding. Source:
Kafka's PartitionMetadataFile, MetaProperties, CleanShutdownFileHandler.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from typing import NamedTuple
from uuid import UUID

from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.runtime.buffers import Buffer

_ID_LENGTH = 22


class MetaProperties(NamedTuple):
    """Whose a log folder is: meta.properties, version 1. Other lines are kept by nobody."""

    cluster_id: str
    node_id: int
    directory_id: UUID


def encode_id(value: UUID) -> str:
    return urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_id(name: str, text: str) -> UUID:
    """Errors: Corrupt."""
    try:
        if len(text) != _ID_LENGTH:
            raise ValueError(text)
        return UUID(bytes=urlsafe_b64decode(text + "=="))
    except (ValueError, Error):
        raise Corrupt(f"{name}: {text[:40]!r} is no id of 22 characters") from None


def encode_partition_metadata(topic_id: UUID) -> bytes:
    return f"version: 0\ntopic_id: {encode_id(topic_id)}".encode()


def decode_partition_metadata(name: str, data: Buffer) -> UUID:
    """The topic id. Errors: Corrupt, UnsupportedVersion."""
    fields = _lines(name, data, ":")
    _check_version(name, fields, 0)
    return decode_id(name, fields.get("topic_id", ""))


def encode_meta_properties(properties: MetaProperties) -> bytes:
    return (
        "#\n"
        f"cluster.id={properties.cluster_id}\n"
        f"directory.id={encode_id(properties.directory_id)}\n"
        f"node.id={properties.node_id}\n"
        "version=1\n"
    ).encode()


def decode_meta_properties(name: str, data: Buffer) -> MetaProperties:
    """Errors: Corrupt, UnsupportedVersion."""
    fields = _lines(name, data, "=")
    _check_version(name, fields, 1)
    node_id = fields.get("node.id", "")
    if not node_id.isdecimal() or "cluster.id" not in fields:
        raise Corrupt(f"{name} has no cluster.id, or no node.id that is a number")
    directory_id = decode_id(name, fields.get("directory.id", ""))
    return MetaProperties(fields["cluster.id"], int(node_id), directory_id)


def encode_clean_shutdown() -> bytes:
    """The epoch is that of Kafka's controller, -1 where nobody gave one."""
    return json.dumps({"version": 0, "brokerEpoch": -1}, separators=(",", ":")).encode()


def _lines(name: str, data: Buffer, separator: str) -> dict[str, str]:
    try:
        text = bytes(data).decode()
    except UnicodeDecodeError:
        raise Corrupt(f"{name} holds what is no text") from None
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        key, found, value = line.partition(separator)
        if not found:
            raise Corrupt(f"{name}: the line {line[:300]!r} has no {separator!r}")
        fields[key.strip()] = value.strip()
    return fields


def _check_version(name: str, fields: dict[str, str], known: int) -> None:
    version = fields.get("version", "")
    if not version.isdecimal():
        raise Corrupt(f"{name} has no version")
    if int(version) != known:
        raise UnsupportedVersion(
            f"{name} has version {version}, this program knows {known}",
            found=int(version),
            supported=known,
        )
