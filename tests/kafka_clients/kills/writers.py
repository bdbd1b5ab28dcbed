"""A client's program that writes numbered records, and what it says of them."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from streamlog.demo import child
from tests.kafka_clients.client_programs import PROGRAMS, Command, java, python, start, tell
from tests.kafka_clients.kills.history import History
from tests.support.go_clients import go_clients

END_S = 150.0
"""Longer than any of the programs waits for its answers."""


CLIENTS: Mapping[str, Command] = {
    "librdkafka": python("programs.numbered.librdkafka"),
    "java": lambda: java(str(PROGRAMS / "numbered" / "Numbered.java")),
    "franz-go": lambda: [str(go_clients()), "franz-go-numbered"],
    "aiokafka": python("programs.numbered.aio"),
}
"""Command lines to which address, topic and the count of partitions are added."""


class Writer:
    """Writes from `begin` to `stop`; its history grows meanwhile. `folder` keeps its last words."""

    def __init__(
        self, client: str, bootstrap: str, topic: str, partitions: int, folder: Path
    ) -> None:
        self.history = History(client, partitions)
        self.is_ready = False
        self._command = [*CLIENTS[client](), bootstrap, topic, str(partitions)]
        self._errors = folder / f"{client}.log"
        self._process: subprocess.Popen[str] | None = None
        self._listening = threading.Thread(target=self._listen, name=client, daemon=True)
        self._failure: BaseException | None = None

    def start(self) -> Self:
        with self._errors.open("wb") as errors:
            self._process = start(self._command, errors)
        self._listening.start()
        return self

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._note(*line.split(maxsplit=3))
        except BaseException as error:
            self._failure = error
            raise

    def _note(self, what: str, *words: str) -> None:
        match what, words:
            case "ready", ():
                self.is_ready = True
            case "acked", (partition, number, offset):
                self.history.acknowledged.append(((int(partition), int(number)), int(offset)))
            case "sent", (count,):
                self.history.sent = int(count)
            case "failed", (partition, number, reason):
                self.history.refused.append(((int(partition), int(number)), reason.strip()))
            case _:
                raise ValueError(f"{self.history.writer} printed {what!r} {words!r}")

    def begin(self) -> None:
        """Lets a program write that is ready to."""
        assert self._process is not None
        tell(self._process, "go")

    def assert_alive(self) -> None:
        """A writer that has ended, or that we do not understand, will acknowledge nothing."""
        assert self._process is not None
        assert self._failure is None, self._failure
        assert self._process.poll() is None, self._last_words()
        assert not self.history.refused, self.history.refused[0]

    def stop(self) -> None:
        """Returns when all that was sent is answered, and the program has ended well."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        has_ended = child.wait_or_kill(self._process, END_S)
        assert has_ended, f"no end of {self._last_words()}"
        self._listening.join(END_S)
        assert not self._listening.is_alive()
        assert self._failure is None, self._failure
        assert self._process.returncode == 0, self._last_words()

    def _last_words(self) -> str:
        words = self._errors.read_text(errors="replace")[-2000:]
        return f"{self.history.writer}, {self.history.unanswered} unanswered: {words}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            child.kill(self._process)
            self._listening.join(END_S)
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
