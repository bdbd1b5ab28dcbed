"""An Iceberg table that topics are exported into, and the offsets up to which it has them.

Every round is one snapshot, an append, with this in its summary:

    streamlog.version           1
    streamlog.cluster-id        of the topics
    streamlog.offsets           {"topic": {"0": 23}}: the next offset of every partition so far
    streamlog.topic-ids         {"topic": "its id"}; older releases noted none
    streamlog.base-snapshot-id  of the round before it; 0 where there is none
    streamlog.commit-id         a name for this round

1. The newest such snapshot among the current one and its ancestors is the base of the next round:
   it has the table's offsets. Other writers may write to the table, too.
2. Tasks write into a folder that is named after the table and the base.
3. The append is committed if step 1 still finds the same base. PyIceberg rebases an append that
   lost a race on the snapshot that won; this class allows that only under the same condition.
4. So once there is a later base, no export can commit files of an older base's folder. Files in it
   that no snapshot names are removed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyarrow import fs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from streamlog.errors import (
    Conflict,
    Corrupt,
    ForeignCluster,
    Invalid,
    OutcomeUnknown,
    StreamlogError,
    UnsupportedVersion,
)
from streamlog.model.located import OffsetWindow
from streamlog.runtime.rand import SystemRandom
from streamlog.spark.jobs.export.offsets import ExportedOffsets
from streamlog.spark.jobs.iceberg.files import (
    PARTITIONS,
    IcebergFile,
    IcebergTask,
    check_table,
    data_file,
    file_schema,
    table_schema,
)
from streamlog.spark.plan.offsets import decode_offsets, decode_topic_ids, encode_offsets

log = logging.getLogger(__name__)

VERSION = 1
OFFSETS = "streamlog.offsets"
TOPIC_IDS = "streamlog.topic-ids"
CLUSTER = "streamlog.cluster-id"
BASE = "streamlog.base-snapshot-id"
COMMIT = "streamlog.commit-id"
VERSION_KEY = "streamlog.version"
NO_SNAPSHOT = 0
"""Iceberg's ids are greater."""


class CatalogFailed(StreamlogError):
    """The catalog, or the store of its tables, refused a call or cannot be reached."""


@dataclass(frozen=True, slots=True)
class ExportState:
    """The export's part of a snapshot's summary; the defaults mean that there is none."""

    snapshot_id: int = NO_SNAPSHOT
    base_id: int = NO_SNAPSHOT
    cluster_id: str = ""
    commit_id: str = ""
    exported: ExportedOffsets = field(default_factory=ExportedOffsets)


def export_state(metadata: TableMetadata) -> ExportState:
    """Errors: Corrupt, UnsupportedVersion."""
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    snapshot = metadata.current_snapshot()
    while snapshot is not None:
        if snapshot.summary is not None and snapshot.summary[OFFSETS] is not None:
            return _read(snapshot)
        parent_id = snapshot.parent_snapshot_id
        snapshot = snapshots.get(parent_id) if parent_id else None
    return ExportState()


def _read(snapshot: Snapshot) -> ExportState:
    summary: Mapping[str, Any] = snapshot.summary or {}
    try:
        version = int(summary[VERSION_KEY])
        if version > VERSION:
            raise UnsupportedVersion(
                f"snapshot {snapshot.snapshot_id} has version {version} of what an export notes, "
                f"this program knows {VERSION}; use the version of streamlog that wrote it, or a "
                "newer one",
                found=version,
                supported=VERSION,
            )
        offsets = decode_offsets({"version": 1, "offsets": json.loads(summary[OFFSETS])})
        topic_ids = decode_topic_ids({"topics": json.loads(summary[TOPIC_IDS] or "{}")})
        names = str(summary[CLUSTER]), str(summary[COMMIT])
        exported = ExportedOffsets(offsets, topic_ids)
        return ExportState(snapshot.snapshot_id, int(summary[BASE]), *names, exported)
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"snapshot {snapshot.snapshot_id} has no offsets of an export in its summary: {error}"
        ) from error


