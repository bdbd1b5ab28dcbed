"""Store and meta URLs ↔ dataclasses.

    store   memory://   local:///abs/path   s3://bucket/prefix?endpoint=&region=&path_style=&client=
    meta    memory://   rocksdb:///abs/path   etcd://host:port,host:port/prefix   kv://host:port

No URL holds credentials.
"""

from __future__ import annotations

import difflib
import posixpath
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from streamlog.errors import Invalid

STORE_FORMS = {
    "memory": "memory://",
    "local": "local:///abs/path",
    "s3": "s3://bucket/prefix?endpoint=&region=&path_style=&client=boto3|obstore",
}
META_FORMS = {
    "memory": "memory://",
    "rocksdb": "rocksdb:///abs/path",
    "etcd": "etcd://host:port,host:port/prefix",
    "kv": "kv://host:port",
}
_MEANT = {"file": "local", "s3a": "s3", "s3n": "s3", "rocks": "rocksdb", "mem": "memory"}


def _quoted(path: str) -> str:
    """As it stands in a URL that is parsed again."""
    return quote(path, safe="/:@!$&'()*+,;=~")


@dataclass(frozen=True, slots=True)
class MemoryUrl:
    """Ends with the process."""

    def __str__(self) -> str:
        return "memory://"


@dataclass(frozen=True, slots=True)
class LocalUrl:
    path: str

    def __str__(self) -> str:
        return f"local://{_quoted(self.path)}"


