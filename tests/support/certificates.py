"""Certificates made for one test, as PEM files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme

HOSTS = ("localhost", "127.0.0.1")
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """Files of a certificate, with its chain, and of its key."""

    certificate: Path
    key: Path

    def settings(self) -> dict[str, str]:
        return {"tls.certificate": str(self.certificate), "tls.key": str(self.key)}

    def flags(self) -> dict[str, Any]:
        """The settings, as `running_node` takes them."""
        return {name.replace(".", "__"): value for name, value in self.settings().items()}

    def write(self, other: Pair) -> None:
        """Replaces these files' contents, as a rotation does: by renames."""
        for mine, new in ((self.certificate, other.certificate), (self.key, other.key)):
            beside = mine.with_suffix(".new")
            beside.write_bytes(new.read_bytes())
            beside.rename(mine)


class Authority:
    """Issues certificates. `ca`: the file that whoever trusts them is given."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._authority: Any = trustme.CA()
        self.ca = folder / f"{name}.pem"
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(
        self, name: str, *hosts: str, expired: bool = False, days: float = 30, **options: Any
    ) -> Pair:
        now = datetime.now(UTC)
        leaf = self._authority.issue_cert(
            *(hosts or HOSTS),
            common_name=name,
            not_before=now - 3 * DAY,
            not_after=now - DAY if expired else now + days * DAY,
            **options,
        )
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(pair.key)
        return pair
