"""URLs of object stores ↔ dataclasses.

    memory://   local:///abs/path   s3://bucket/prefix?endpoint=&region=&path_style=&client=

No URL holds credentials.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from streamlog.errors import Invalid
from streamlog.runtime.urls import UrlKind, quoted_path

KIND = UrlKind(
    "store",
    {
        "memory": "memory://",
        "local": "local:///abs/path",
        "s3": "s3://bucket/prefix?endpoint=&region=&path_style=&client=boto3|obstore",
    },
    path_scheme="local",
)


@dataclass(frozen=True, slots=True)
class MemoryUrl:
    """The objects end with the process."""

    def __str__(self) -> str:
        return "memory://"


@dataclass(frozen=True, slots=True)
class LocalUrl:
    path: str

    def __str__(self) -> str:
        return f"local://{quoted_path(self.path)}"


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
        return f"s3://{self.bucket}/{quoted_path(self.prefix)}{'?' if query else ''}{query}"


StoreUrl = MemoryUrl | LocalUrl | S3Url


def parse_store_url(text: str) -> StoreUrl:
    """Errors: Invalid, with the forms that there are."""
    url = KIND.split(text)
    match url.scheme:
        case "memory":
            KIND.check_memory(url, text)
            return MemoryUrl()
        case "local":
            return LocalUrl(KIND.absolute_path(url, text))
        case _:
            return _s3(url, text)


def _s3(url: SplitResult, text: str) -> S3Url:
    if not url.netloc or ":" in url.netloc:
        raise KIND.invalid(text, "s3:// needs a bucket (a port belongs to endpoint=)")
    parameters = ("endpoint", "region", "path_style", "client")
    values: dict[str, str] = {}
    for name, value in parse_qsl(url.query, keep_blank_values=True):
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise KIND.invalid(text, f"s3:// has no parameter {name[:40]!r}{hint}")
        if name in values:
            raise KIND.invalid(text, f"{name} is given twice")
        values[name] = value
    _check_endpoint(values.get("endpoint") or None, text)
    path_style = values.get("path_style", "") or "false"
    if path_style not in ("true", "false", "1", "0"):
        raise KIND.invalid(text, "path_style is true or false")
    client = values.get("client", "") or "boto3"
    if client not in ("boto3", "obstore"):
        raise KIND.invalid(text, "client is boto3 or obstore")
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
        raise KIND.invalid(text, f"endpoint= is no URL: {error}") from error
    if "@" in endpoint:
        raise Invalid("a store URL's endpoint= holds no credentials: take what is before the @ out")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise KIND.invalid(text, "endpoint= is http://HOST:PORT or https://HOST:PORT")
