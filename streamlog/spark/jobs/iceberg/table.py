"""An Iceberg table that topics are exported into, and up to which offsets it holds them.

Every round is one snapshot, an append, whose summary says:

    streamlog.version           1
    streamlog.cluster-id        of the topics
    streamlog.offsets           {"topic": {"0": 23}}: the next offset of every partition so far
    streamlog.base-snapshot-id  of the round before it; 0 where there is none
    streamlog.commit-id         a name for this round

1. What the table holds is told by the newest such snapshot among the current one and its ancestors:
   the base of the next round. Others may write to the table, too.
2. Tasks write into a folder that is named after the table and the base.
3. The append is committed on condition that the base is still what step 1 finds. PyIceberg carries
   an append that lost a race over to the snapshot that won; here only while that is so.
4. Hence nobody can commit a file of a base's folder once there is a later base: what no snapshot
   names in it is removed.
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
from streamlog.reading.topics import TopicPartition
from streamlog.runtime.rand import SystemRandom
from streamlog.spark.jobs.iceberg.files import (
    PARTITIONS,
    IcebergFile,
    IcebergTask,
    check_table,
    data_file,
    file_schema,
    table_schema,
)
from streamlog.spark.plan.offsets import decode_offsets, encode_offsets

log = logging.getLogger(__name__)

VERSION = 1
OFFSETS = "streamlog.offsets"
CLUSTER = "streamlog.cluster-id"
BASE = "streamlog.base-snapshot-id"
COMMIT = "streamlog.commit-id"
VERSION_KEY = "streamlog.version"
NO_SNAPSHOT = 0
"""Iceberg's ids are greater."""


class CatalogFailed(StreamlogError):
    """The catalog, or the store of its tables, refused or is away."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a snapshot's summary says; without one: nothing yet."""

    snapshot_id: int = NO_SNAPSHOT
    base_id: int = NO_SNAPSHOT
    cluster_id: str = ""
    commit_id: str = ""
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


def held_by(metadata: TableMetadata) -> Held:
    """Errors: Corrupt, UnsupportedVersion."""
    snapshots = {one.snapshot_id: one for one in metadata.snapshots}
    at = metadata.current_snapshot()
    while at is not None:
        if at.summary is not None and at.summary[OFFSETS] is not None:
            return _read(at)
        at = snapshots.get(at.parent_snapshot_id) if at.parent_snapshot_id else None
    return Held()


def _read(snapshot: Snapshot) -> Held:
    said: Mapping[str, Any] = snapshot.summary or {}
    try:
        version = int(said[VERSION_KEY])
        if version > VERSION:
            raise UnsupportedVersion(
                f"snapshot {snapshot.snapshot_id} has version {version} of what an export notes, "
                f"this program knows {VERSION}; use the version of streamlog that wrote it, or a "
                "newer one",
                found=version,
                supported=VERSION,
            )
        offsets = decode_offsets({"version": 1, "offsets": json.loads(said[OFFSETS])})
        names = str(said[CLUSTER]), str(said[COMMIT])
        return Held(snapshot.snapshot_id, int(said[BASE]), *names, offsets)
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"snapshot {snapshot.snapshot_id} has no offsets of an export in its summary: {error}"
        ) from error


class _Guarded(Table):
    """PyIceberg refreshes a table before it carries an append over: where another export came
    between, the refresh fails."""

    held: Held
    commit_id: str

    def refresh(self) -> Table:
        spec_id = self.metadata.default_spec_id
        super().refresh()
        now = held_by(self.metadata)
        if now.commit_id == self.commit_id:
            return self
        if now.snapshot_id != self.held.snapshot_id or self.metadata.default_spec_id != spec_id:
            raise ValidationException(
                "the table was changed by another export, or partitioned anew"
            )
        return self


