"""What the URLs of object stores and of metadata stores have in common: `scheme://…`, a path.

No URL holds credentials. Every error lists the forms that there are.
"""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, unquote, urlsplit

from streamlog.errors import Invalid

_ALIASES = {"file": "local", "s3a": "s3", "s3n": "s3", "rocks": "rocksdb", "mem": "memory"}
"""Schemes that people write, and the ones that they mean."""


@dataclass(frozen=True, slots=True)
class UrlKind:
    """`name` for error texts; `forms`: by scheme, how such a URL looks; `path_scheme`: the scheme
    that somebody means who gives only a path."""

    name: str
    forms: Mapping[str, str]
    path_scheme: str

    def split(self, text: str) -> SplitResult:
        """A URL of one of the known schemes, in parts. Errors: Invalid."""
        scheme, separator, _ = text.partition("://")
        if not separator:
            hint = f"; did you mean {self.path_scheme}://{text}?" if text.startswith("/") else ""
            raise self.invalid(text, f"a {self.name} URL begins with a scheme{hint}")
        if scheme not in self.forms:
            near = difflib.get_close_matches(scheme.lower(), self.forms, n=1, cutoff=0.5)
            meant = _ALIASES.get(scheme.lower(), near[0] if near else "")
            hint = f"; did you mean {meant}://?" if meant in self.forms else ""
            raise self.invalid(text, f"there is no {self.name} scheme {scheme[:40]!r}{hint}")
        try:
            url = urlsplit(text)
            _ = url.port if "," not in url.netloc else None
        except ValueError as error:
            raise self.invalid(text, str(error)) from error
        if url.username is not None or url.password is not None:
            raise Invalid(
                f"a {self.name} URL holds no credentials: take everything up to the @ out of it"
            )
        if url.fragment:
            raise self.invalid(text, "there is nothing after a #")
        return url

    def invalid(self, text: str, reason: str) -> Invalid:
        # A URL may hold a secret that somebody put there by mistake: only its start is shown.
        shown = text.split("@")[-1].split("?")[0][:200]
        return Invalid(f"{shown!r}: {reason}; known are {', '.join(self.forms.values())}")

    def check_no_query(self, url: SplitResult, text: str) -> None:
        """Errors: Invalid."""
        if url.query:
            raise self.invalid(text, f"{url.scheme}:// takes no parameters after a ?")

    def check_memory(self, url: SplitResult, text: str) -> None:
        """Nothing follows `memory://`. Errors: Invalid."""
        self.check_no_query(url, text)
        if url.netloc or url.path not in ("", "/"):
            raise self.invalid(text, "memory:// has nothing behind it")

    def absolute_path(self, url: SplitResult, text: str) -> str:
        """The normalized path of a local folder. Errors: Invalid."""
        self.check_no_query(url, text)
        path = unquote(url.path)
        if url.netloc or not path.startswith("/"):
            raise self.invalid(
                text,
                f"{url.scheme}:// needs an absolute path, so three slashes: "
                f"{url.scheme}:///abs/path",
            )
        if "\0" in path:
            raise self.invalid(text, "a path has no NUL byte")
        normal = posixpath.normpath("/" + path.lstrip("/"))
        if normal == "/":
            raise self.invalid(text, "the root folder is not for data; name a folder in it")
        return normal


def quoted_path(path: str) -> str:
    """`path` as it stands in a URL that is parsed again."""
    return quote(path, safe="/:@!$&'()*+,;=~")
