"""Topic ids: 16 bytes on the wire, text in the services; requests name the same ones each time."""

from __future__ import annotations

from functools import lru_cache
from uuid import UUID

CACHED_MAX = 4096


@lru_cache(CACHED_MAX)
def id_bytes(topic_id: str) -> bytes:
    return UUID(topic_id).bytes


@lru_cache(CACHED_MAX)
def id_text(topic_id: bytes) -> str:
    return str(UUID(bytes=topic_id))
