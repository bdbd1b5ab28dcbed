"""The gRPC port's side of TLS: certificates that follow their files, and the caller's principal."""

from __future__ import annotations

from typing import Any, cast

import grpc

from streamlog.server.context import ANONYMOUS
from streamlog.server.grpc.calls import PrincipalOf
from streamlog.server.tls.node_tls import Certificates, NodeTls
from streamlog.server.tls.principal import of_auth_context


def server_credentials(tls: NodeTls) -> grpc.ServerCredentials:
    """gRPC asks at each handshake, on a thread of its own, whether there is something newer."""
    served = tls.current

    def newer() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        if tls.current is served:
            return None
        served = tls.current
        return _configuration(served, tls)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(served, tls),
        cast(Any, newer),
        require_client_authentication=tls.requires_certificates,
    )


def _configuration(state: Certificates, tls: NodeTls) -> grpc.ServerCertificateConfiguration:
    authorities = None
    if tls.requires_certificates and state.authorities is not None:
        authorities = state.authorities.encode()
    return grpc.ssl_server_certificate_configuration([(state.key, state.chain)], authorities)


def principal_of(tls: NodeTls | None) -> PrincipalOf:
    """Who makes a call; gRPC has checked the certificate before."""
    if tls is None or not tls.requires_certificates:
        return lambda rpc: ANONYMOUS
    return lambda rpc: of_auth_context(rpc.auth_context())
