"""A command that a test starts, and ends by signals."""

from __future__ import annotations

import signal
import subprocess

from tests.support.command import COMMAND


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    # Tests that run under `nohup` ignore SIGHUP, and their children would inherit that.
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
    finally:
        signal.signal(signal.SIGHUP, inherited)
