"""Kafka clients in Go, built once from `tests/kafka_clients/programs/go`."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from streamlog.demo.go_tools import go_program, locked, tools_folder
from streamlog.errors import Unavailable

SOURCES = Path(__file__).resolve().parents[1] / "kafka_clients" / "programs" / "go"


def go_clients(tags: str = "") -> Path:
    """The program, built when its sources have changed. Errors: Unavailable.

    `tags` adds clients whose libraries only some tests need.
    """
    sources = {path.name: path.read_bytes() for path in SOURCES.iterdir()}
    digest = hashlib.sha256(tags.encode())
    for name, data in sorted(sources.items()):
        digest.update(name.encode() + data)
    folder = tools_folder()
    built = folder / f"kafka-go-clients-{digest.hexdigest()[:16]}"
    if not built.exists():
        with locked(folder / "kafka-go-clients.lock"):
            if not built.exists():
                _build(sources, tags, built)
    return built


def build_program(main: bytes, program: Path) -> None:
    """Builds a program of one file, which may use the same libraries. Errors: Unavailable."""
    sources = {name: (SOURCES / name).read_bytes() for name in ("go.mod", "go.sum")}
    _build({**sources, "main.go": main}, "", program)


def _build(sources: dict[str, bytes], tags: str, built: Path) -> None:
    go = go_program(tools_folder())
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        place = Path(folder)
        for name, data in sources.items():
            (place / name).write_bytes(data)
        done = subprocess.run(
            [str(go), "build", "-trimpath", "-tags", tags, "-o", "program", "."],
            cwd=place,
            env={**os.environ, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise Unavailable(f"Kafka clients in Go do not build: {done.stderr.strip()[-2000:]}")
        os.replace(place / "program", built)
