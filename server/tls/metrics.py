"""Metrics of the node's certificates; a node without TLS has none of them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from streamlog.server.tls.node_tls import NodeTls


def add_metrics(registry: CollectorRegistry, tls: NodeTls) -> None:
    Gauge(
        "streamlog_tls_certificate_expiry_seconds",
        "Seconds until the node's TLS certificate, or one behind it, expires; below 0 after it.",
        registry=registry,
    ).set_function(tls.expires_in_s)
    Gauge(
        "streamlog_tls_reload_failed",
        "1 while the TLS files of now cannot be used, and the ones before them are.",
        registry=registry,
    ).set_function(lambda: int(tls.is_reload_failed))
