"""A copier's program: started, killed, started again; and what all its starts said."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from streamlog.demo import child
from tests.kafka_clients.client_programs import PROGRAMS, Command, java, python, start, tell
from tests.kafka_clients.kills.transactions.checks import Told
from tests.kafka_clients.programs.copying import FATAL

END_S = 150.0
CLIENTS: Mapping[str, Command] = {
    "librdkafka": python("programs.copying.librdkafka"),
    "java": lambda: java(str(PROGRAMS / "copying" / "Copying.java")),
}
"""Command lines to which what a copier is given is added."""


@dataclass(frozen=True, slots=True)
class Task:
    """What one copier copies where."""

    client: str
    source: str
    partition: int
    target: str
    partitions: int

    @property
    def transactional_id(self) -> str:
        return f"{self.client}-{self.source}-{self.partition}"


class Copier:
    """`folder` keeps its last words. `refused` counts the processes that gave up."""

    def __init__(self, task: Task, bootstrap: str, seed: int, told: Told, folder: Path) -> None:
        self.task = task
        self.starts = self.refused = 0
        self.commits = self.aborts = 0
        self.is_open = False
        """Whether it is in a transaction, as far as it said."""
        self._arguments = [
            *CLIENTS[task.client](),
            *(bootstrap, task.source, str(task.partition)),
            *(task.target, str(task.partitions), task.transactional_id),
        ]
        self._seed = str(seed)
        self._told = told
        self._errors = folder / f"{task.transactional_id}.log"
        self._process: subprocess.Popen[str] | None = None
        self._listening: threading.Thread | None = None
        self._failure: BaseException | None = None
        self.again: list[str] = []
        self.reasons: list[str] = []
        """The last words of the processes that gave up."""

    def start(self) -> None:
        """The program works as soon as it is up."""
        self.starts += 1
        self.is_open = False
        command = [*self._arguments, str(self.starts), self._seed]
        with self._errors.open("ab") as errors:
            self._process = start(command, errors)
        self._listening = threading.Thread(target=self._listen, args=[self._process], daemon=True)
        self._listening.start()
        tell(self._process, "go")

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.endswith("\n"):
                    # What a killed program did not finish saying, it did not say.
                    self._note(*line.split(maxsplit=1))
        except BaseException as error:
            self._failure = error
            raise

    def _note(self, what: str, word: str = "") -> None:
        word = word.strip()
        match what:
            case "ready" | "place":
                pass
            case "began":
                self._told.began.add(word)
                self.is_open = True
            case "aborting":
                pass
            case "committing":
                self._told.committing.add(word)
            case "committed":
                self._told.committed.add(word)
                self.commits += 1
                self.is_open = False
            case "aborted":
                self._told.aborted.add(word)
                self.aborts += 1
                self.is_open = False
            case "again":
                self.again.append(word)
            case _:
                raise ValueError(f"{self.task.transactional_id} printed {what!r} {word!r}")

    def keep_running(self) -> None:
        """Starts it again where its client gave up; any other end of it is wrong."""
        assert self._process is not None
        assert self._failure is None, self._failure
        code = self._process.poll()
        if code is None:
            return
        assert code == FATAL, f"exit code {code}: {self._last_words()}"
        self.refused += 1
        self.reasons.append(self.again[-1] if self.again else "nothing was said")
        self._end()
        self.start()

    def kill(self) -> None:
        """SIGKILL, then a new process with the same transactional id."""
        assert self._process is not None
        child.kill(self._process)
        self._end()
        self.start()

    def stop(self) -> None:
        """Returns when its last transaction has ended, and the program has."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        has_ended = child.wait_or_kill(self._process, END_S)
        assert has_ended, f"no end of {self._last_words()}"
        code = self._process.returncode
        self._end()
        assert self._failure is None, self._failure
        assert code == 0, f"exit code {code}: {self._last_words()}"

    def end(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            child.kill(self._process)
            self._end()

    def _end(self) -> None:
        assert self._process is not None
        assert self._listening is not None
        self._listening.join(END_S)
        assert not self._listening.is_alive()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            if not pipe.closed:
                pipe.close()
        self._process = None

    def _last_words(self) -> str:
        words = self._errors.read_text(errors="replace")[-2000:]
        return f"{self.task.transactional_id}: {self.again[-3:]} {words}"
