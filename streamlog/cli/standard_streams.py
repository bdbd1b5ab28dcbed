"""stdin, stdout and stderr that may be closed, or in non-blocking mode.

A shell closes them by `<&-` and `>&-`; a parent such as Node.js leaves pipes in non-blocking mode,
in which a read or a write may fail with EAGAIN ("try again"). Python's own objects then end a
command with a traceback or lose output; these wait instead.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import TextIO

STDIN, STDOUT, STDERR = 0, 1, 2


class StdinClosed(OSError):
    """The command needs an input and its stdin is closed."""

    def __init__(self) -> None:
        super().__init__(
            errno.EBADF, "stdin is closed; give the input by a pipe or a file (COMMAND < FILE)"
        )

    def __str__(self) -> str:
        return str(self.strerror)


class StdoutClosed(OSError):
    """The command has output and its stdout is closed."""

    def __init__(self) -> None:
        super().__init__(errno.EBADF, "stdout is closed; send the output to a pipe or a file")

    def __str__(self) -> str:
        return str(self.strerror)


class OutputFailed(OSError):
    """The file or device behind stdout does not take the output."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.errno, f"the output cannot be written: {error.strerror}")

    def __str__(self) -> str:
        return str(self.strerror)


def prepare() -> None:
    """Makes the process's three streams usable; once, at its start."""
    for descriptor, stream in ((STDIN, sys.stdin), (STDOUT, sys.stdout), (STDERR, sys.stderr)):
        if stream is None:
            # The next file or socket would get this number, and be read or written as the stream.
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
    sys.stdout = _text(STDOUT, sys.stdout) if sys.stdout is not None else _closed()
    sys.stderr = _text(STDERR, sys.stderr) if sys.stderr is not None else _nowhere()


def _text(descriptor: int, old: TextIO) -> TextIO:
    old.flush()
    is_terminal = os.isatty(descriptor)
    return io.TextIOWrapper(
        io.BufferedWriter(_WaitingWriter(descriptor)),
        encoding=old.encoding,
        errors=old.errors,
        line_buffering=is_terminal or descriptor == STDERR,
        write_through=descriptor == STDERR,
    )


def _nowhere() -> TextIO:
    """For a closed stderr: messages are lost, the exit code remains."""
    return io.TextIOWrapper(io.BufferedWriter(_WaitingWriter(STDERR)), encoding="utf-8")


def _closed() -> TextIO:
    return io.TextIOWrapper(io.BufferedWriter(_NoOutput()), encoding="utf-8", write_through=True)


class _WaitingWriter(io.RawIOBase):
    """Writes to a descriptor; waits while it takes nothing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def name(self) -> int:
        return self._descriptor

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        while True:
            try:
                return os.write(self._descriptor, data)  # type: ignore[arg-type]
            except BlockingIOError:
                wait_until_writable(self._descriptor)
            except BrokenPipeError:
                raise
            except OSError as error:
                raise OutputFailed(error) from error


class _NoOutput(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        raise StdoutClosed


def stdin_descriptor() -> int:
    """Errors: StdinClosed."""
    if sys.stdin is None:
        raise StdinClosed
    return sys.stdin.fileno()


def stdin_is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def stderr_is_terminal() -> bool:
    return sys.stderr.isatty()


def stdout_is_terminal() -> bool:
    return sys.stdout.isatty()


def read_input(name: str) -> bytes:
    """All of stdin; tells a person at a terminal to type it. Errors: StdinClosed."""
    descriptor = stdin_descriptor()
    if stdin_is_terminal():
        print(f"reading {name} from the terminal; Ctrl-D ends it", file=sys.stderr)
    return read_all(descriptor)


def read_all(descriptor: int) -> bytes:
    """Everything up to the end of the input."""
    parts = []
    while part := read_some(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def read_some(descriptor: int, size: int) -> bytes:
    """The next bytes, at most `size`; empty at the end of the input."""
    while True:
        try:
            return os.read(descriptor, size)
        except BlockingIOError:
            select.select([descriptor], [], [])


def check_reader() -> None:
    """For a command that waits for something to write: no write tells it. Errors: BrokenPipeError
    where the reader of stdout went away, StdoutClosed where there never was one."""
    if isinstance(getattr(sys.stdout.buffer, "raw", None), _NoOutput):
        raise StdoutClosed
    poll = select.poll()
    poll.register(STDOUT, 0)
    if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
        raise BrokenPipeError(errno.EPIPE, "the reader of the output went away")


def wait_until_writable(descriptor: int) -> None:
    select.select([], [descriptor], [])