class _Guarded(Table):
    """PyIceberg refreshes a table before it rebases an append: the refresh fails, if another export
    came between."""

    held: ExportState
    commit_id: str

    def refresh(self) -> Table:
        spec_id = self.metadata.default_spec_id
        super().refresh()
        newest = export_state(self.metadata)
        if newest.commit_id == self.commit_id:
            return self
        if newest.snapshot_id != self.held.snapshot_id or self.metadata.default_spec_id != spec_id:
            raise ValidationException(
                "the table was changed by another export, or partitioned again"
            )
        return self


class ExportTable:
    """The table of one export; `held`: the state that was found, then the state after each
    round."""

    def __init__(self, table: Table, cluster_id: str) -> None:
        """Errors: Corrupt, UnsupportedVersion, ForeignCluster."""
        self._table = table
        self._cluster_id = cluster_id
        self.held = export_state(table.metadata)
        if self.held.snapshot_id != NO_SNAPSHOT and self.held.cluster_id != cluster_id:
            raise ForeignCluster(
                f"table {self.name} holds an export of cluster {self.held.cluster_id}, the topics "
                f"are of {cluster_id}: name another table",
                store_cluster=self.held.cluster_id,
                meta_cluster=cluster_id,
            )

    @property
    def name(self) -> str:
        return ".".join(self._table.name())

    @property
    def has_foreign_records(self) -> bool:
        """Whether the table has snapshots, but none of an export in the current one's history."""
        return (
            self.held.snapshot_id == NO_SNAPSHOT
            and self._table.metadata.current_snapshot() is not None
        )

    def task(self) -> IcebergTask:
        """The task of the next round."""
        folder = self._folder(self.held.snapshot_id)
        return IcebergTask(self._table.io, folder, file_schema(self._table.schema()))

    def _folder(self, base_id: int) -> str:
        root = self._table.properties.get(TableProperties.WRITE_DATA_PATH)
        root = root or f"{self._table.location().rstrip('/')}/data"
        # A recreated table may have the location of a table whose files other tables still name.
        return f"{root.rstrip('/')}/streamlog-{self._table.metadata.table_uuid}/{base_id}"

    def add(self, files: Sequence[IcebergFile], windows: Sequence[OffsetWindow]) -> None:
        """Adds one snapshot, which is in the catalog when this returns.

        Errors: Conflict (it is not, and the files are removed), OutcomeUnknown (it may be).
        """
        base, commit_id = self.held, SystemRandom().uuid().hex
        exported = base.exported.after(windows)
        encoded = encode_offsets(exported.offsets, exported.topic_ids)
        summary = {
            VERSION_KEY: str(VERSION),
            CLUSTER: self._cluster_id,
            OFFSETS: json.dumps(encoded["offsets"], separators=(",", ":")),
            TOPIC_IDS: json.dumps(encoded["topics"], separators=(",", ":")),
            BASE: str(base.snapshot_id),
            COMMIT: commit_id,
        }
        table = _guarded(self._table, base, commit_id)
        entries = [data_file(table.metadata, file) for file in files]
        try:
            with (
                table.transaction() as transaction,
                transaction.update_snapshot(snapshot_properties=summary).fast_append() as new,
            ):
                for entry in entries:
                    new.append_data_file(entry)
        except (CommitFailedException, ValidationException) as error:
            self._remove([file.location for file in files])
            raise Conflict(
                f"table {self.name} was changed at the same time and this round is not in it: "
                f"{error}; run the export again when no other one writes to the table"
            ) from error
        except Exception as error:
            raise OutcomeUnknown(
                f"it is not known whether table {self.name} has this round: {error}; run the "
                "export again, it goes on rightly in either case"
            ) from error
        self._table = table
        self.held = export_state(table.metadata)
        self._remove_leftovers(base.snapshot_id, {_name(file.location) for file in files})

    def clean(self) -> None:
        """Removes files that the last run may have left."""
        if self.held.snapshot_id != NO_SNAPSHOT:
            self._remove_leftovers(self.held.base_id, set())

    def _remove_leftovers(self, base_id: int, committed: set[str]) -> None:
        """Removes files of the base's folder that no snapshot names. `committed`: names to skip."""
        folder = self._folder(base_id)
        left = set(self._listed(folder)) - committed
        if left:
            added = [new for new in self._table.snapshots() if _base_of(new) == str(base_id)]
            left -= self._named(added)
        if left:
            # An expired snapshot may have added files that later snapshots still name.
            left -= self._named(self._table.snapshots())
        self._remove([f"{folder}/{name}" for name in left])

    def _named(self, snapshots: Iterable[Snapshot]) -> set[str]:
        """The names of data files, without folders: a location may be spelled s3 or s3a."""
        io = self._table.io
        manifests = {
            manifest.manifest_path: manifest
            for snapshot in snapshots
            for manifest in snapshot.manifests(io)
            if manifest.content == ManifestContent.DATA
        }
        return {
            _name(entry.data_file.file_path)
            for manifest in manifests.values()
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
        }

    def _listed(self, folder: str) -> list[str]:
        io = self._table.io
        if not isinstance(io, PyArrowFileIO):
            log.info("%s cannot list %s: files of killed runs stay", type(io).__name__, folder)
            return []
        scheme, netloc, path = io.parse_location(folder, io.properties)
        try:
            entries = io.fs_by_scheme(scheme, netloc).get_file_info(
                fs.FileSelector(path, allow_not_found=True)
            )
        except OSError as error:
            log.warning("%s cannot be listed, files of killed runs stay: %s", folder, error)
            return []
        return [entry.base_name for entry in entries if entry.type == fs.FileType.File]

    def _remove(self, locations: Iterable[str]) -> None:
        """Removes files; a file that cannot be removed stays, and no snapshot names it."""
        for location in locations:
            try:
                self._table.io.delete(location)
            except FileNotFoundError:
                # The export that won has removed it.
                continue
            except OSError as error:
                log.warning("%s could not be removed, and is not needed: %s", location, error)


