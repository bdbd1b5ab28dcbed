"""The keys in the store, and the form that every key has.

    cluster.json                          cluster id and format version
    data/<object id, hex, reversed>       objects; reversed so that keys spread over the key space
    checkpoint/<tenure>/<n>               checkpoint files of the metadata

A key is made of components of `[a-z0-9._-]`, joined by `/`; a component starts with a letter or
digit, so none is `..` or hidden, and has at most 200 bytes; a key has at most 900. No key begins
with `meta/` or `wal/`: beside a local store's objects those are the folders of metadata and WAL.
"""

from __future__ import annotations

import re

from streamlog.errors import InvalidName

CLUSTER_KEY = "cluster.json"
DATA_PREFIX = "data/"
CHECKPOINT_PREFIX = "checkpoint/"

KEY_LENGTH_MAX = 900
COMPONENT_LENGTH_MAX = 200
RESERVED = frozenset({"meta", "wal"})
OBJECT_ID_MAX = (1 << 64) - 1

_COMPONENT = r"[a-z0-9][a-z0-9._-]*"
_KEY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*\Z")
_PREFIX = re.compile(rf"(?:{_COMPONENT}/)*(?:{_COMPONENT})?\Z")
_DATA_KEY = re.compile(r"data/([0-9a-f]{16})\Z")


def check_key(key: str) -> str:
    """`key`. Errors: InvalidName."""
    if not _KEY.match(key) or not _fits(key):
        raise InvalidName(
            f"{_shown(key)} is no object key: components of a-z 0-9 . _ - that start with a letter "
            f"or digit, at most {COMPONENT_LENGTH_MAX} bytes each and {KEY_LENGTH_MAX} in all, "
            "joined by /"
        )
    if key.split("/", 1)[0] in RESERVED:
        raise InvalidName(f"{_shown(key)} is no object key: meta/ and wal/ are not for objects")
    return key


def check_prefix(prefix: str) -> str:
    """`prefix`, the beginning of a key or empty. Errors: InvalidName."""
    if not _PREFIX.match(prefix) or not _fits(prefix):
        raise InvalidName(f"{_shown(prefix)} is not how an object key can begin")
    return prefix


def _fits(key: str) -> bool:
    return len(key) <= KEY_LENGTH_MAX and all(
        len(component) <= COMPONENT_LENGTH_MAX for component in key.split("/")
    )


def _shown(key: str) -> str:
    return repr(key if len(key) <= 100 else key[:100] + "…")


def data_key(object_id: int) -> str:
    """The object's key. Errors: InvalidName for an id that has more than 64 bits."""
    if not 0 <= object_id <= OBJECT_ID_MAX:
        raise InvalidName(f"{object_id} is no object id: ids have 64 bits")
    return DATA_PREFIX + f"{object_id:016x}"[::-1]


def object_id(key: str) -> int:
    """The inverse of `data_key`. Errors: InvalidName for the key of something else."""
    match = _DATA_KEY.match(key)
    if match is None:
        raise InvalidName(f"{_shown(key)} is not the key of a data object")
    return int(match[1][::-1], 16)


def checkpoint_key(tenure: str, n: int) -> str:
    """A checkpoint file of the tenure (as text); `n` counts its attempts: no name comes twice."""
    return check_key(f"{CHECKPOINT_PREFIX}{tenure}/{n:016x}")


def checkpoint_prefix(tenure: str) -> str:
    """The prefix of all checkpoint files of the tenure."""
    return f"{CHECKPOINT_PREFIX}{tenure}/"
