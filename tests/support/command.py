"""The `streamlog` command as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "streamlog.cli")
ROOT = Path(__file__).resolve().parents[2]


def environment(**more: str) -> dict[str, str]:
    """This process's environment, without the variables that configure a node or a client."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STREAMLOG_")}
    return {**kept, **more}


def run(
    *arguments: str | int | Path, server: str = "", stdin: bytes = b"", **how: Any
) -> subprocess.CompletedProcess[bytes]:
    """Runs one command line to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        env=environment(STREAMLOG_SERVER=server) if server else environment(),
        timeout=180,
        check=False,
        **how,
    )


def start_error(*arguments: str | int | Path, **how: Any) -> str:
    """The only line that a node prints when it refuses to start, with exit code 1."""
    node = (*arguments, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    ended = run("dev", "--json", *node, **how)
    said = ended.stderr.decode()
    assert (ended.returncode, ended.stdout) == (1, b""), said
    assert "Traceback" not in said
    (line,) = (line for line in said.splitlines() if line.startswith("streamlog: "))
    return line.removeprefix("streamlog: ")
