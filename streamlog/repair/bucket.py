"""What lies in the store under the cluster's prefix: 16 bytes of memory per data object."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

from streamlog.errors import InvalidName, ObjectNotFound
from streamlog.format.object.footer import (
    TRAILER_BYTES,
    ObjectFooter,
    decode_footer,
    decode_trailer,
)
from streamlog.objectstore.interface import ObjectInfo, ObjectStore
from streamlog.objectstore.keys import CHECKPOINT_PREFIX, CLUSTER_KEY, DATA_PREFIX, data_key
from streamlog.objectstore.keys import object_id as object_id_of
from streamlog.repair.findings import Progress, no_progress
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane, Offload
from streamlog.tiered.storage.names import OWN_PREFIX, parsed_key

TAIL_GUESS_BYTES = 16 << 10
"""Read of an object whose footer's size is unknown: most footers fit."""


@dataclass(slots=True)
class Bucket:
    """`ids` are sorted, `sizes` go with them. `remote_files`: of segments in the remote tier.
    `foreign`: keys that streamlog did not make."""

    ids: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    checkpoints: list[ObjectInfo] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    has_cluster_file: bool = False
    remote_files: int = 0
    remote_bytes: int = 0

    def size_of(self, object_id: int) -> int | None:
        index = bisect_left(self.ids, object_id)
        if index == len(self.ids) or self.ids[index] != object_id:
            return None
        return self.sizes[index]

    def __contains__(self, object_id: int) -> bool:
        return self.size_of(object_id) is not None

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes)


async def list_bucket(store: ObjectStore, progress: Progress = no_progress) -> Bucket:
    """Errors: StoreUnavailable."""
    bucket, ids, sizes = Bucket(), array("Q"), array("Q")
    token: str | None = None
    while True:
        page = await store.list("", token=token)
        for info in page.objects:
            if info.key == CLUSTER_KEY:
                bucket.has_cluster_file = True
            elif info.key.startswith(CHECKPOINT_PREFIX):
                bucket.checkpoints.append(info)
            elif info.key.startswith(DATA_PREFIX):
                try:
                    ids.append(object_id_of(info.key))
                except InvalidName:
                    bucket.foreign.append(info.key)
                else:
                    sizes.append(info.size_bytes)
            elif _is_remote(info.key):
                bucket.remote_files += 1
                bucket.remote_bytes += info.size_bytes
            else:
                bucket.foreign.append(info.key)
        progress("listing objects", len(ids), 0)
        token = page.next_token
        if token is None:
            break
    order = sorted(range(len(ids)), key=ids.__getitem__)
    bucket.ids = array("Q", map(ids.__getitem__, order))
    bucket.sizes = array("Q", map(sizes.__getitem__, order))
    return bucket


def _is_remote(key: str) -> bool:
    return key.startswith(f"{OWN_PREFIX}/") and parsed_key(OWN_PREFIX, key) is not None


async def read_footer(
    store: ObjectStore, offload: Offload, object_id: int, size_bytes: int
) -> ObjectFooter | None:
    """The footer, read from the object's end by one GET, seldom two. None: the object is gone.

    Errors: Corrupt, UnsupportedVersion, StoreUnavailable.
    """
    key = data_key(object_id)
    try:
        length = min(max(TAIL_GUESS_BYTES, TRAILER_BYTES), size_bytes)
        tail = await store.get(key, size_bytes - length, length)
        trailer = decode_trailer(tail, size_bytes=size_bytes, object_key=key)
        if trailer.tail_bytes > len(tail):
            start = trailer.footer_position
            tail = await store.get(key, start, size_bytes - start)
    except ObjectNotFound:
        return None
    return await offload.run(Lane.CPU, _decode, tail, size_bytes, key)


def _decode(tail: Buffer, size_bytes: int, key: str) -> ObjectFooter | None:
    return decode_footer(tail, size_bytes=size_bytes, object_key=key)
