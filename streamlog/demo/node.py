"""A node as a child process: started, killed without warning, started again on the same data."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from streamlog.demo import child
from streamlog.demo.ports import free_port
from streamlog.errors import StreamlogError, Unavailable
from streamlog.kvstore.url import RocksUrl

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
PORT_TIMEOUT_S = 20.0
PORT_WAIT_S = 0.2


class NodeProcess:
    """`streamlog dev` or `serve` in a process of its own; its port stays the same over restarts.

    Its log goes to `node.log` in the folder.
    """

    def __init__(
        self,
        folder: Path,
        *,
        wal: str,
        mode: str = "dev",
        store: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`store`: a URL in place of the folder; `environment`: added to this process's."""
        self._folder = folder
        self._store = store
        self._more = environment or {}
        self._mode = mode
        self._wal = wal
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._reading: threading.Thread | None = None
        self.banner: dict[str, object] = {}

    @property
    def server(self) -> str:
        """HOST:PORT of the node's gRPC listener."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log_path(self) -> Path:
        return self._folder / "node.log"

    def start(self) -> float:
        """Starts the node and waits until it serves; how many seconds that took.

        Errors: Unavailable; a port that is in use is waited for.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        self._port = self._port or free_port()
        while True:
            try:
                self._start_once()
                break
            except Unavailable as error:
                is_taken = "cannot listen on" in error.message
                if not is_taken or time.monotonic() - begun > PORT_TIMEOUT_S:
                    raise
                time.sleep(PORT_WAIT_S)
        return time.monotonic() - begun

    def _start_once(self) -> None:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment(),
                # A Ctrl-C at the terminal is for the parent, which stops its node itself.
                start_new_session=True,
            )
        self.banner = self._await_banner(self._process)

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "streamlog.cli", self._mode, "--json"]
        command += ["--wal", self._wal, "--listen", self.server, "--http-listen", "127.0.0.1:0"]
        data = self._folder / "data"
        if self._store is None:
            return [*command, "--data", str(data)]
        places = ["--store", self._store, "--meta", str(RocksUrl(f"{data}/meta"))]
        return [*command, *places, "--wal-dir", str(data / "wal")]

    def _environment(self) -> dict[str, str]:
        kept = {n: v for n, v in os.environ.items() if not n.startswith("STREAMLOG_")}
        return {**kept, **self._more}

    def _await_banner(self, process: subprocess.Popen[bytes]) -> dict[str, object]:
        """The first line of stdout: one JSON object, written when the node serves."""
        assert process.stdout is not None
        first: queue.Queue[bytes] = queue.Queue()
        self._reading = threading.Thread(
            target=_first_line, args=(process.stdout, first), daemon=True
        )
        self._reading.start()
        try:
            line = first.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            line = b""
        if not line:
            self.kill()
            raise Unavailable(f"the node did not start: {self.last_log_line()}")
        banner = json.loads(line)
        assert isinstance(banner, dict)
        return banner

    def last_log_line(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it wrote no log"

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        assert self._process is not None
        child.kill(self._process)
        self._gone()

    def _gone(self) -> None:
        if self._reading is not None:
            self._reading.join()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that is not enough. Does nothing to a node that is not there."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        has_stopped = child.terminate(process, STOP_TIMEOUT_S)
        self._gone()
        if not has_stopped:
            raise StreamlogError(
                f"the node did not stop within {STOP_TIMEOUT_S:g} s; its log: {self.log_path}"
            )

    def discard(self) -> None:
        """SIGKILL if the process is still there: the way out of a run that failed."""
        if self._process is not None and self._process.poll() is None:
            self.kill()


def _first_line(stdout: IO[bytes], first: queue.Queue[bytes]) -> None:
    with stdout:
        first.put(stdout.readline())
        # Keeps the pipe empty, so that the node never waits for its parent to read.
        while stdout.read(1 << 16):
            pass
