"""A process that listens for its signals, and the children that a plug-in of it may fork."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, os, signal
from streamlog.server.stopping import Signals

async def main():
    told = []
    with Signals(on_first=lambda: told.append(None)) as signals:
        ends, lives = os.pipe()
        child = os.fork()
        if not child:
            os.close(lives)
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            print("child", flush=True)
            os.read(ends, 1)
            os._exit(0)
        BEFORE_THE_END
    # The thread that hears of signals has ended.
    assert not told, told
    await asyncio.sleep(0)
    assert not signals.came.is_set()
    AFTER_THE_END
    print("parent")

asyncio.run(main())
"""
END = "os.close(lives); os.waitpid(child, 0)"


def ended(before: str, after: str) -> tuple[int, str]:
    """Exit code and output of the script."""
    script = SCRIPT.replace("BEFORE_THE_END", before).replace("AFTER_THE_END", after)
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=30)
    return done.returncode, done.stdout.decode()


def test_a_childs_signals_are_not_those_of_its_parent() -> None:
    assert ended(END, "pass") == (0, "child\nparent\n")


def test_a_child_that_lives_on_does_not_hold_up_the_end_of_its_parent() -> None:
    code, output = ended("pass", END)
    assert (code, sorted(output.split())) == (0, ["child", "parent"])
