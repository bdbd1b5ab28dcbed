"""Bytes to lines: a line ends at LF and nowhere else; every other byte is kept.

Cost is per chunk, not per line; memory is one chunk and one line, whatever the input is.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamlog.cli.standard_streams import read_some
from streamlog.errors import MessageTooLarge

CHUNK_BYTES = 1 << 20


class LineTooLong(MessageTooLarge):
    """Line `number` (the first is 1) has more than the limit's bytes."""

    def __init__(self, number: int, max_bytes: int) -> None:
        super().__init__(
            f"line {number} has more than {max_bytes} bytes", line=number, max_bytes=max_bytes
        )
        self.number = number


class LineReader:
    """Iterates over lists of lines of a file descriptor, in order, without their LF.

    What follows the last LF is a line of its own unless it is empty. Raises LineTooLong after all
    lines before the long one were given out. `bytes_read` counts what has come in so far.
    """

    def __init__(self, fd: int, *, line_bytes_max: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._fd = fd
        self._line_bytes_max = line_bytes_max
        self._chunk_bytes = chunk_bytes
        self._lines_out = 0
        self.bytes_read = 0

    def __iter__(self) -> Iterator[list[bytes]]:
        begun: list[bytes] = []
        begun_bytes = 0
        while chunk := read_some(self._fd, self._chunk_bytes):
            self.bytes_read += len(chunk)
            lines = chunk.split(b"\n")
            if len(lines) > 1:
                if begun:
                    begun.append(lines[0])
                    lines[0] = b"".join(begun)
                    begun.clear()
                    begun_bytes = 0
                begun_last = lines.pop()
                yield from self._checked(lines)
            else:
                begun_last = chunk
            if begun_last:
                begun.append(begun_last)
                begun_bytes += len(begun_last)
                if begun_bytes > self._line_bytes_max:
                    raise LineTooLong(self._lines_out + 1, self._line_bytes_max)
        if begun:
            yield from self._checked([b"".join(begun)])

    def _checked(self, lines: list[bytes]) -> Iterator[list[bytes]]:
        if max(map(len, lines)) > self._line_bytes_max:
            for index, line in enumerate(lines):
                if len(line) > self._line_bytes_max:
                    self._lines_out += index
                    if index:
                        yield lines[:index]
                    raise LineTooLong(self._lines_out + 1, self._line_bytes_max)
        self._lines_out += len(lines)
        yield lines
