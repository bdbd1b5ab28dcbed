"""`[tls]`: certificates of the node's listeners, all of which share them."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.runtime.config import setting

NONE, REQUESTED, REQUIRED = "none", "requested", "required"


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Files are PEM. They are read again when they change; connections that exist stay."""

    certificate: str | None = setting(
        None,
        "File of the node's certificate, followed by intermediate ones. With it every listener "
        "speaks TLS 1.2 or 1.3, and nothing else. Read again within seconds of a change.",
    )
    key: str | None = setting(
        None,
        "File of the certificate's private key, not encrypted. Default: it is in the certificate's "
        "file.",
    )
    client_ca: str | None = setting(
        None, "File of the authorities whose certificates clients may present."
    )
    client_auth: str | None = setting(
        None,
        "Whether clients present a certificate, in Kafka's words: none does not ask for one; "
        "requested asks, and refuses one that client_ca did not sign; required refuses clients "
        "without one. gRPC's library cannot ask without insisting: requested is none there. "
        "Default: required where client_ca is set, else none.",
        choices=(NONE, REQUESTED, REQUIRED),
    )
    http: bool = setting(
        True,
        "Whether /metrics, /livez and /readyz are behind TLS, too; false is for probes and "
        "scrapers without certificates, and leaves this listener plain.",
    )

    @property
    def is_on(self) -> bool:
        return self.certificate is not None

    @property
    def effective_client_auth(self) -> str:
        """`client_auth`, with its default filled in."""
        if self.client_auth is not None:
            return self.client_auth
        return NONE if self.client_ca is None else REQUIRED

    @property
    def requires_certificates(self) -> bool:
        """Clients without a certificate that `client_ca` signed are refused."""
        return self.is_on and self.effective_client_auth == REQUIRED
