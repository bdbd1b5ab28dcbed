"""Files of sealed segments that stay open between two reads of a reader that goes through them.

A file that is opened for each read begins with small reads ahead each time, since what the kernel
has learned of a sequential reader ends with its descriptor: off the disk that costs a fifth of the
rate, and from the page cache a third of the CPU.

1. A file is one reader's while it reads: `take` gives it away, `keep` brings it back.
2. A segment that leaves its log, or whose log ends, keeps no file: a file that is deleted takes its
   room on the disk for as long as it is open. Whoever takes a segment out marks it first and calls
   `forget` then, so a read that is under way meanwhile finds the mark when it brings its file back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from threading import Lock

from streamlog.runtime.disk.growing import GrowingFile
from streamlog.unified.state.segment import UnifiedLogSegment

log = logging.getLogger(__name__)

FILES_MAX = 64
"""Of a node; the ones used last stay."""


class KeptFiles:
    """Of all logs of a folder; used by any thread."""

    def __init__(self, files_max: int = FILES_MAX) -> None:
        self._files_max = files_max
        self._files: dict[UnifiedLogSegment, GrowingFile] = {}
        """In the order in which they were used last."""
        self._lock = Lock()

    def take(self, segment: UnifiedLogSegment) -> GrowingFile | None:
        """The segment's file, which is the caller's from now on."""
        with self._lock:
            return self._files.pop(segment, None)

    def keep(
        self, segment: UnifiedLogSegment, file: GrowingFile, is_leaving: Callable[[], bool]
    ) -> None:
        """Takes the file, and closes it where the segment is leaving, or has one."""
        closing = file
        with self._lock:
            if segment not in self._files and not is_leaving():
                self._files[segment] = file
                if len(self._files) <= self._files_max:
                    return
                closing = self._files.pop(next(iter(self._files)))
        close_file(closing)

    def forget(self, segments: Iterable[UnifiedLogSegment]) -> None:
        """Closes the files of segments that are marked as leaving."""
        with self._lock:
            closing = [self._files.pop(one) for one in segments if one in self._files]
        for file in closing:
            close_file(file)

    def __len__(self) -> int:
        return len(self._files)


def close_file(file: GrowingFile) -> None:
    """Of a file that was read: an error that its file system tells of by now ends nothing."""
    try:
        file.close()
    except OSError as error:
        log.warning("a segment's file that was read did not close: %s", error)
