"""Reads a WAL folder without changing it, even if it is damaged or in use. Blocking.

The log itself refuses a folder at the first damage. The inspection reads on: it names each damaged
place, and lists the groups that a start with accept_data_loss would keep. If the node is running,
the newest group may look torn, and a file that it has just taken into use may look damaged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from streamlog.errors import Corrupt
from streamlog.format.rows import Tenure
from streamlog.format.wal.superblock import Superblock, WalIdentity
from streamlog.runtime.disk.interface import Disk, DiskFile
from streamlog.wal.folder import WAL_FILE_NAME, read_superblock, shortened
from streamlog.wal.identity import load_identity
from streamlog.wal.recovery import plan_recovery
from streamlog.wal.replay import read_groups
from streamlog.wal.scan import ScannedFile, scan_file


@dataclass(frozen=True, slots=True)
class SeenFile:
    """`state`: active, free, unfinished (never used) or damaged. Sequences: of its groups."""

    name: str
    state: str
    size_bytes: int
    tenure: Tenure | None = None
    first_sequence: int | None = None
    last_sequence: int | None = None


@dataclass(frozen=True, slots=True)
class SeenEntry:
    """One append: offsets base_offset to end_offset (exclusive) of a stream."""

    sequence: int
    tenure: Tenure
    stream_id: int
    epoch: int
    base_offset: int
    end_offset: int
    timestamp_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes `start` to `end` (exclusive) of a file."""

    file: str
    start: int
    end: int
    what: str


@dataclass(slots=True)
class WalContent:
    """`entries`: appends that are not released. `torn`: the write under way at a crash, which was
    never acknowledged and is no damage."""

    identity: WalIdentity | None = None
    released_through: int = 0
    files: list[SeenFile] = field(default_factory=list)
    entries: list[SeenEntry] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    torn: Damage | None = None

    @property
    def node_ids(self) -> set[int]:
        """The nodes that wrote the entries; without entries, those that used the folder."""
        nodes = {entry.tenure.node_id for entry in self.entries}
        if not nodes and self.identity is not None:
            nodes = {tenure.node_id for tenure in self.identity.tenures}
        return nodes


def inspect(disk: Disk) -> WalContent:
    """Errors: OSError, UnsupportedVersion."""
    content = WalContent()
    try:
        content.identity = load_identity(disk)
    except Corrupt as error:
        content.damage.append(_damage(error))
    opened: list[DiskFile] = []
    try:
        scanned = []
        for name in disk.list():
            if WAL_FILE_NAME.fullmatch(name) is not None:
                file = disk.open(name)
                opened.append(file)
                result = _scan(name, file, content)
                if result is not None:
                    scanned.append(result)
        _read(scanned, content)
    finally:
        for file in opened:
            file.close()
    return content


def _scan(name: str, file: DiskFile, content: WalContent) -> ScannedFile | None:
    size = file.size()
    damage: Corrupt | None = None
    try:
        superblock = read_superblock(name, file)
    except Corrupt as error:
        damage = error
        content.damage.append(_damage(error))
        superblock = _of_short_file(name, file)
    if superblock is None:
        state = "unfinished" if damage is None else "damaged"
        content.files.append(SeenFile(name, state, size))
        return None
    scanned = scan_file(name, file, superblock)
    frames = scanned.frames
    content.files.append(
        SeenFile(
            name,
            "damaged" if damage is not None else superblock.state.name.lower(),
            size,
            superblock.tenure,
            frames[0].sequence if frames else None,
            frames[-1].sequence if frames else None,
        )
    )
    return scanned


def _of_short_file(name: str, file: DiskFile) -> Superblock | None:
    """The superblock of a truncated file; None if it cannot be read."""
    try:
        superblock = read_superblock(name, file, may_be_short=True)
    except Corrupt:
        return None
    return None if superblock is None else shortened(superblock, file)


def _read(scanned: list[ScannedFile], content: WalContent) -> None:
    stated = content.identity.released_through if content.identity else 0
    try:
        plan = plan_recovery(scanned, released_through=stated)
    except Corrupt:
        plan = plan_recovery(scanned, released_through=stated, accept_data_loss=True)
        content.damage += map(_damage, plan.lost)
        released = max([stated, *(file.released_through for file in scanned)])
    else:
        released = plan.released_through
    if plan.torn is not None:
        name, start, end = plan.torn
        content.torn = Damage(name, start, end, "a write that was under way, cut at recovery")
    content.released_through = released
    for file, frame in plan.live:
        try:
            (group,) = read_groups(file, [frame])
        except Corrupt as error:
            content.damage.append(_damage(error))
            continue
        content.entries += [
            SeenEntry(
                group.sequence,
                group.tenure,
                entry.stream_id,
                entry.epoch,
                entry.base_offset,
                entry.end_offset,
                entry.base_timestamp_ms,
                entry.size_bytes,
            )
            for entry in group.entries
        ]


def _damage(error: Corrupt) -> Damage:
    fields = error.fields
    return Damage(
        str(fields.get("object_key", "")),
        int(fields.get("start", 0)),
        int(fields.get("end", 0)),
        error.message.partition("; restore")[0],
    )