def _name(location: str) -> str:
    return location.rpartition("/")[2]


def _base_of(snapshot: Snapshot) -> str | None:
    return None if snapshot.summary is None else snapshot.summary[BASE]


def _guarded(table: Table, held: ExportState, commit_id: str) -> _Guarded:
    guarded = _Guarded(
        table.name(), table.metadata, table.metadata_location, table.io, table.catalog, table.config
    )
    guarded.held, guarded.commit_id = held, commit_id
    return guarded


@contextmanager
def opened_table(
    name: str, properties: Mapping[str, str], cluster_id: str, *, headers: bool
) -> Iterator[ExportTable]:
    """The table, created with its namespace if it does not exist. `name`: CATALOG.NAMESPACE.TABLE;
    `properties`: of the catalog, in addition to PyIceberg's configuration.

    Errors: Invalid, CatalogFailed; those of `ExportTable`.
    """
    catalog_name, *identifier = name.split(".")
    if len(identifier) < 2 or not all((catalog_name, *identifier)):
        raise Invalid(f"{name!r} names no table: say CATALOG.NAMESPACE.TABLE")
    catalog = _opened_catalog(catalog_name, properties)
    try:
        try:
            table = _load_or_create(catalog, tuple(identifier), headers=headers)
        except Exception as error:
            raise CatalogFailed(f"catalog {catalog_name}: {error}") from error
        check_table(table, headers=headers)
        yield ExportTable(table, cluster_id)
    finally:
        catalog.close()


def _opened_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    try:
        return load_catalog(name, **properties)
    except Exception as error:
        raise CatalogFailed(
            f"catalog {name} cannot be opened: {error}; it is set up in .pyiceberg.yaml, by "
            f"PYICEBERG_CATALOG__{name.upper()}__… in the environment, or by catalog properties"
        ) from error


def _load_or_create(catalog: Catalog, identifier: tuple[str, ...], *, headers: bool) -> Table:
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(identifier[:-1])
        schema = table_schema(headers=headers)
        mapping = {TableProperties.DEFAULT_NAME_MAPPING: schema.name_mapping.model_dump_json()}
        return catalog.create_table_if_not_exists(
            identifier, schema, partition_spec=PARTITIONS, properties=mapping
        )
