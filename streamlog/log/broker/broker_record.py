"""Broker settings in the KV store: bytes ↔ text by name, big-endian.

Namespace `_config`, key `brokers` for all nodes, `broker/<node id>` for one. No key: nothing was
set. The newest value counts whole; a change is a compare-and-set of the key.

    at  field    type   meaning
    0   version  u8     1; a reader of another version changes nothing and goes on with what it had;
                        where it had nothing, it deletes no records by what the key may say
    1   configs  texts  settings under Kafka's broker names, others under their paths
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.log.api.wire import FieldReader, FieldWriter
from streamlog.model.kv import Key

VERSION = 1
CONFIG_NAMESPACE = "_config"
_ALL = b"brokers"


def config_key(node_id: int | None) -> Key:
    """None: all nodes."""
    return Key(_ALL if node_id is None else b"broker/%d" % node_id, CONFIG_NAMESPACE)


def encode_configs(configs: Mapping[str, str]) -> bytes:
    w = FieldWriter()
    w.u8(VERSION)
    w.texts(dict(configs))
    return bytes(w.data)


def decode_configs(key: bytes, data: bytes) -> dict[str, str]:
    """Errors: Corrupt, UnsupportedVersion."""
    subject = f"the record of settings {key.decode(errors='replace')}"
    r = FieldReader(data, subject)
    r.check_version(VERSION)
    configs = r.texts()
    r.end()
    return configs
