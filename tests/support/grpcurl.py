"""grpcurl, a gRPC client in another language: from PATH, or built once into `.cache/tools`."""

from __future__ import annotations

import shutil

from streamlog.demo.go_tools import go_tool


def grpcurl() -> str:
    """The path of a grpcurl. Errors: Unavailable, when it cannot be built."""
    found = shutil.which("grpcurl")
    return found or str(go_tool("github.com/fullstorydev/grpcurl/cmd/grpcurl", "v1.9.3"))
