"""The end of a child process: none outlives its parent's patience."""

from __future__ import annotations

import subprocess
from typing import Any


def wait_or_kill(process: subprocess.Popen[Any], wait_s: float) -> bool:
    """Waits for the end, and sends SIGKILL after `wait_s`; returns when the process is gone.

    Whether it ended by itself.
    """
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        kill(process)
        return False
    return True


def terminate(process: subprocess.Popen[Any], wait_s: float) -> bool:
    """SIGTERM, and SIGKILL after `wait_s`; returns when the process is gone.

    Whether SIGTERM was enough.
    """
    process.terminate()
    return wait_or_kill(process, wait_s)


def kill(process: subprocess.Popen[Any]) -> None:
    """SIGKILL; returns when the process is gone."""
    process.kill()
    process.wait()
