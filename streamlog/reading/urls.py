"""URLs of stores, as options of a read take them."""

from __future__ import annotations

from pathlib import Path

from streamlog.kvstore.url import parse_meta_url
from streamlog.objectstore.url import LocalUrl, MemoryUrl, parse_store_url


def check_store_url(text: str) -> None:
    """Errors: Invalid."""
    parse_store_url(text)


def check_meta_url(text: str) -> None:
    """Errors: Invalid."""
    parse_meta_url(text)


def is_node_memory(url: str) -> bool:
    """Whether the store is in a node's memory, where no other process can read it."""
    return isinstance(parse_store_url(url), MemoryUrl)


def local_folder(url: str) -> Path | None:
    """The folder of a local store; None for other stores."""
    parsed = parse_store_url(url)
    return Path(parsed.path) if isinstance(parsed, LocalUrl) else None
