"""The manifest of an export: its files and the next offsets. It is replaced whole.

    DIR/_streamlog/manifest.json
    {"version": 1, "cluster_id": "…", "offsets": {"topic": {"0": 23}},
     "topics": {"topic": "its id"},
     "files": [{"path": "topic=t/date=2026-01-05/….parquet", "rows": 5, "bytes": 812,
                "offsets": {"0": [18, 23]}}]}
    DIR/_streamlog/pending/….parquet       written by tasks, in no manifest or not moved yet
    DIR/topic=t/date=2026-01-05/….parquet  named by the manifest, permanent

1. Tasks write under `pending`, every attempt under new names.
2. The manifest is replaced: from now on the round counts.
3. Files are moved to their places. Opening the folder moves files that a crash left behind, and
   removes files that the manifest does not name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamlog.errors import Corrupt, ForeignCluster, StreamlogError, UnsupportedVersion
from streamlog.model.located import OffsetWindow
from streamlog.runtime.disk.folders import fsync_folder, make_folder
from streamlog.spark.jobs.export.offsets import ExportedOffsets
from streamlog.spark.jobs.files import replace_file
from streamlog.spark.plan.offsets import decode_offsets, decode_topic_ids, encode_offsets

VERSION = 1
OWN = "_streamlog"
"""Readers of Parquet folders, Spark among them, skip names that begin with an underscore."""


@dataclass(frozen=True, slots=True)
class WrittenOffsets:
    """A file: its `name`, and its final `folder` below DIR. `offsets`: by partition, the first
    offset in it and the last + 1."""

    folder: str
    name: str
    rows: int
    size_bytes: int
    offsets: Mapping[int, tuple[int, int]]

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}"

    def description(self) -> dict[str, Any]:
        named = {str(partition): list(span) for partition, span in sorted(self.offsets.items())}
        return {
            "path": self.path,
            "rows": self.rows,
            "bytes": self.size_bytes,
            "offsets": named,
        }


@dataclass(slots=True)
class Manifest:
    """Of an export into `folder`. One process at a time may have it open."""

    folder: Path
    cluster_id: str
    exported: ExportedOffsets = field(default_factory=ExportedOffsets)
    files: list[dict[str, Any]] = field(default_factory=list)

    @property
    def _path(self) -> Path:
        return self.folder / OWN / "manifest.json"

    @staticmethod
    def pending(folder: Path) -> Path:
        return folder / OWN / "pending"

    @staticmethod
    def open(folder: Path, cluster_id: str) -> Manifest:
        """Moves or removes the files that the last run left pending.

        Errors: Corrupt, UnsupportedVersion, ForeignCluster, OSError.
        """
        make_folder(str(Manifest.pending(folder)))
        manifest = Manifest(folder, cluster_id)
        if manifest._path.exists():
            manifest._read()
        manifest._finish_pending()
        return manifest

    def _read(self) -> None:
        try:
            value = json.loads(self._path.read_bytes())
            version, cluster_id = int(value["version"]), str(value["cluster_id"])
            if version > VERSION:
                raise UnsupportedVersion(
                    f"{self._path} has version {version}, this program knows {VERSION}; use the "
                    "version of streamlog that wrote it, or a newer one",
                    found=version,
                    supported=VERSION,
                )
            offsets = decode_offsets({"version": 1, "offsets": value["offsets"]})
            self.exported = ExportedOffsets(offsets, decode_topic_ids(value))
            self.files = [{**file, "path": str(file["path"])} for file in value["files"]]
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{self._path} is no manifest of an export: {error}") from error
        if cluster_id != self.cluster_id:
            raise ForeignCluster(
                f"{self.folder} holds an export of cluster {cluster_id}, the topics are of "
                f"{self.cluster_id}: name another folder",
                store_cluster=cluster_id,
                meta_cluster=self.cluster_id,
            )

    def _finish_pending(self) -> None:
        left = {path.name: path for path in Manifest.pending(self.folder).iterdir()}
        self._move([file["path"] for file in self.files if Path(file["path"]).name in left])
        for path in left.values():
            path.unlink(missing_ok=True)

    def add(self, files: Sequence[WrittenOffsets], windows: Sequence[OffsetWindow]) -> None:
        """The round counts when this returns. If it fails the round may count: `open` finds out.

        Errors: OSError.
        """
        self.exported = self.exported.after(windows)
        self.files += [file.description() for file in files]
        value = {
            **encode_offsets(self.exported.offsets, self.exported.topic_ids),
            "version": VERSION,
            "cluster_id": self.cluster_id,
            "files": self.files,
        }
        fsync_folder(str(Manifest.pending(self.folder)))
        replace_file(self._path, json.dumps(value).encode())
        self._move([file.path for file in files])

    def _move(self, paths: Sequence[str]) -> None:
        targets = [self.folder / path for path in paths]
        folders = sorted({str(target.parent) for target in targets})
        for folder in folders:
            make_folder(folder, above=str(self.folder))
        for target in targets:
            (Manifest.pending(self.folder) / target.name).replace(target)
        for folder in folders:
            fsync_folder(folder)

    def check(self) -> None:
        """Checks that all files exist. Errors: StreamlogError, which names a missing file."""
        for file in self.files:
            if not (self.folder / file["path"]).exists():
                raise StreamlogError(
                    f"{self.folder / file['path']} is named by the manifest and is gone; put it "
                    "back, or export into a new folder"
                )
