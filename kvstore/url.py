"""URLs of metadata stores ↔ dataclasses.

    memory://   rocksdb:///abs/path   etcd://host:port,host:port/prefix   kv://host:port

No URL holds credentials.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, unquote

from streamlog.errors import Invalid
from streamlog.runtime.urls import UrlKind, quoted_path

KIND = UrlKind(
    "meta",
    {
        "memory": "memory://",
        "rocksdb": "rocksdb:///abs/path",
        "etcd": "etcd://host:port,host:port/prefix",
        "kv": "kv://host:port",
    },
    path_scheme="rocksdb",
)


@dataclass(frozen=True, slots=True)
class MemoryMetaUrl:
    """The metadata ends with the process."""

    def __str__(self) -> str:
        return "memory://"


@dataclass(frozen=True, slots=True)
class RocksUrl:
    path: str

    def __str__(self) -> str:
        return f"rocksdb://{quoted_path(self.path)}"


@dataclass(frozen=True, slots=True)
class EtcdUrl:
    """`prefix` without slashes at its ends."""

    endpoints: tuple[tuple[str, int], ...]
    prefix: str = ""

    def __str__(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self.endpoints)
        return f"etcd://{hosts}/{quoted_path(self.prefix)}"


@dataclass(frozen=True, slots=True)
class RemoteKVUrl:
    host: str
    port: int

    def __str__(self) -> str:
        return f"kv://{self.host}:{self.port}"


MetaUrl = MemoryMetaUrl | RocksUrl | EtcdUrl | RemoteKVUrl


def parse_meta_url(text: str) -> MetaUrl:
    """Errors: Invalid, with the forms that there are."""
    url = KIND.split(text)
    match url.scheme:
        case "memory":
            KIND.check_memory(url, text)
            return MemoryMetaUrl()
        case "rocksdb":
            return RocksUrl(KIND.absolute_path(url, text))
        case "etcd":
            return _etcd(url, text)
        case _:
            return _remote(url, text)


def check_available(url: MetaUrl) -> None:
    """Errors: Invalid for a kind that this release can name but not open."""
    if isinstance(url, EtcdUrl | RemoteKVUrl):
        raise Invalid(
            f"{url} cannot be opened yet: this metadata store comes in a later release; "
            "use rocksdb:///abs/path",
            url=str(url),
        )


def _etcd(url: SplitResult, text: str) -> EtcdUrl:
    KIND.check_no_query(url, text)
    endpoints = tuple(_host_port(part, text) for part in url.netloc.split(","))
    return EtcdUrl(endpoints, unquote(url.path).strip("/"))


def _remote(url: SplitResult, text: str) -> RemoteKVUrl:
    KIND.check_no_query(url, text)
    if url.path not in ("", "/"):
        raise KIND.invalid(text, "kv:// has no path")
    return RemoteKVUrl(*_host_port(url.netloc, text))


def _host_port(part: str, text: str) -> tuple[str, int]:
    host, _, port = part.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise KIND.invalid(text, f"{part[:80]!r} is not host:port")
    return host, int(port)
