"""Kafka's own Java client in one process that stays: plain, idempotent or transactional producers.

One process for all servers and kinds: its code is compiled once, by a warm-up that is not measured,
and no figure holds the start of a virtual machine.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import IO

from benchmarks.kafka.librdkafka import Figures
from benchmarks.kafka_server import die_with_parent
from benchmarks.spark.jars import kafka_jars
from streamlog.errors import Unavailable

SOURCE = Path(__file__).with_name("Transacting.java")
HEAP = "1g"
"""Each of the producers that are open may keep 32 MiB."""
COMPILE_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 120.0


class JavaProducers:
    """One process. Errors of its calls: Unavailable, with where its output is."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._process = process
        self._errors = errors

    def open(self, server: str, topic: str, kind: str, producers: int) -> None:
        """Producers of the kind, each of which has written one transaction's records."""
        self._ask(f"open {server} {topic} {kind} {producers}")

    def write(self, kind: str, records: int) -> Figures:
        """So many records of each producer of the kind, acknowledged and committed."""
        return self._ask(f"write {kind} {records}")

    def close(self) -> None:
        """All producers."""
        self._ask("close")

    def _ask(self, line: str) -> Figures:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = Timer(ANSWER_TIMEOUT_S, self._process.kill)
        late.start()
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            late.cancel()
        if not answer:
            self._errors.seek(0)
            raise Unavailable(f"Java's producers ended: {self._errors.read()[-2000:]}")
        figures: Figures = json.loads(answer)
        return figures


@contextmanager
def java_producers() -> Iterator[JavaProducers]:
    """Errors: Unavailable, without a Java that compiles."""
    if shutil.which("java") is None or shutil.which("javac") is None:
        raise Unavailable("there is no java with a compiler (javac)")
    class_path = ":".join(map(str, kafka_jars().paths))
    with (
        tempfile.TemporaryDirectory(prefix="java-") as folder,
        tempfile.TemporaryFile("w+") as errors,
    ):
        logging = Path(folder, "log4j2.properties")
        logging.write_text("rootLogger.level = error\n")
        subprocess.run(
            ["javac", "-cp", class_path, "-d", folder, str(SOURCE)],
            check=True,
            timeout=COMPILE_TIMEOUT_S,
        )
        process = subprocess.Popen(
            ["java", f"-Xmx{HEAP}", f"-Dlog4j2.configurationFile={logging}",
             "-cp", f"{folder}:{class_path}", SOURCE.stem],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=die_with_parent,
        )  # fmt: skip
        try:
            yield JavaProducers(process, errors)
        finally:
            process.kill()
            process.communicate()
