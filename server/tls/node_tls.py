"""The node's certificates: read before anything opens, and again when their files change.

    files ─tick, each second─> NodeTls.current ─> asked for at each handshake

A tick compares what `stat` says of the files, off the event loop; a handshake never waits for a
disk. New files are used as a whole, or not at all: where one of them is broken, or does not fit the
others, all old ones stay in use, and `alarms` says why. Connections that exist are not touched.
"""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass

from streamlog.errors import InvalidConfig
from streamlog.runtime.certificates import PemFile, read_authorities, read_identity
from streamlog.runtime.clock import Clock, SystemClock
from streamlog.runtime.offload import Lane, Offload
from streamlog.settings.tls import NONE, REQUESTED, REQUIRED, TlsConfig

log = logging.getLogger(__name__)

TICK_S = 1.0

_Stat = tuple[int, int, int, int] | None


@dataclass(frozen=True, slots=True, eq=False)
class Certificates:
    """One state of the files. `authorities`: those of clients' certificates; None: none."""

    chain: bytes
    key: bytes
    authorities: str | None
    expires_s: float
    context: ssl.SSLContext
    """Each state has its own: one that is in use cannot be told to forget an authority."""


class NodeTls:
    """Errors: InvalidConfig for files that cannot be used, and settings that do not fit."""

    def __init__(self, config: TlsConfig, clock: Clock | None = None) -> None:
        _check_settings(config)
        self.config = config
        self._clock = clock or SystemClock()
        self._seen = self._stats()
        self.current = self._read()
        self._failure = ""
        """Why the files of now are not in use."""

    @property
    def requires_certificates(self) -> bool:
        return self.config.requires_certificates

    @property
    def asks_for_certificates(self) -> bool:
        return self.config.effective_client_auth != NONE

    def describe(self) -> str:
        """What clients have to bring, for people."""
        asked = {
            NONE: "clients need no certificate",
            REQUESTED: "clients may present a certificate (gRPC does not ask for one)",
            REQUIRED: "clients need a certificate",
        }[self.config.effective_client_auth]
        return f"{self.config.certificate}; {asked}"

    async def tick(self, offload: Offload) -> None:
        """Reads files that changed, off the loop; no other work waits behind a disk that hangs."""
        await offload.run(Lane.TLS, self.reload)

    def reload(self) -> None:
        """As `tick`; it may block. Errors are kept for `alarms`, and logged once."""
        seen = self._stats()
        if seen == self._seen and not self._failure:
            return
        self._seen = seen
        try:
            self.current = self._read()
        except (InvalidConfig, OSError, ValueError) as error:
            # Files may change at any moment of it; what is not foreseen ends the node as little.
            if self._failure != str(error):
                log.error("new TLS files are not used", extra={"error": str(error)})
            self._failure = str(error)
            return
        self._failure = ""
        log.info("TLS files read again", extra={"expires_s": int(self.current.expires_s)})

    @property
    def is_reload_failed(self) -> bool:
        return bool(self._failure)

    def expires_in_s(self) -> float:
        """Below 0 once it has expired."""
        return self.current.expires_s - self._clock.now_ms() / 1000

    def alarms(self) -> list[str]:
        """What people should mend, for the status."""
        alarms = []
        if self._failure:
            alarms.append(f"new TLS files are not used, the old ones still are: {self._failure}")
        if self.expires_in_s() <= 0:
            alarms.append(
                f"the certificate in {self.config.certificate}, or one behind it, has expired: "
                "clients refuse it; put a new one there, it is read within seconds"
            )
        return alarms

    def _files(self) -> list[PemFile]:
        config = self.config
        assert config.certificate is not None
        files = [
            PemFile("tls.certificate", config.certificate),
            PemFile("tls.key", config.key or config.certificate),
        ]
        if config.client_ca is not None:
            files.append(PemFile("tls.client_ca", config.client_ca))
        return files

    def _stats(self) -> list[_Stat]:
        return [_stat(file) for file in self._files()]

    def _read(self) -> Certificates:
        certificate, key, *client_ca = self._files()
        identity = read_identity(certificate, key, is_server=True)
        authorities = read_authorities(client_ca[0]) if client_ca else None
        context = identity.context
        # A client that comes back is checked anew, against the authorities of now.
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0
        if authorities is not None and self.asks_for_certificates:
            context.load_verify_locations(cadata=authorities)
            is_required = self.config.effective_client_auth == REQUIRED
            context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
        return Certificates(identity.chain, identity.key, authorities, identity.expires_s, context)


def _check_settings(config: TlsConfig) -> None:
    if config.effective_client_auth != NONE and config.client_ca is None:
        raise InvalidConfig(
            f"tls.client_auth is {config.effective_client_auth}, and tls.client_ca is not given: "
            "name the file of the authorities that sign clients' certificates (--tls-client-ca)",
            name="tls.client_ca",
        )


def node_tls(config: TlsConfig) -> NodeTls | None:
    """None where the node speaks no TLS. Errors: as of `NodeTls`, and settings without effect."""
    if config.is_on:
        return NodeTls(config)
    for name in ("key", "client_ca", "client_auth"):
        if getattr(config, name) not in (None, NONE):
            raise InvalidConfig(
                f"tls.{name} is given and tls.certificate is not, so that the node would speak no "
                "TLS; name the node's certificate, too (--tls-cert)",
                name="tls.certificate",
            )
    return None


def _stat(file: PemFile) -> _Stat:
    try:
        stat = os.stat(file.place)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size