class ExportTable:
    """One export's view; `held` is what was found, and what this one added."""

    def __init__(self, table: Table, cluster_id: str) -> None:
        """Errors: Corrupt, UnsupportedVersion, ForeignCluster."""
        self._table = table
        self._cluster_id = cluster_id
        self.held = held_by(table.metadata)
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
    def is_begun_by_others(self) -> bool:
        """It has snapshots, and in the history of the current one there is none of an export."""
        return (
            self.held.snapshot_id == NO_SNAPSHOT
            and self._table.metadata.current_snapshot() is not None
        )

    def task(self) -> IcebergTask:
        """Of the next round."""
        folder = self._folder(self.held.snapshot_id)
        return IcebergTask(self._table.io, folder, file_schema(self._table.schema()))

    def _folder(self, base_id: int) -> str:
        root = self._table.properties.get(TableProperties.WRITE_DATA_PATH)
        root = root or f"{self._table.location().rstrip('/')}/data"
        # A table that is made anew may have the place of one whose files others still name.
        return f"{root.rstrip('/')}/streamlog-{self._table.metadata.table_uuid}/{base_id}"

    def add(self, files: Sequence[IcebergFile], offsets: Mapping[TopicPartition, int]) -> None:
        """One snapshot, which is in the catalog when this returns.

        Errors: Conflict (it is not, and the files are removed), OutcomeUnknown (perhaps it is).
        """
        base, commit_id = self.held, SystemRandom().uuid().hex
        known = {**base.offsets, **offsets}
        summary = {
            VERSION_KEY: str(VERSION),
            CLUSTER: self._cluster_id,
            OFFSETS: json.dumps(encode_offsets(known)["offsets"], separators=(",", ":")),
            BASE: str(base.snapshot_id),
            COMMIT: commit_id,
        }
        table = _guarded(self._table, base, commit_id)
        entries = [data_file(table.metadata, one) for one in files]
        try:
            with (
                table.transaction() as transaction,
                transaction.update_snapshot(snapshot_properties=summary).fast_append() as new,
            ):
                for entry in entries:
                    new.append_data_file(entry)
        except (CommitFailedException, ValidationException) as error:
            self._remove([one.location for one in files])
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
        self.held = held_by(table.metadata)
        self._remove_leftovers(base.snapshot_id, {_name(one.location) for one in files})

    def clean(self) -> None:
        """Removes what the last run may have left."""
        if self.held.snapshot_id != NO_SNAPSHOT:
            self._remove_leftovers(self.held.base_id, set())

    def _remove_leftovers(self, base_id: int, known: set[str]) -> None:
        """`known`: names that need not be looked for."""
        folder = self._folder(base_id)
        left = set(self._listed(folder)) - known
        if left:
            added = [one for one in self._table.snapshots() if _base_of(one) == str(base_id)]
            left -= self._named(added)
        if left:
            # A snapshot that is gone may have added what others still name.
            left -= self._named(self._table.snapshots())
        self._remove([f"{folder}/{name}" for name in left])

    def _named(self, snapshots: Iterable[Snapshot]) -> set[str]:
        """File names alone: a table's place may be spelled anew, as s3 and s3a."""
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
            log.info("%s cannot list %s: what killed runs left stays", type(io).__name__, folder)
            return []
        scheme, netloc, path = io.parse_location(folder, io.properties)
        try:
            found = io.fs_by_scheme(scheme, netloc).get_file_info(
                fs.FileSelector(path, allow_not_found=True)
            )
        except OSError as error:
            log.warning("%s cannot be listed, what killed runs left stays: %s", folder, error)
            return []
        return [one.base_name for one in found if one.type == fs.FileType.File]

    def _remove(self, locations: Iterable[str]) -> None:
        """What cannot be removed stays: no snapshot names it."""
        for location in locations:
            try:
                self._table.io.delete(location)
            except FileNotFoundError:
                # The export that won was faster.
                continue
            except OSError as error:
                log.warning("%s could not be removed, nothing needs it: %s", location, error)


def _name(location: str) -> str:
    return location.rpartition("/")[2]


def _base_of(snapshot: Snapshot) -> str | None:
    return None if snapshot.summary is None else snapshot.summary[BASE]


def _guarded(table: Table, held: Held, commit_id: str) -> _Guarded:
    made = _Guarded(
        table.name(), table.metadata, table.metadata_location, table.io, table.catalog, table.config
    )
    made.held, made.commit_id = held, commit_id
    return made


@contextmanager
def opened_table(
    name: str, properties: Mapping[str, str], cluster_id: str, *, headers: bool
) -> Iterator[ExportTable]:
    """Made where it is not there, its namespace too. `name`: CATALOG.NAMESPACE.TABLE; `properties`
    of the catalog, beside those of PyIceberg's configuration.

    Errors: Invalid, CatalogFailed; as for `ExportTable`.
    """
    catalog_name, *identifier = name.split(".")
    if len(identifier) < 2 or not all((catalog_name, *identifier)):
        raise Invalid(f"{name!r} names no table: say CATALOG.NAMESPACE.TABLE")
    catalog = _opened_catalog(catalog_name, properties)
    try:
        try:
            table = _found_or_made(catalog, tuple(identifier), headers=headers)
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


def _found_or_made(catalog: Catalog, identifier: tuple[str, ...], *, headers: bool) -> Table:
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(identifier[:-1])
        schema = table_schema(headers=headers)
        mapping = {TableProperties.DEFAULT_NAME_MAPPING: schema.name_mapping.model_dump_json()}
        return catalog.create_table_if_not_exists(
            identifier, schema, partition_spec=PARTITIONS, properties=mapping
        )
