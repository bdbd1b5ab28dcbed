"""A standalone master, a worker on 127.0.0.1 and one on 127.0.0.2, each with one core."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from streamlog.demo.child import kill
from streamlog.demo.ports import free_port
from tests.spark.jvm import QUICK_JVM

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
WAIT_S = 300


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """The master's URL; both workers are there."""
    master = f"spark://127.0.0.1:{free_port()}"
    host, port = master.removeprefix("spark://").split(":")
    with ExitStack() as running:
        running.enter_context(
            _daemon(folder, "master", "Master", "--host", host, "--port", port, "--webui-port", "0")
        )
        for number in (1, 2):
            running.enter_context(
                _daemon(
                    folder,
                    f"worker{number}",
                    "Worker",
                    *("--host", f"127.0.0.{number}", "--cores", "1", "--memory", "600m"),
                    *("--webui-port", "0", "--work-dir", str(folder / f"work{number}"), master),
                )
            )
        for number in (1, 2):
            _wait_for(folder / f"worker{number}.log", "Successfully registered")
        yield master


@contextmanager
def _daemon(folder: Path, name: str, kind: str, *arguments: str) -> Iterator[None]:
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(SPARK_HOME / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{kind.lower()}.{kind}",
                *arguments,
            ],
            env={**environment(), "SPARK_DAEMON_MEMORY": "128m"},
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        kill(process)


def environment() -> dict[str, str]:
    return {
        **os.environ,
        **QUICK_JVM,
        "SPARK_HOME": str(SPARK_HOME),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }


def _wait_for(log: Path, pattern: str) -> None:
    ends_at = time.monotonic() + WAIT_S
    while not re.search(pattern, log.read_text()):
        assert time.monotonic() < ends_at, log.read_text()[-2000:]
        time.sleep(0.1)
