"""The three files of the seed's remote index in a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

from streamlog.cli.support.new_file import new_file
from streamlog.errors import Corrupt
from streamlog.format.remote_index import (
    LOG_SUFFIX,
    OFFSET_ENTRY_BYTES,
    OFFSET_SUFFIX,
    TIME_SUFFIX,
    RemoteIndex,
    RemoteIndexFiles,
    decode_files,
)

SUFFIXES = (LOG_SUFFIX, OFFSET_SUFFIX, TIME_SUFFIX)


class WrittenIndex(NamedTuple):
    path: Path
    """Of the .remotelogindex file."""
    entries: int
    size_bytes: int
    """Of all three files."""


def check_free(folder: Path) -> None:
    """Files of an older build would pass for a part of this one. Errors: UsageError."""
    if any(path.suffix in SUFFIXES for path in _listed(folder)):
        raise click.UsageError(f"{folder} has a remote index already: give another folder")


def write_files(folder: Path, triples: Iterable[RemoteIndexFiles]) -> Iterator[WrittenIndex]:
    """Each file has its name when it is whole; the log index comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    for files in triples:
        contents = (files.log_index, files.offset_index, files.time_index)
        for suffix, data in reversed(list(zip(SUFFIXES, contents, strict=True))):
            with new_file(folder / (files.stem + suffix)) as file:
                file.write(data)
        entries = len(files.offset_index) // OFFSET_ENTRY_BYTES
        path = folder / (files.stem + LOG_SUFFIX)
        yield WrittenIndex(path, entries, sum(map(len, contents)))


def read_files(folder: Path) -> Iterator[RemoteIndex]:
    """In the order of their base offsets. Errors: Corrupt, UnsupportedVersion; UsageError."""
    stems = sorted({path.stem for path in _listed(folder) if path.suffix in SUFFIXES})
    if not stems:
        raise click.UsageError(f"{folder} has no remote index")
    last = -1
    for stem in stems:
        if len(stem) != 20 or not (stem.isascii() and stem.isdigit()):
            raise Corrupt(f"{folder / stem} has no base offset of 20 digits for its name")
        data = []
        for suffix in SUFFIXES:
            try:
                data.append((folder / (stem + suffix)).read_bytes())
            except FileNotFoundError as error:
                raise Corrupt(f"{folder / (stem + suffix)} is missing") from error
        index = decode_files(RemoteIndexFiles(int(stem), *data))
        if index.base_offset <= last:
            raise Corrupt(f"{folder / stem} begins within the files before it")
        last = index.entries[-1].last_offset
        yield index


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
