"""Checks that the certificates of the settings can be used, and says for how long."""

from __future__ import annotations

from streamlog.doctor.findings import CheckOutcome, CheckResult, failed
from streamlog.errors import InvalidConfig
from streamlog.runtime.certificates import PemFile, read_authorities, read_identity
from streamlog.runtime.clock import Clock
from streamlog.settings.tls import TlsConfig

NAME = "tls.certificate"
DAYS_MIN = 7
_DAY_S = 86_400


def check_certificates(tls: TlsConfig, clock: Clock) -> CheckResult | None:
    """None: the settings name no certificate. Blocking."""
    if tls.certificate is None:
        return None
    try:
        identity = read_identity(
            PemFile("tls.certificate", tls.certificate),
            PemFile("tls.key", tls.key or tls.certificate),
            is_server=True,
        )
        if tls.client_ca is not None:
            read_authorities(PemFile("tls.client_ca", tls.client_ca))
    except InvalidConfig as error:
        return failed(NAME, error)
    days = (identity.expires_s - clock.now_ms() / 1000) / _DAY_S
    detail = f"{tls.certificate} is valid for {days:.0f} days"
    if days < DAYS_MIN:
        advice = "put a new one there soon: the node reads it without a restart"
        return CheckResult(NAME, CheckOutcome.WARN, detail, advice, {"days": days})
    return CheckResult(NAME, CheckOutcome.PASS, detail, "", {"days": days})