@dataclass(frozen=True, slots=True)
class S3Url:
    """`prefix` without slashes at its ends; None: the client's default."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    path_style: bool = False
    client: str = "boto3"

    def __str__(self) -> str:
        """As it can be given again."""
        given = {
            "endpoint": self.endpoint,
            "region": self.region,
            "path_style": "true" if self.path_style else None,
            "client": self.client if self.client != "boto3" else None,
        }
        query = urlencode({k: v for k, v in given.items() if v is not None}, safe=":/")
        return f"s3://{self.bucket}/{_quoted(self.prefix)}{'?' if query else ''}{query}"


@dataclass(frozen=True, slots=True)
class RocksUrl:
    path: str

    def __str__(self) -> str:
        return f"rocksdb://{_quoted(self.path)}"


@dataclass(frozen=True, slots=True)
class EtcdUrl:
    endpoints: tuple[tuple[str, int], ...]
    prefix: str = ""

    def __str__(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self.endpoints)
        return f"etcd://{hosts}/{_quoted(self.prefix)}"


@dataclass(frozen=True, slots=True)
class RemoteKVUrl:
    host: str
    port: int

    def __str__(self) -> str:
        return f"kv://{self.host}:{self.port}"


StoreUrl = MemoryUrl | LocalUrl | S3Url
MetaUrl = MemoryUrl | RocksUrl | EtcdUrl | RemoteKVUrl


def parse_store_url(text: str) -> StoreUrl:
    """Errors: Invalid, with the forms that there are."""
    url = _split(text, "store", STORE_FORMS)
    match url.scheme:
        case "memory":
            return _memory(url, text, STORE_FORMS)
        case "local":
            return LocalUrl(_path(url, text, STORE_FORMS))
        case _:
            return _s3(url, text)


def parse_meta_url(text: str) -> MetaUrl:
    """Errors: Invalid, with the forms that there are."""
    url = _split(text, "meta", META_FORMS)
    match url.scheme:
        case "memory":
            return _memory(url, text, META_FORMS)
        case "rocksdb":
            return RocksUrl(_path(url, text, META_FORMS))
        case "etcd":
            return _etcd(url, text)
        case _:
            return _remote(url, text)


def default_meta(store: StoreUrl) -> MetaUrl:
    """Where metadata goes when nobody says. Errors: Invalid for a remote store."""
    match store:
        case MemoryUrl():
            return store
        case LocalUrl(path):
            return RocksUrl(posixpath.join(path, "meta"))
        case _:
            raise Invalid(
                f"the store {store} needs a meta URL (--meta, node.meta), "
                "such as rocksdb:///abs/path; etcd://host:port/prefix and kv://host:port come in a "
                "later release"
            )


def check_available(url: StoreUrl | MetaUrl) -> None:
    """Errors: Invalid for a kind that this release can name but not open."""
    match url:
        case EtcdUrl() | RemoteKVUrl():
            _later(url, "this metadata store comes in a later release; use rocksdb:///abs/path")
        case _:
            return


def _later(url: StoreUrl | MetaUrl, advice: str) -> NoReturn:
    raise Invalid(f"{url} cannot be opened yet: {advice}", url=str(url))


# parsing


def _split(text: str, kind: str, forms: dict[str, str]) -> SplitResult:
    scheme, separator, _ = text.partition("://")
    if not separator:
        hint = f"; did you mean {_hinted(text, forms)}?" if text.startswith("/") else ""
        raise _invalid(text, forms, f"a {kind} URL begins with a scheme{hint}")
    if scheme not in forms:
        near = difflib.get_close_matches(scheme.lower(), forms, n=1, cutoff=0.5)
        meant = _MEANT.get(scheme.lower(), near[0] if near else "")
        hint = f"; did you mean {meant}://?" if meant in forms else ""
        raise _invalid(text, forms, f"there is no {kind} scheme {scheme[:40]!r}{hint}")
    try:
        url = urlsplit(text)
        _ = url.port if "," not in url.netloc else None
    except ValueError as error:
        raise _invalid(text, forms, str(error)) from error
    if url.username is not None or url.password is not None:
        raise Invalid(f"a {kind} URL holds no credentials: take everything up to the @ out of it")
    if url.fragment:
        raise _invalid(text, forms, "there is nothing after a #")
    return url


def _hinted(text: str, forms: dict[str, str]) -> str:
    return ("local" if "local" in forms else "rocksdb") + "://" + text


def _invalid(text: str, forms: dict[str, str], reason: str) -> Invalid:
    # A URL may hold a secret that somebody put there by mistake: only its start is shown.
    shown = text.split("@")[-1].split("?")[0][:200]
    return Invalid(f"{shown!r}: {reason}; known are {', '.join(forms.values())}")


def _no_query(url: SplitResult, text: str, forms: dict[str, str]) -> None:
    if url.query:
        raise _invalid(text, forms, f"{url.scheme}:// takes no parameters after a ?")


def _memory(url: SplitResult, text: str, forms: dict[str, str]) -> MemoryUrl:
    _no_query(url, text, forms)
    if url.netloc or url.path not in ("", "/"):
        raise _invalid(text, forms, "memory:// has nothing behind it")
    return MemoryUrl()


def _path(url: SplitResult, text: str, forms: dict[str, str]) -> str:
    _no_query(url, text, forms)
    path = unquote(url.path)
    if url.netloc or not path.startswith("/"):
        raise _invalid(
            text,
            forms,
            f"{url.scheme}:// needs an absolute path, so three slashes: {url.scheme}:///abs/path",
        )
    if "\0" in path:
        raise _invalid(text, forms, "a path has no NUL byte")
    normal = posixpath.normpath("/" + path.lstrip("/"))
    if normal == "/":
        raise _invalid(text, forms, "the root folder is not for data; name a folder in it")
    return normal


def _s3(url: SplitResult, text: str) -> S3Url:
    if not url.netloc or ":" in url.netloc:
        raise _invalid(text, STORE_FORMS, "s3:// needs a bucket (a port belongs to endpoint=)")
    known = ("endpoint", "region", "path_style", "client")
    values: dict[str, str] = {}
    for name, value in parse_qsl(url.query, keep_blank_values=True):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise _invalid(text, STORE_FORMS, f"s3:// has no parameter {name[:40]!r}{hint}")
        if name in values:
            raise _invalid(text, STORE_FORMS, f"{name} is given twice")
        values[name] = value
    _check_endpoint(values.get("endpoint") or None, text)
    path_style = values.get("path_style", "") or "false"
    if path_style not in ("true", "false", "1", "0"):
        raise _invalid(text, STORE_FORMS, "path_style is true or false")
    client = values.get("client", "") or "boto3"
    if client not in ("boto3", "obstore"):
        raise _invalid(text, STORE_FORMS, "client is boto3 or obstore")
    return S3Url(
        bucket=url.netloc,
        prefix=unquote(url.path).strip("/"),
        endpoint=values.get("endpoint") or None,
        region=values.get("region") or None,
        path_style=path_style in ("true", "1"),
        client=client,
    )


def _check_endpoint(endpoint: str | None, text: str) -> None:
    if endpoint is None:
        return
    try:
        parts = urlsplit(endpoint)
        _ = parts.port
    except ValueError as error:
        raise _invalid(text, STORE_FORMS, f"endpoint= is no URL: {error}") from error
    if "@" in endpoint:
        raise Invalid("a store URL's endpoint= holds no credentials: take what is before the @ out")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise _invalid(text, STORE_FORMS, "endpoint= is http://HOST:PORT or https://HOST:PORT")


def _etcd(url: SplitResult, text: str) -> EtcdUrl:
    _no_query(url, text, META_FORMS)
    endpoints = tuple(_host_port(part, text) for part in url.netloc.split(","))
    return EtcdUrl(endpoints, unquote(url.path).strip("/"))


def _remote(url: SplitResult, text: str) -> RemoteKVUrl:
    _no_query(url, text, META_FORMS)
    if url.path not in ("", "/"):
        raise _invalid(text, META_FORMS, "kv:// has no path")
    return RemoteKVUrl(*_host_port(url.netloc, text))


def _host_port(part: str, text: str) -> tuple[str, int]:
    host, _, port = part.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise _invalid(text, META_FORMS, f"{part[:80]!r} is not host:port")
    return host, int(port)
