"""A file that a command makes: it has its name only once it is whole."""

from __future__ import annotations

import contextlib
import glob
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import BinaryIO

import click

from streamlog.cli.output import note
from streamlog.runtime.disk.folders import fsync_folder


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that gets its name, durably, once it is whole and synced.

    Each call writes a separate file: two commands with one name leave the later one, whole. One
    that SIGKILL or the machine ends leaves its part, which nothing removes, since others may still
    write theirs: the next call names it. A symbolic link stays one: the file that it points to is
    replaced.

    Errors: OSError (names `path`); UsageError where the name is that of a device, a pipe or a
    folder, which the file would take the place of.
    """
    if path.exists() and not path.is_file():
        raise click.UsageError(f"{path} is no regular file: give the name of one, or a new name")
    asked, path = path, Path(os.path.realpath(path))
    # By chance, not by the process: each container may have the same PID, and a volume be shared.
    part = path.with_name(f"{path.name}.{os.urandom(4).hex()}.part")
    for other in glob.glob(f"{glob.escape(str(path))}.{'[0-9a-f]' * 8}.part"):
        note(f"{other} is of a command that still writes it or was killed: remove it if none does")
    with _removed_by_signals(part):
        try:
            with part.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            fsync_folder(str(path.absolute().parent))
        except OSError as error:
            # A full disk names no file, and nobody has asked for the part.
            is_of_write = type(error) is OSError and error.filename is None
            if error.errno is not None and (is_of_write or error.filename == str(part)):
                raise OSError(error.errno, error.strerror, str(asked)) from error
            raise
        finally:
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def _removed_by_signals(part: Path) -> Iterator[None]:
    """SIGTERM and SIGHUP end the process, as they do without this, and leave no `part`.

    No exception as by `interruptible`: an event loop would log one that is raised in a callback,
    and go on. A signal that the parent made the command ignore, as `nohup` does, stays ignored.
    """

    def end(number: int, frame: FrameType | None) -> None:
        part.unlink(missing_ok=True)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        # Reached by PID 1 of a container alone, which the kernel spares every default action.
        os._exit(128 + number)

    handled = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
