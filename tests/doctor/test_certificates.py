"""The doctor looks at the certificates that a node would be started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog.doctor.certificates import check_certificates
from streamlog.doctor.findings import CheckOutcome
from streamlog.runtime.clock import SystemClock
from streamlog.settings.tls import TlsConfig
from tests.support.certificates import Authority


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ({}, CheckOutcome.PASS),
        ({"days": 2}, CheckOutcome.WARN),
        ({"expired": True}, CheckOutcome.FAIL),
    ],
)
def test_days_decide(tmp_path: Path, options: dict[str, bool], outcome: CheckOutcome) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("node", **options)
    tls = TlsConfig(str(pair.certificate), str(pair.key), str(authority.ca))
    finding = check_certificates(tls, SystemClock())
    assert finding is not None
    assert finding.outcome is outcome
    assert str(pair.certificate) in finding.detail


def test_without_tls_there_is_no_finding() -> None:
    assert check_certificates(TlsConfig(), SystemClock()) is None
